#!/usr/bin/env python3
"""Fetches modules from the Go module proxy and takes files out of them; checks each zip against tools/deploy/modules.txt.

    fetch.py schemas FOLDER      the schemas of Kubernetes, Istio and the Prometheus operator, one file each
    fetch.py toolchain FOLDER    a Go, for machines that have none: FOLDER/bin/go

$GOPROXY names the proxy, as for Go itself (the first one counts). A folder is there when it is whole.
"""
import hashlib
import io
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

LIST = Path(__file__).with_name("modules.txt")


def rows(kind):
    for line in LIST.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words and words[0] == kind:
            yield words[1:]


def proxy():
    """Of the Go modules: $GOPROXY, or what Go itself uses."""
    setting = os.environ.get("GOPROXY", "")
    if not setting and shutil.which("go"):
        setting = subprocess.run(["go", "env", "GOPROXY"], capture_output=True, text=True, check=False).stdout
    first = setting.strip().replace("|", ",").split(",")[0]
    if not first.startswith("http"):
        raise SystemExit("no proxy of Go modules is known: install Go, or set GOPROXY to its address")
    return first.rstrip("/")


def fetch(module, version, digest):
    """The module as a zip; fails when it is not the one that was pinned."""
    url = f"{proxy()}/{module}/@v/{version}.zip"
    with urllib.request.urlopen(url, timeout=120) as answer:
        content = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise SystemExit(f"{module} {version}: its sha256 is {found}, not {digest}")
    return zipfile.ZipFile(io.BytesIO(content))


def fetch_schemas(folder):
    for module, version, digest, *files in rows("schema"):
        archive = fetch(module, version, digest)
        for name in files:
            (folder / Path(name).name).write_bytes(archive.read(f"{module}@{version}/{name}"))


def fetch_toolchain(folder):
    (module, version, digest), = rows("toolchain")
    archive, prefix = fetch(module, version, digest), f"{module}@{version}/"
    for info in archive.infolist():
        target = folder / info.filename[len(prefix):]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(info))
        if target.parent.name == "bin" or "/pkg/tool/" in str(target):
            target.chmod(0o755)


def main():
    what = sys.argv[1]
    folder = Path(sys.argv[2])
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    {"schemas": fetch_schemas, "toolchain": fetch_toolchain}[what](fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        raise SystemExit(f"{proxy()} cannot be reached: {error}") from None
