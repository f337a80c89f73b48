"""The life of the package on a clean Debian that boots with systemd: install, start, upgrade, remove, purge (P1). The commands of
docs/DEPLOY.md are run there as they stand."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from machine import Machine, fetch_dependencies, make_root

sys.path.insert(0, str(ROOT / "tests" / "system"))
from lib.certs import Authority  # noqa: E402 pylint: disable=wrong-import-position
from lib.pages import Page, matches  # noqa: E402 pylint: disable=wrong-import-position

pytestmark = pytest.mark.whole
PAGE = Page(ROOT, ROOT / "docs" / "DEPLOY.md")
READY = "curl -sf http://127.0.0.1:8080/actuator/health/readiness"
INSTALL = "apt-get -q install -y --no-install-recommends ./freshet.deb"
FRESH = f"{INSTALL} && su - postgres -c 'createuser freshet && createdb --owner freshet freshet'"
KEEP = "--no-install-recommends -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"  # not asked
TOKEN = "freshet token --tenant demo --key /etc/freshet/token-key.json --jwks /etc/freshet/jwks.json"


@pytest.fixture(name="debian", scope="module")
def debian_root(package):
    root = Path(os.environ["FRESHET_PACKAGE_VAR"]) / "bookworm"
    if not root.exists():
        make_root(root)
    fetch_dependencies(root, package)
    return root


@pytest.fixture(name="machine")
def booted(debian, package):
    """With the package's file in /root, not installed. Its files lie on a disk: overlays do not nest."""
    machine = Machine(debian, Path(os.environ["FRESHET_PACKAGE_VAR"]) / f"machine-{os.getpid()}")
    try:
        machine.put(package, "/root/freshet.deb")
        yield machine
    finally:
        machine.close()


