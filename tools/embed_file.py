#!/usr/bin/env python3
"""Turns one file into a constant of C: its bytes, the same bytes by gzip, and an ETag of each.

    embed_file.py --name kernel_openapi --type application/yaml --output kernel_openapi.c api/openapi.yaml

writes the definition of

    extern const struct http_fixed kernel_openapi;

or, without --type, that of its text alone:

    extern const struct str kernel_openapi_text;

The same file gives the same output: gzip's header has no time. The two forms have two ETags, since a strong one names the bytes.
"""
import argparse
import gzip
import hashlib
import re
from pathlib import Path

BYTES_PER_LINE = 20


def render_bytes(name, content):
    yield f"static const unsigned char {name}[] = {{"
    for at in range(0, len(content), BYTES_PER_LINE):
        yield "    " + ", ".join(map(str, content[at:at + BYTES_PER_LINE])) + ","
    yield "};"


def quoted(text):
    return f'{{"{text}", {len(text)}}}'


def tagged(tag):
    return f'{{"\\"{tag}\\"", {len(tag) + 2}}}'


def render_text(name, content):
    yield '#include "base/str.h"'
    yield ""
    yield f"extern const struct str {name}_text;"
    yield from render_bytes("bytes", content)
    yield f"const struct str {name}_text = {{(const char *)bytes, sizeof bytes}};"


def render_answer(options, content):
    tag = hashlib.sha256(content).hexdigest()[:32]
    yield '#include "http/http.h"'
    yield ""
    yield f"extern const struct http_fixed {options.name};"
    yield from render_bytes("plain", content)
    yield from render_bytes("packed", gzip.compress(content, 9, mtime=0))
    yield f"const struct http_fixed {options.name} = {{"
    yield f"    {quoted(options.type)},"
    yield f"    {{{{(const char *)plain, sizeof plain}}, {tagged(tag)}}},"
    yield f"    {{{{(const char *)packed, sizeof packed}}, {tagged(tag + '-gzip')}}},"
    yield "};"


def render(options, content):
    yield f"/* Made by tools/embed_file.py from {options.file.name}. Not to be edited. */"
    yield from render_answer(options, content) if options.type else render_text(options.name, content)


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--name", required=True, help="of the constant, or what is before its _text")
    parser.add_argument("--type", help="the Content-Type of an answer")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    content = options.file.read_bytes()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        parser.error("a name is [a-z][a-z0-9_]*")
    if not content:
        parser.error(f"{options.file} is empty")
    options.output.write_text("\n".join(render(options, content)) + "\n")


if __name__ == "__main__":
    main()
