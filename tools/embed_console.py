#!/usr/bin/env python3
"""Turns the files of the console into one table of C: name, type, bytes, the same bytes by gzip, and an ETag of each.

    embed_console.py --output console_files.c console/index.html console/app.js …

writes the table that src/modules/ops/console.h declares. The same files give the same output: gzip's header has no time. Two encodings of
a file have two ETags, since a strong one names the bytes. All files by gzip must fit into WIRE_BYTES_MAX.
"""
import argparse
import gzip
import hashlib
import re
import sys
from pathlib import Path

BYTES_PER_LINE = 24
WIRE_BYTES_MAX = 100 * 1024
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def render_bytes(name, content):
    yield f"static const unsigned char {name}[] = {{"
    for at in range(0, len(content), BYTES_PER_LINE):
        yield "    " + ", ".join(map(str, content[at:at + BYTES_PER_LINE])) + ","
    yield "};"


def quoted(text):
    return f'{{"{text}", {len(text)}}}'


def tagged(content):
    tag = hashlib.sha256(content).hexdigest()[:32]
    return f'{{"\\"{tag}\\"", {len(tag) + 2}}}'


def render(files):
    rows = []
    yield "/* Made by tools/embed_console.py from the files of console/. Not to be edited. */"
    yield '#include "modules/ops/console.h"'
    for number, path in enumerate(files):
        content = path.read_bytes()
        packed = gzip.compress(content, 9, mtime=0)
        yield from render_bytes(f"text_{number}", content)
        yield from render_bytes(f"gzip_{number}", packed)
        rows.append(f"    {{{quoted(path.name)}, {{{quoted(TYPES[path.suffix])},\n"
                    f"      {{{{(const char *)text_{number}, sizeof text_{number}}}, {tagged(content)}}},\n"
                    f"      {{{{(const char *)gzip_{number}, sizeof gzip_{number}}}, {tagged(packed)}}}}}}},")
    yield "const struct ops_console_file ops_console_files[] = {"
    yield from rows
    yield "    {.name = {NULL, 0}},"
    yield "};"


def problem_of(files):
    for path in files:
        if path.suffix not in TYPES or not re.fullmatch(r"[a-z][a-z_]*\.[a-z]+", path.name):
            return f"{path.name}: not a name or a type for the console"
        if not path.read_bytes():
            return f"{path.name} is empty"
    wire = sum(len(gzip.compress(path.read_bytes(), 9, mtime=0)) for path in files)
    if wire > WIRE_BYTES_MAX:
        return f"the console has {wire} bytes over the wire; at most {WIRE_BYTES_MAX} are allowed"
    return None


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    problem = problem_of(options.files)
    if problem:
        sys.exit(f"embed_console.py: {problem}")
    options.output.write_text("\n".join(render(options.files)) + "\n")


if __name__ == "__main__":
    main()