def other_version(package, version, folder):
    """The same package as another version, with one more line in the configuration that it brings."""
    subprocess.run(["dpkg-deb", "-R", str(package), str(folder / "new")], check=True)
    control = folder / "new/DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", f"Version: {version}", control.read_text(), flags=re.M))
    with (folder / "new/etc/freshet/freshet.yaml").open("a") as config:
        config.write("# of the new version\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(folder / "new"), str(folder / "new.deb")], check=True)
    return folder / "new.deb"


def test_the_commands_of_the_deployment_page_work(machine):
    """A newcomer's way, from the package to several processes."""
    examples = PAGE.examples("runs in a clean Debian")
    assert len(examples) >= 6
    environment = ""
    for block, expected in examples:
        printed = machine.run(environment + block.text)
        environment += "".join(line + "\n" for line in block.text.splitlines() if line.startswith("export "))
        assert expected is None or matches(expected, printed), f"{PAGE.name}:{block.line}\n{printed}"


def follow(machine, title, **options):
    """Runs the blocks of a section that another section's commands exclude."""
    examples = PAGE.under(title, "runs in a Debian of its own")
    assert examples
    for block, _ in examples:
        status, printed = machine.try_run(block.text, start_new_session=True, **options)  # a prompt reads its input, not a terminal
        assert status == 0, f"{PAGE.name}:{block.line}\n{printed}"


def test_the_page_s_commands_for_least_privileges_and_upgrades_work(machine, package, tmp_path):
    """C10: the service writes without being able to create anything, before, after and between the two versions."""
    machine.run(INSTALL)
    follow(machine, "Least privileges", input="PASSWORD\nPASSWORD\n")  # the page's word, as the two prompts read it
    machine.wait_for(READY)
    put = f"FRESHET_TOKEN=$({TOKEN}) freshet put demo FEATURE a"
    assert machine.run(f"{put} 1") == "1\n"
    owners = "select distinct tableowner from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
    assert machine.run(f"su - postgres -c 'psql -At freshet' <<'END'\n{owners};\nEND\n") == "freshet_owner\n"
    machine.run("! su - freshet -s /bin/sh -c 'psql -c \"create table refdata.mine (a int)\" freshet'")
    machine.put(other_version(package, "99.0-1", tmp_path), "/root/freshet_NEW.deb")
    machine.run("cp freshet.deb freshet_OLD.deb")
    follow(machine, "Upgrade and rollback", input="y\n")  # apt asks before it goes back
    assert machine.run("dpkg-query -W -f '${Version}' freshet") != "99.0-1"
    machine.wait_for(READY)
    assert machine.run(f"{put} 2") == "2\n"


def test_the_page_s_commands_for_tls_work(machine, tmp_path):
    authority = Authority(tmp_path)
    for source, name in zip((*authority.server(), authority.ca), ("server.crt", "server.key", "ca.crt")):
        machine.put(source, f"/root/{name}")
    machine.run(FRESH)
    machine.wait_for(READY)
    follow(machine, "Network and TLS")
    secure = READY.replace("http://127.0.0.1:8080", "https://localhost:8443").replace("curl", "curl --cacert ca.crt")
    machine.wait_for(secure)
    assert machine.run(f"FRESHET_TOKEN=$({TOKEN}) freshet put demo FEATURE a 1 --url https://localhost:8443 --ca ca.crt") == "1\n"
    (drop_in,) = [block.text for block in PAGE.blocks if block.language == "ini"]  # as `systemctl edit` saves it
    machine.run("mkdir /etc/systemd/system/freshet.service.d; echo FRESHET_LISTEN=0.0.0.0:443 >>/etc/default/freshet\n"
                f"cat >/etc/systemd/system/freshet.service.d/override.conf <<'END'\n{drop_in}END\n"
                "systemctl daemon-reload; systemctl restart freshet")
    machine.wait_for(secure.replace(":8443", ""))


def test_the_service_has_few_rights_and_ends_in_order(machine):
    """C5, P1: as its user, without capabilities, with a filter of system calls; SIGTERM is no failure."""
    machine.run(FRESH)
    machine.wait_for(READY)
    status = machine.run("cat /proc/$(systemctl show -P MainPID freshet)/status")
    uid = machine.run("id -u freshet").strip()
    facts = dict(re.findall(r"^(\w+):\s+(.*)$", status, re.M))
    assert facts["Uid"].split() == [uid] * 4 and facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2"
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert machine.try_run("nsenter -t $(systemctl show -P MainPID freshet) -m touch /etc/freshet/x /var/x /home/x")[0] != 0
    machine.run("systemctl stop freshet")
    assert machine.run("systemctl show -P Result -P ExecMainStatus freshet").split() == ["success", "0"]
    assert "denied" not in machine.run("journalctl -u freshet -o cat").lower()


def test_a_killed_server_is_started_again(machine):
    machine.run(FRESH)
    machine.wait_for(READY)
    before = machine.run("systemctl show -P MainPID freshet")
    machine.run("systemctl kill -s KILL freshet")
    machine.wait_for(f"[ $(systemctl show -P MainPID freshet) != {before.strip()} ] && {READY}")


def test_an_upgrade_keeps_the_configuration_and_the_data(machine, package, tmp_path):
    """C10: a file that the administrator changed stays, also one that the new version brings otherwise."""
    machine.run(FRESH)
    machine.wait_for(READY)
    machine.run(f"FRESHET_TOKEN=$({TOKEN}) freshet put demo FEATURE a 1")
    machine.run("sed -i '1i # of the administrator' /etc/freshet/freshet.yaml; systemctl reload freshet")
    machine.put(other_version(package, "99.0-1", tmp_path), "/root/new.deb")
    machine.run("echo FRESHET_LISTEN=127.0.0.1:8081 >/etc/default/freshet-query; systemctl start freshet@query")
    query = machine.run("systemctl show -P MainPID freshet@query")
    before = machine.run("systemctl show -P MainPID freshet; cat /etc/freshet/jwks.json")
    machine.run(f"apt-get -q install -y {KEEP} ./new.deb")
    assert machine.run("dpkg-query -W -f '${Version}' freshet") == "99.0-1"
    config = machine.run("cat /etc/freshet/freshet.yaml")
    assert config.startswith("# of the administrator\n") and "# of the new version" not in config
    after = machine.run("systemctl show -P MainPID freshet; cat /etc/freshet/jwks.json")
    assert after.splitlines()[0] != before.splitlines()[0], "it was not restarted"
    assert machine.run("systemctl show -P MainPID freshet@query") != query, "the one of several was not restarted"
    assert after.splitlines()[1:] == before.splitlines()[1:], "the key was replaced"
    machine.wait_for(READY)
    assert '"payload":1' in machine.run(f"FRESHET_TOKEN=$({TOKEN}) freshet get demo FEATURE a")
    machine.run(f"apt-get -q install -y --allow-downgrades {KEEP} ./freshet.deb")  # and back
    machine.wait_for(READY)


def test_removing_leaves_the_configuration_and_purging_what_is_not_of_the_package(machine):
    machine.run(FRESH)
    machine.wait_for(READY)
    machine.run("echo mine >/etc/freshet/mine; echo FRESHET_LISTEN=127.0.0.1:8081 >/etc/default/freshet-query; "
                "systemctl -q enable --now freshet@query")
    machine.wait_for(READY.replace("8080", "8081"))
    machine.run("apt-get -q remove -y freshet")
    assert machine.try_run("systemctl is-active freshet")[1].strip() == "inactive"
    assert machine.try_run("grep -lx freshet /proc/[0-9]*/comm")[1] == ""
    assert machine.try_run("command -v freshet")[0] != 0
    machine.run("test -e /etc/freshet/freshet.yaml -a -e /etc/freshet/token-key.json -a -e /etc/default/freshet")
    machine.run("apt-get -q purge -y freshet")
    assert machine.run("ls -A /etc/freshet").split() == ["mine"]
    assert machine.run("find / -xdev -name '*freshet*' -not -path '/var/cache/*' -not -path '/root/*' -not -path '/var/lib/systemd/*' "
                       "-not -path '/proc/*' -not -path '/var/log/*' -not -path '/tmp/*' | sort").split() == [
                           "/etc/default/freshet-query", "/etc/freshet"]
    assert "freshet" in machine.run("su - postgres -c 'psql -lqt'"), "the database was dropped"
    machine.run("apt-get -q install -y --no-install-recommends ./freshet.deb")  # and again
    machine.wait_for(READY)
