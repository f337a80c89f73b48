#!/usr/bin/env python3
"""Checks the files of console/: what comes from the server must become text, nothing may be kept, nothing may come from elsewhere.

The content security policy refuses most of this in the browser; here it is found before.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX, COLUMNS_MAX = 400, 140
# Of scripts: what parses markup or code, what keeps data, what leaves the server.
SCRIPT = {
    r"\b(inner|outer)HTML\b|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|setHTML": "parses markup: use text",
    r"\beval\s*\(|\bnew\s+Function\b|set(Timeout|Interval)\(\s*[\"'`]|javascript:": "runs text as code",
    r"localStorage|sessionStorage|indexedDB|document\.cookie|\bcaches\b|serviceWorker": "keeps something in the browser",
    r"https?://(?!www\.w3\.org/2000/svg\")|WebSocket|sendBeacon": "leaves the server",
    r"setAttribute\(\s*[\"']style|\bstyle:\s": "an inline style: use a class",
    r"console\.(log|debug)\(|\bdebugger\b|\balert\(": "left from debugging",
}
PAGE = {
    r"<script(?![^>]*\bsrc=)": "an inline script",
    r"\son\w+\s*=": "an inline handler",
    r"\sstyle\s*=|<style": "an inline style",
    r"https?://": "leaves the server",
}
STYLE = {r"@import|url\(\s*[\"']?(?!data:)": "loads something"}
RULES = {".js": SCRIPT, ".html": PAGE, ".css": STYLE, ".svg": {r"<script|\son\w+\s*=": "a script"}}


def problems(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".js" and len(lines) > LINES_MAX:
        yield 1, f"{len(lines)} lines: split it by noun"
    for number, line in enumerate(lines, 1):
        if path.suffix == ".js" and len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns"
        for pattern, reason in RULES[path.suffix].items():
            if re.search(pattern, line):
                yield number, reason


def main():
    failed = False
    for path in sorted((ROOT / "console").iterdir()):
        for number, reason in problems(path):
            failed = True
            print(f"console/{path.name}:{number}: {reason}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
