"""What the package consists of, each part checked by the program that will read it: P1, C10."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from shells import Shell

EXPOSURE_MAX = 20  # of 100, for `systemd-analyze security`; 14 when it was written


def output(*command, **options):
    """Standard output and error of a command that has to succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


# ---- versions ----

def test_meson_debian_and_the_changelog_name_the_same_version(program):
    """C10: the newest release of CHANGELOG.md is the version of the program and of the package."""
    version = re.search(r"^  version: '([\d.]+)',$", (ROOT / "meson.build").read_text(), re.M)[1]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", headings[1])
    assert (ROOT / "debian/changelog").read_text().startswith(f"freshet ({version}-1) ")
    assert output(program, "--version").splitlines()[0] == f"freshet {version}"


def test_the_version_names_commit_build_and_schemas(program):
    lines = output(program, "--version").splitlines()
    assert re.fullmatch(r"commit: [0-9a-f]{12}\+? \(\d{4}-\d\d-\d\d\)", lines[1])
    assert lines[2].startswith("build: release, ")
    schemas = dict(word.split() for word in lines[3].removeprefix("schema: ").split(", "))
    for module, number in schemas.items():
        last = max(path.name for path in (ROOT / "sql" / module).glob("[0-9]*.sql"))
        assert int(last[:3]) == int(number), module
    assert set(schemas) == {path.name for path in (ROOT / "sql").iterdir() if list(path.glob("[0-9]*.sql"))}


def test_the_version_of_a_package_between_releases_is_newer_than_the_release(package):
    version = output("dpkg-deb", "-f", package, "Version").strip()
    released = re.match(r"freshet \((.*?)\)", (ROOT / "debian/changelog").read_text())[1]
    subprocess.run(["dpkg", "--compare-versions", version, "ge", released], check=True)
    major, minor, patch = released.removesuffix("-1").split(".")
    subprocess.run(["dpkg", "--compare-versions", version, "lt", f"{major}.{minor}.{int(patch) + 1}~"], check=True)


def test_an_archive_of_the_sources_knows_its_commit(tmp_path):
    """Without git: the archive was made by it."""
    commit = output("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD", "tools"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive, check=True)
    source = tmp_path / "commit.c"
    output(tmp_path / "tools/embed_commit.py", "--source", source)
    assert f'app_commit[] = "{commit[:12]}";\n' in source.read_text()
    shutil.copy(ROOT / "tools/commit.txt", tmp_path / "tools")  # neither an archive nor a repository
    output(tmp_path / "tools/embed_commit.py", "--source", source)
    assert 'app_commit[] = "unknown";\n' in source.read_text()


# ---- manual pages ----

@pytest.fixture(name="manual", scope="module", params=["man1/freshet.1", "man5/freshet.yaml.5"])
def manual_page(request, tree, tmp_path_factory):
    page = tmp_path_factory.mktemp("man") / Path(request.param).name
    page.write_text(output("zcat", tree / f"usr/share/man/{request.param}.gz"))
    return page


def test_the_manual_pages_are_read_without_a_warning(manual):
    assert output("mandoc", "-T", "lint", "-W", "warning", manual) == ""
    assert output("groff", "-ww", "-man", "-Tutf8", "-z", manual) == ""
    assert manual.read_text().isascii()


def read_page(page):
    return output("sh", "-c", f"MANWIDTH=1000 man -P cat -l {page} | col -bx")


def test_the_manual_names_every_command_option_and_setting(tree, program, tmp_path):
    pages = {}
    for name in ["man1/freshet.1", "man5/freshet.yaml.5"]:
        path = tmp_path / Path(name).name
        path.write_text(output("zcat", tree / f"usr/share/man/{name}.gz"))
        pages[path.name] = read_page(path)
    commands = re.findall(r"^  (\w+) +\w", output(program, "--help"), re.M)
    assert len(commands) > 10
    for command in commands:
        section = re.search(rf"^   freshet {command}\b.*\n((?:       .*\n|\n)+)", pages["freshet.1"], re.M)
        for option in re.findall(r"^  (--[\w-]+(?: \S+)?)  ", output(program, command, "--help"), re.M):
            assert option == "--help" or re.search(rf"^ +{re.escape(option)}", section[1], re.M), (command, option)
    settings = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/CONFIG.md").read_text(), re.M)
    assert len(settings) > 100
    missing = [name for name in settings if not re.search(rf"^ +{re.escape(name)}$", pages["freshet.yaml.5"], re.M)]
    assert missing == []


# ---- completion ----

