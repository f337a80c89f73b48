#!/usr/bin/env python3
"""Finds the commit that this tree is of, and prints it in the form that is asked for.

    embed_commit.py --source commit.c   app_commit[] = "7a7955bd1c2e", app_commit_date[] = "2026-11-17"
    embed_commit.py --dist              the same file for `meson dist`, whose archives git does not make
    embed_commit.py --debian 0.1.0      the version of a Debian package: 0.1.0-1 of the commit that has the tag v0.1.0, else
                                        0.1.0+20261117012030.7a7955bd-1, which sorts after it and before 0.1.1

In an archive of git (`git archive`, a downloaded tarball) tools/commit.txt holds the commit: .gitattributes has git fill it in.
Elsewhere git is asked. A `+` after the commit means that files of the program have changed since.
"""
import argparse
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = Path("tools") / "commit.txt"
PROGRAM = ["src", "api", "sql", "meson.build", "tools", "deploy", "debian"]  # what program and package are made of


def git(*args):
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def find_commit():
    """(full hash or "unknown", seconds since 1970, tags, changed since?)"""
    stamp = (ROOT / STAMP).read_text()
    changed = False
    if stamp.startswith("$Format"):
        try:
            is_own = git("rev-parse", "--show-toplevel") == str(ROOT)  # not of a folder that this tree lies in
        except FileNotFoundError:
            is_own = False
        if not is_own:
            return "unknown", 0, [], False
        stamp = git("log", "-1", "--format=%H %ct %D")
        changed = git("diff", "--quiet", "HEAD", "--", *PROGRAM) is None
    commit, seconds, *names = stamp.replace(",", " ").split()
    tags = [name for before, name in zip(names, names[1:]) if before == "tag:"]
    return commit, int(seconds), tags, changed


def utc(seconds, form):
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)


def source():
    commit, seconds, _, changed = find_commit()
    yield "/* Made by tools/embed_commit.py. Not to be edited. */"
    yield "extern const char app_commit[], app_commit_date[];"
    yield f'const char app_commit[] = "{commit[:12]}{"+" * changed}";'
    yield f'const char app_commit_date[] = "{utc(seconds, "%Y-%m-%d")}";'


def debian(version):
    commit, seconds, tags, changed = find_commit()
    if f"v{version}" in tags and not changed:
        return f"{version}-1"
    return f"{version}+{utc(seconds, '%Y%m%d%H%M%S')}.{commit[:8]}{'+changed' * changed}-1"


def write_if_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--source", type=Path)
    form.add_argument("--dist", action="store_true")
    form.add_argument("--debian", metavar="VERSION")
    options = parser.parse_args()
    if options.source:
        write_if_changed(options.source, "\n".join(source()) + "\n")
    elif options.debian:
        print(debian(options.debian))
    else:
        commit, seconds, tags, _ = find_commit()
        (Path(os.environ["MESON_DIST_ROOT"]) / STAMP).write_text(f"{commit} {seconds} {' '.join(f'tag: {tag}' for tag in tags)}\n")


if __name__ == "__main__":
    sys.exit(main())
