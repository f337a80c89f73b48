#!/usr/bin/env python3
"""Prints "PASSED FAILED" of a results file: Meson's log in JSON or a JUnit XML. With --passed or --failed in front of it, the
names of the latter's tests as pytest takes them; with --failed also of Meson's programs.

A cmocka program counts as its test functions; one that fails beyond them (a crash, a sanitizer's report at
exit, a timeout) adds a failure of its own. Skipped tests count as neither. A missing file counts nothing. --failed names a
test once for each failure, since one may fail and leave something behind as well, and leaves out those where a sanitizer or a
crash had its say: it is meant for a second try, and those need none.
"""
import json
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

PASSED = re.compile(r"^\[  PASSED  \] (\d+) test\(s\)\.$", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) test\(s\)", re.M)
NO_SECOND_TRY = re.compile(r"Sanitizer|runtime error:|ended with -\d|exit status -\d")
NOTHING = "<testsuites/>"
# What a failed assertion leaves behind, since it leaves its function at once.
LEAKED = re.compile(r"ERROR: LeakSanitizer: detected memory leaks|SUMMARY: AddressSanitizer: \d+ byte\(s\) leaked")
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


def meson_names(text):
    """Of programs that may be tried again, for each of their functions that failed."""
    for line in text.splitlines():
        run = json.loads(line)
        output = (run.get("stdout") or "") + "\n" + (run.get("stderr") or "")
        if run["result"] == "FAIL" and run["returncode"] > 0 and not NO_SECOND_TRY.search(LEAKED.sub("", output)):
            yield from [run["name"].split(" / ")[-1]] * sum(map(int, FAILED.findall(output)))


def junit_cases(text):
    """(name, has passed, whatever was said of its failure) of each that was not skipped."""
    for case in xml.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        bad = case.findall("failure") + case.findall("error")
        if bad or case.find("skipped") is None:
            yield name, not bad, "".join(case.itertext()) + "".join(part.get("message") or "" for part in bad)


def count_junit(text):
    passed = [has_passed for _, has_passed, _ in junit_cases(text)]
    return passed.count(True), passed.count(False)


def names(text, passed):
    """Of those that passed; or of those that failed and may be tried again, for each time they failed."""
    return [name for name, has_passed, said in junit_cases(text)
            if has_passed == passed and (passed or not NO_SECOND_TRY.search(said))]


def main():
    *options, path = sys.argv[1:]
    path = Path(path)
    text = path.read_text() if path.exists() else ""
    if options == ["--failed"] and path.suffix == ".json":
        sys.stdout.writelines(f"{name}\n" for name in meson_names(text))
    elif options:
        sys.stdout.writelines(f"{name}\n" for name in names(text or NOTHING, options == ["--passed"]))
    elif path.suffix == ".xml":
        print(*count_junit(text or NOTHING))
    else:
        print(*count_meson(text))


if __name__ == "__main__":
    main()
