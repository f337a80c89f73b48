#!/usr/bin/env python3
"""Turns one file into two constants of C: its bytes, and an ETag made of its content.

    embed_file.py --name kernel_openapi --output kernel_openapi.c api/openapi.yaml

writes definitions for

    extern const struct str kernel_openapi_text;
    extern const struct str kernel_openapi_etag; /* with its quotes */
"""
import argparse
import hashlib
import re
from pathlib import Path

BYTES_PER_LINE = 20


def render(name, source, content):
    etag = hashlib.sha256(content).hexdigest()[:32]
    yield f"/* Made by tools/embed_file.py from {source.name}. Not to be edited. */"
    yield '#include "base/str.h"'
    yield ""
    yield f"extern const struct str {name}_text, {name}_etag;"
    yield "static const unsigned char bytes[] = {"
    for at in range(0, len(content), BYTES_PER_LINE):
        yield "    " + ", ".join(map(str, content[at:at + BYTES_PER_LINE])) + ","
    yield "};"
    yield f"const struct str {name}_text = {{(const char *)bytes, sizeof bytes}};"
    yield f'const struct str {name}_etag = {{"\\"{etag}\\"", {len(etag) + 2}}};'


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--name", required=True, help="the constants are <name>_text and <name>_etag")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    content = options.file.read_bytes()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        parser.error("a name is [a-z][a-z0-9_]*")
    if not content:
        parser.error(f"{options.file} is empty")
    options.output.write_text("\n".join(render(options.name, options.file, content)) + "\n")


if __name__ == "__main__":
    main()
