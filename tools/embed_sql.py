#!/usr/bin/env python3
"""Turns the numbered migrations of one module into a C table.

    embed_sql.py --module refdata --output refdata_migrations.c sql/refdata/001_base.sql …

writes

    const struct db_migration refdata_migrations[] = {
        {1, "base", "…", 0},
        {0, NULL, NULL, 0},
    };

A migration that programs before it do not survive says so in its opening comment, by a line of its own:

    -- oldest program: 014

The oldest program that works with the new schema is one that knows migration 014 of this module (docs/adr/0018). The last
column is that number.

A file called grants.sql is no migration: it is what a role needs to run the module, with :role for its name, and becomes

    const char refdata_grants[] = "…";

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
    extern const char refdata_grants[];
"""
import argparse
import itertools
import re
import sys
from pathlib import Path

OLDEST = re.compile(r"^-- oldest program:\s*(.*)$", re.MULTILINE)
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


def oldest_program(path, number, text):
    """What the opening comment says, 0 = nothing; exits when that is not the number of a migration up to this one."""
    opening = "\n".join(itertools.takewhile(lambda line: line.startswith("--"), text.splitlines()))
    said = OLDEST.findall(opening)
    if len(said) > 1 or len(said) != len(OLDEST.findall(text)):
        sys.exit(f"{path}: `-- oldest program:` stands once, in the opening comment")
    if not said:
        return 0
    if not re.fullmatch(r"\d{3}", said[0]) or not 1 <= int(said[0]) <= number:
        sys.exit(f"{path}: the oldest program is the number of a migration, 001 to {number:03}, not {said[0]!r}")
    return int(said[0])


def read_migrations(paths):
    """[(number, name, text, oldest program)] in order; exits when the files are not numbered 001, 002, … without a gap."""
    migrations = []
    for path in sorted(paths, key=lambda each: each.name):
        match = FILE_NAME.match(path.name)
        if not match:
            sys.exit(f"{path}: must be named NNN_name.sql")
        text = path.read_text(encoding="utf-8")
        if "\0" in text or not text.strip():
            sys.exit(f"{path}: is empty or holds a NUL byte")
        number = int(match[1])
        migrations.append((number, match[2], text, oldest_program(path, number, text)))
    numbers = [number for number, *_ in migrations]
    if numbers != list(range(1, len(numbers) + 1)):
        sys.exit(f"the migrations must be numbered 001, 002, … without gap or repetition, not {numbers}")
    return migrations


def render(module, migrations, grants):
    yield f"/* Made by tools/embed_sql.py from sql/{module}. Not to be edited. */"
    yield '#include "db/db.h"'
    yield ""
    yield f"extern const struct db_migration {module}_migrations[];"
    yield f"const struct db_migration {module}_migrations[] = {{"
    for number, name, text, oldest in migrations:
        yield f'    {{{number}, "{name}",'
        yield from c_string(text)
        yield f"     , {oldest}}},"
    yield "    {0, NULL, NULL, 0},"
    yield "};"
    for path in grants:
        yield f"extern const char {module}_grants[];"
        yield f"const char {module}_grants[] ="
        yield from c_string(path.read_text(encoding="utf-8"))
        yield "    ;"


def main():
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--module", required=True, help="the table is <module>_migrations")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("files", nargs="+", type=Path, metavar="NNN_name.sql")
    options = parser.parse_args()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.module):
        parser.error("a module's name is [a-z][a-z0-9_]*")
    grants = [path for path in options.files if path.name == "grants.sql"]
    migrations = read_migrations([path for path in options.files if path not in grants])
    options.output.write_text("\n".join(render(options.module, migrations, grants)) + "\n")


if __name__ == "__main__":
    main()
