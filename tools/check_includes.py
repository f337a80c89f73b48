#!/usr/bin/env python3
"""Checks every #include under src/ against tools/layers.txt.

A project header is written as "folder/name.h" from src/; a header beside the file may not be included by
its bare name, so that a line always says which layer it reaches into.
"""
import fnmatch
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def read_layers(path):
    """Returns {folder: layer} and [(header pattern, folder)]."""
    layers, owners = {}, []
    for line in path.read_text().splitlines():
        words = line.split("#", 1)[0].split()
        if words:
            layers[words[1]] = int(words[0])
            owners += [(pattern, words[1]) for pattern in words[2:]]
    return layers, owners


def folder_of(path, layers):
    """The folder of layers.txt that holds a path relative to src/ (modules are two names deep)."""
    parts = path.split("/")
    for depth in (2, 1):
        folder = "/".join(parts[:depth])
        if len(parts) > depth and folder in layers:
            return folder
    return None


def check_project_header(here, header, layers, src):
    there = folder_of(header, layers)
    if there is None:
        return f'"{header}" must be written as "folder/name.h" with a folder of tools/layers.txt'
    if not (src / header).exists():
        return f'"{header}" does not exist'
    if there != here and layers[there] >= layers[here]:
        return f"{here} (layer {layers[here]}) may not include {there} (layer {layers[there]})"
    return None


def check_system_header(here, header, owners):
    allowed = [folder for pattern, folder in owners if fnmatch.fnmatch(header, pattern)]
    if allowed and here not in allowed:
        return f"<{header}> belongs to {', '.join(allowed)}"
    return None


def check(root):
    """Yields one line for every wrong include under root/src."""
    layers, owners = read_layers(root / "tools" / "layers.txt")
    src = root / "src"
    for path in sorted(src.rglob("*.[ch]")):
        name = path.relative_to(src).as_posix()
        here = folder_of(name, layers)
        if here is None:
            yield f"src/{name}: its folder is not in tools/layers.txt"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, header = match[1] == '"', match[2]
            if quoted:
                wrong = check_project_header(here, header, layers, src)
            else:
                wrong = check_system_header(here, header, owners)
            if wrong:
                yield f"src/{name}:{number}: {wrong}"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    wrong = list(check(root))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
