#!/usr/bin/env python3
"""Turns the numbered migrations of one module into a C table.

    embed_sql.py --module refdata --output refdata_migrations.c sql/refdata/001_base.sql …

writes

    const struct db_migration refdata_migrations[] = {
        {1, "base", "…"},
        {0, NULL, NULL},
    };

In the module's meson.build:

    refdata_migrations = custom_target(
      'refdata_migrations',
      input: files('../../../sql/refdata/001_base.sql', '../../../sql/refdata/002_more.sql'),
      output: 'refdata_migrations.c',
      command: [find_program('../../../tools/embed_sql.py'),
                '--module', 'refdata', '--output', '@OUTPUT@', '@INPUT@'],
    )
    refdata_lib = static_library('refdata', refdata_migrations, 'dictionary.c', ...)

and in one of its headers:

    extern const struct db_migration refdata_migrations[]; /* sql/refdata */
"""
import argparse
import re
import sys
from pathlib import Path

FILE_NAME = re.compile(r"^(\d{3})_([a-z0-9_]+)\.sql$")


def c_string(text):
    """Bytes of `text` as C string literals, one per line, readable where they can be."""
    escapes = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\t"): "\\t", ord("?"): "\\?"}
    for line in text.splitlines(keepends=True):
        body = "".join(
            escapes.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
            for byte in line.rstrip("\n").encode()
        )
        yield f'     "{body}' + ('\\n"' if line.endswith("\n") else '"')


def read_migrations(paths):
    """[(number, name, text)] in order; exits when the files are not numbered 001, 002, … without a gap."""
    migrations = []
    for path in sorted(paths, key=lambda each: each.name):
        match = FILE_NAME.match(path.name)
        if not match:
            sys.exit(f"{path}: must be named NNN_name.sql")
        text = path.read_text(encoding="utf-8")
        if "\0" in text or not text.strip():
            sys.exit(f"{path}: is empty or holds a NUL byte")
        migrations.append((int(match[1]), match[2], text))
    numbers = [number for number, _, _ in migrations]
    if numbers != list(range(1, len(numbers) + 1)):
        sys.exit(f"the migrations must be numbered 001, 002, … without gap or repetition, not {numbers}")
    return migrations


def render(module, migrations):
    yield f"/* Made by tools/embed_sql.py from sql/{module}. Not to be edited. */"
    yield '#include "db/db.h"'
    yield ""
    yield f"extern const struct db_migration {module}_migrations[];"
    yield f"const struct db_migration {module}_migrations[] = {{"
    for number, name, text in migrations:
        yield f'    {{{number}, "{name}",'
        yield from c_string(text)
        yield "    },"
    yield "    {0, NULL, NULL},"
    yield "};"


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--module", required=True, help="the table is <module>_migrations")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("files", nargs="+", type=Path, metavar="NNN_name.sql")
    options = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.module):
        parser.error("a module's name is [a-z][a-z0-9_]*")
    options.output.write_text("\n".join(render(options.module, read_migrations(options.files))) + "\n")


if __name__ == "__main__":
    main()
