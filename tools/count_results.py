#!/usr/bin/env python3
"""Prints "PASSED FAILED" of a results file: Meson's testlog.json or a JUnit XML.

A cmocka program counts as its test functions; one that fails beyond them (a crash, a sanitizer's report at
exit, a timeout) adds a failure of its own. Skipped tests count as neither. A missing file counts nothing.
"""
import json
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.$", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) test\(s\)", re.M)
MESON_GOOD = {"OK", "EXPECTEDFAIL"}


def count_meson(text):
    passed = failed = 0
    for line in text.splitlines():
        run = json.loads(line)
        if run["result"] == "SKIP":
            continue
        output = (run.get("stdout") or "") + "\n" + (run.get("stderr") or "")
        bad = sum(map(int, FAILED.findall(output)))
        if run["result"] in MESON_GOOD:
            passed += sum(map(int, PASSED.findall(output))) or 1
        else:
            passed += sum(map(int, PASSED.findall(output)))
            failed += bad or 1
    return passed, failed


def count_junit(text):
    passed = failed = 0
    for case in xml.fromstring(text).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def main():
    path = Path(sys.argv[1])
    if not path.exists():
        counts = (0, 0)
    elif path.suffix == ".xml":
        counts = count_junit(path.read_text())
    else:
        counts = count_meson(path.read_text())
    print(*counts)


if __name__ == "__main__":
    main()
