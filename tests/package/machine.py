"""A clean Debian with systemd, PostgreSQL and nothing else of ours, which runs beside the machine's own system.

The root is made once by debootstrap, from the mirror that this machine uses, and kept under $FRESHET_VAR. A Machine is a copy of it
that boots in namespaces of its own (boot.sh) and is lost at the end."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SUITE = "bookworm"
PACKAGES = "systemd systemd-sysv dbus libpam-systemd postgresql curl ca-certificates man-db"
ENTER = ["nsenter", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
BOOT_SECONDS = 120


def mirror():
    """The first that apt would read this release from."""
    found = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"],
                           capture_output=True, text=True, check=True).stdout.split()
    return found[0] if found else pytest.fail(f"apt on this machine knows no mirror of {SUITE}")


def in_root(root, command):
    return subprocess.run(["chroot", str(root), "sh", "-ec", command], env=ENV, capture_output=True, text=True, check=False)


def make_root(root):
    """Debian with PACKAGES; services are not started meanwhile."""
    if os.geteuid() != 0:
        pytest.fail("a clean Debian is made and booted by root: run ./dev test package as root")
    half = root.with_name(root.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    made = subprocess.run(["debootstrap", "--variant=minbase", SUITE, str(half), mirror()], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-3000:]
    shutil.copy("/etc/resolv.conf", half / "etc/resolv.conf")
    policy = half / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    done = in_root(half, f"apt-get -q update; apt-get -q install -y --no-install-recommends {PACKAGES}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    policy.unlink()
    half.rename(root)


def fetch_dependencies(root, package):
    """Into apt's cache, since a Machine has no network."""
    shutil.copy(package, root / "root" / "freshet.deb")
    done = in_root(root, "apt-get -q install -y --no-install-recommends --download-only /root/freshet.deb")
    assert done.returncode == 0, done.stdout + done.stderr
    (root / "root" / "freshet.deb").unlink()


class Machine:
    def __init__(self, root, work):
        self.work = work
        self.process = subprocess.Popen([str(Path(__file__).with_name("boot.sh")), str(root), str(work)],  # pylint: disable=consider-using-with
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.first = self._find_first()
        self.wait_for("systemctl is-system-running --wait | grep -E 'running|degraded'")

    def _find_first(self):
        """systemd, as seen from here."""
        deadline = time.monotonic() + BOOT_SECONDS
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while time.monotonic() < deadline and self.process.poll() is None:
            for pid in children.read_text().split():
                if "systemd" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]:
                    return pid
            time.sleep(0.1)
        return pytest.fail(f"systemd does not start: {self.process.stderr.read() if self.process.poll() is not None else ''}")

    def try_run(self, command, **options):
        """(exit status, what it printed)"""
        done = subprocess.run([*ENTER, "-t", self.first, "bash", "-ec", f"cd /root\n{command}"], env=ENV, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, check=False, **options)
        return done.returncode, done.stdout

    def run(self, command):
        """What a command prints that has to succeed."""
        status, printed = self.try_run(command)
        assert status == 0, f"{command}\n{printed}\n{self.try_run('journalctl -u freshet -n 20 --no-pager')[1]}"
        return printed

    def wait_for(self, command, seconds=BOOT_SECONDS):
        deadline = time.monotonic() + seconds
        while self.try_run(command)[0] != 0:
            assert time.monotonic() < deadline, f"{command}\n{self.try_run('journalctl -n 40 --no-pager')[1]}"
            time.sleep(0.2)

    def put(self, source, target):
        """A file of this machine into that one."""
        with open(source, "rb") as file:
            subprocess.run([*ENTER, "-t", self.first, "cp", "/dev/stdin", target], stdin=file, check=True)

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._remove_cgroups()
        shutil.rmtree(self.work, ignore_errors=True)

    def _remove_cgroups(self):
        """Those of boot.sh, once the last process in them has ended."""
        (mount,) = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line][:1]
        folder = Path(mount) / f"freshet-test-{self.process.pid}"
        deadline = time.monotonic() + 30
        while "populated 1" in (folder / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        for each in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            each.rmdir()
        folder.rmdir()
