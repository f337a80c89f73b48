#!/usr/bin/env python3
"""Checks that files of src/ stay short and that nothing unfinished is left in the tree.

Over 500 lines is a warning, over 600 an error: split by noun.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARN_LINES, MAX_LINES = 500, 600
# Spelt in two halves, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
FOLDERS = ("src", "tests", "bench", "tools", "sql", "config", "docs", ".ci")
TEXT = {".c", ".h", ".py", ".sh", ".sql", ".yaml", ".md", ".build", ".txt", ""}


def text_files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT and "corpus" not in path.parts:
                yield path
    yield from (root / name for name in ("dev", "meson.build", "README.md") if (root / name).exists())


def main():
    failed = False
    for path in text_files(ROOT):
        name = path.relative_to(ROOT)
        lines = path.read_text(errors="replace").splitlines()
        if name.parts[0] == "src" and len(lines) > WARN_LINES:
            failed |= len(lines) > MAX_LINES
            verdict = "too long" if len(lines) > MAX_LINES else "getting long"
            print(f"{name}: {len(lines)} lines, {verdict}: split it by noun", file=sys.stderr)
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                failed = True
                print(f"{name}:{number}: unfinished: {line.strip()}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