COMPLETED = [
    ("freshet man", "freshet manual"),
    ("freshet serve --ro", "freshet serve --roles"),
    ("freshet serve --roles que", "freshet serve --roles query"),
    ("freshet serve --roles query,rel", "freshet serve --roles query,relay"),
    ("freshet serve --config some-c", "freshet serve --config some-config.yaml"),
    ("freshet serve --config=some-c", "freshet serve --config=some-config.yaml"),
    ("freshet outbox repu", "freshet outbox republish"),
    ("freshet outbox list --state in_f", "freshet outbox list --state in_flight"),
    ("freshet dlq --status disc", "freshet dlq --status discarded"),
    ("freshet load demo COUNTRY some-c", "freshet load demo COUNTRY some-config.yaml"),
    ("freshet help ver", "freshet help verify"),
    ("freshet completion z", "freshet completion zsh"),
    ("freshet get demo some-c", "freshet get demo some-c"),  # no file belongs here
]


@pytest.mark.parametrize("name, script", [("bash", "usr/share/bash-completion/completions/freshet"),
                                          ("zsh", "usr/share/zsh/vendor-completions/_freshet")])
def test_the_shell_completes_commands_options_and_values(name, script, tree, tmp_path):
    (tmp_path / "some-config.yaml").touch()
    shell = Shell(name, tree / script, tmp_path)
    try:
        assert [(line, shell.complete(line)) for line, _ in COMPLETED] == COMPLETED
    finally:
        shell.close()


# ---- systemd ----

def units_of(tree, folder):
    """A root with these units and what they refer to."""
    shutil.copytree(tree, folder, symlinks=True)
    (folder / "bin").mkdir()
    shutil.copy("/bin/sh", folder / "bin")
    for unit in Path("/lib/systemd/system").glob("*.target"):
        if not unit.is_symlink():
            shutil.copy(unit, folder / "lib/systemd/system")
    return folder


def test_systemd_accepts_the_units(tree, tmp_path):
    root = units_of(tree, tmp_path / "root")
    verify = ["systemd-analyze", "verify", "--man=no", f"--root={root}"]
    assert output(*verify, "freshet.service", "freshet@query.service") == ""
    unit = root / "lib/systemd/system/freshet.service"
    unit.write_text(unit.read_text().replace("UMask=", "Umask="))
    assert "Unknown key 'Umask'" in output(*verify, "freshet.service")  # it would have been seen


@pytest.mark.parametrize("unit", ["freshet.service", "freshet@.service"])
def test_the_units_leave_little_to_an_attacker(unit, tree):
    output("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", tree / "lib/systemd/system" / unit)


def test_the_units_and_the_example_name_files_that_are_installed(tree):
    for unit in ["freshet.service", "freshet@.service"]:
        text = (tree / "lib/systemd/system" / unit).read_text()
        start = re.search(r"^ExecStart=(\S+) serve", text, re.M)[1]
        assert (tree / start.lstrip("/")).exists()
        assert (tree / "etc/default/freshet").exists() and "EnvironmentFile=-/etc/default/freshet\n" in text
        assert "FRESHET_CONFIG=/etc/freshet/freshet.yaml" in text


def test_the_example_configuration_is_valid_and_safe(tree, program):
    """C5: who has no token is refused, and nobody on another machine can ask."""
    example = tree / "etc/freshet/freshet.yaml"
    assert output(program, "config", "--config", example, env={}) == f"{example}: ok\n"
    text = example.read_text()
    assert "listen: ${FRESHET_LISTEN:127.0.0.1:8080}" in text and "jwksFile:" in text and "enabled: false" not in text


# ---- Debian ----

def test_lintian_has_nothing_to_say(package):
    command = ["lintian", "--allow-root", "--show-overrides", "--tag-display-limit=0"]
    done = subprocess.run([*command, str(package)], capture_output=True, text=True, check=False, timeout=120)
    assert [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")] == []
    overridden = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("O:")}
    assert overridden == {"initial-upload-closes-no-bugs", "maintainer-script-calls-systemctl", "non-standard-file-perm"}


def test_the_package_depends_on_every_library_of_the_program(package, program):
    depends = output("dpkg-deb", "-f", package, "Depends")
    needed = re.findall(r"NEEDED +(\S+)", output("objdump", "-p", program))
    assert {"libpq.so.5", "libssl.so.3"} <= set(needed)
    for library in needed:  # another package may have it for another architecture
        owners = re.findall(r"^(\S+?)(?::\w+)?: /\S*/%s$" % re.escape(library), output("dpkg", "-S", f"*/{library}"), re.M)
        assert any(re.search(rf"\b{re.escape(owner)}(?![\w-])", depends) for owner in owners), (library, owners)


def test_configuration_files_are_known_to_dpkg(package):
    listed = output("dpkg-deb", "--info", package, "conffiles").split()
    assert sorted(listed) == ["/etc/default/freshet", "/etc/freshet/freshet.yaml"]
