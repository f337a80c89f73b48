"""./dev and the tools behind it, as far as they can be tried without building anything."""
import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest

from lib.wait import eventually

COMMANDS = ["run", "test", "stack", "freshet", "psql", "build", "lint", "bench", "down"]


@pytest.fixture
def dev(root, clean_env, var):
    """dev(args…) runs ./dev with a var/ of its own."""

    def call(*args, **env):
        return subprocess.run([root / "dev", *args], env={**clean_env, "FRESHET_VAR": str(var), **env},
                              text=True, capture_output=True, timeout=120, check=False)

    return call


def load_tool(root, name):
    spec = importlib.util.spec_from_file_location(name, root / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("args", [["help"], ["--help"], ["-h"]])
def test_help_names_every_command_and_variable(dev, args):
    done = dev(*args)
    assert done.returncode == 0
    for word in [*COMMANDS, "FRESHET_VAR", "FRESHET_PORT", "FRESHET_CONFIG", "FRESHET_KAFKA_JARS"]:
        assert word in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(dev, command):
    done = dev("help", command)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: ./dev {command}")


@pytest.mark.parametrize("args, told", [
    ([], "usage:"),
    (["frehset"], "no command 'frehset'"),
    (["help", "frehset"], "no command 'frehset'"),
    (["build", "fast"], "no flavour 'fast'"),
    (["stack"], "up down status"),
    (["stack", "sideways"], "up down status"),
    (["test", "everything"], "no suite 'everything'"),
    (["run", "fast"], "no argument 'fast'"),
    (["down", "now"], "no arguments"),
])
def test_a_mistyped_call_is_explained_and_exits_2(dev, args, told):
    done = dev(*args)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stdout == ""


def test_down_with_nothing_running_is_quiet_and_leaves_nothing(dev, var):
    done = dev("down")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(var.iterdir()) == []


def test_stack_status_with_nothing_running_fails(dev):
    done = dev("stack", "status")
    assert done.returncode == 1
    assert done.stdout == ""


def test_a_port_that_is_no_number_is_refused(dev):
    assert "FRESHET_PORT" in dev("run", FRESHET_PORT="http").stderr


def addresses(status):
    """{name: [address, …]} of what `stack status` prints."""
    return {name: address.split(",") for name, address in (line.split() for line in status.stdout.splitlines())}


def answers(address):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10):
        return True


def test_stack_goes_up_is_mended_keeps_its_data_and_goes_down(dev, var):
    """Everything a `stack up` promises, in one life, since each costs seconds."""
    try:
        up = dev("stack", "up")
        assert up.returncode == 0, up.stderr
        first = addresses(dev("stack", "status"))
        assert list(first) == ["postgres", "redis", "nats", "kafka"]
        assert len(first["redis"]) == 3
        if first["kafka"] == ["unavailable"]:  # Maven Central can't be reached: it says so, and the rest works
            assert "Maven Central" in up.stderr
            del first["kafka"]
        assert all(answers(address) for each in first.values() for address in each)
        assert dev("psql", "-XqAt", "-c", "select 40 + 2").stdout == "42\n"
        assert (var / "pg/url").stat().st_mode & 0o077 == 0
        without_password = subprocess.run(
            ["psql", "-w", "-h", "127.0.0.1", "-p", first["postgres"][0].split(":")[1], "-U", "freshet", "-c", "select 1"],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, capture_output=True, check=False)
        assert without_password.returncode != 0

        redis = ["redis-cli", "-c", "-p", first["redis"][0].split(":")[1]]
        assert subprocess.run([*redis, "set", "kept", "yes"], capture_output=True, check=True).stdout == b"OK\n"
        for name in ["redis-2", "nats"]:
            os.kill(int((var / "engines" / name / "pid").read_text().split()[0]), signal.SIGKILL)
        with contextlib.closing(psycopg2.connect((var / "pg/url").read_text().strip())) as client:
            cursor = client.cursor()
            cursor.execute("select split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int")
            os.kill(cursor.fetchone()[0], signal.SIGKILL)  # under a client: its port is then in use for some time
            died = eventually(lambda: dev("stack", "status") if dev("stack", "status").returncode else None)
        assert died.stdout.startswith("postgres down\nredis down\nnats down\n") and "stack up" in died.stderr
        assert dev("stack", "up").returncode == 0
        again = addresses(dev("stack", "status"))
        assert {name: again[name] for name in first} == first  # where those who are connected find them
        assert subprocess.run([*redis, "get", "kept"], capture_output=True, check=True).stdout == b"yes\n"
    finally:
        down = dev("down")
    assert (down.returncode, down.stdout) == (0, "")
    assert dev("stack", "status").returncode == 1
    assert not any(str(var) in command for command in commands_running())


def commands_running():
    """Command lines and folders of all processes that can be seen."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (entry / "cmdline").read_text() + " " + os.readlink(entry / "cwd")


def test_layers_hold(root):
    assert list(load_tool(root, "check_includes").check(root)) == []


@pytest.mark.parametrize("file, line, told", [
    ("loop/a.c", '#include "http/http.h"', "may not include http"),
    ("http/a.c", '#include "db/db.h"', "may not include db"),
    ("modules/chat/a.c", '#include "modules/refdata/refdata.h"', "may not include modules/refdata"),
    ("http/a.c", "# include <sys/epoll.h>", "belongs to loop"),
    ("kernel/a.c", "#include <openssl/evp.h>", "belongs to http, auth, bus"),
    ("base/a.c", '#include "str.h"', "must be written as"),
    ("kernel/a.c", '#include "base/gone.h"', "does not exist"),
    ("elsewhere/a.c", "#include <stdio.h>", "not in tools/layers.txt"),
])
def test_a_wrong_include_is_found(root, tmp_path, file, line, told):
    (tmp_path / "tools").mkdir()
    shutil.copy(root / "tools/layers.txt", tmp_path / "tools")
    for name in ["http/http.h", "db/db.h", "modules/refdata/refdata.h", "base/str.h", file]:
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "src" / file).write_text(line + "\n")
    (wrong,) = load_tool(root, "check_includes").check(tmp_path)
    assert wrong.startswith(f"src/{file}") and told in wrong


def test_results_are_counted_by_test_function_and_never_flattered(root):
    tool = load_tool(root, "count_results")
    good = {"result": "OK", "stderr": "[  PASSED  ] 3 test(s).\n"}
    bad = {"result": "FAIL", "stderr": "[  PASSED  ] 2 test(s).\n[  FAILED  ] 1 test(s), listed below:\n"}
    crash = {"result": "FAIL", "stdout": "[  PASSED  ] 4 test(s).\n", "stderr": "ERROR: LeakSanitizer"}
    plain = {"result": "OK"}
    log = "\n".join(map(json.dumps, [good, bad, crash, plain, {"result": "SKIP"}]))
    assert tool.count_meson(log) == (3 + 2 + 4 + 1, 2)
    junit = "<testsuites><testsuite><testcase/><testcase><failure/></testcase><testcase><error/></testcase>" \
            "<testcase><skipped/></testcase></testsuite></testsuites>"
    assert tool.count_junit(junit) == (1, 2)


def test_only_what_no_sanitizer_and_no_crash_spoke_of_is_tried_again(root):
    cases = {"fine": "", "gone": "<skipped/>", "late[a::b.c]": '<failure message="False after 60 s"/>',
             "race": "<failure>WARNING: ThreadSanitizer: data race</failure>", "leak": '<error message="LeakSanitizer"/>',
             "crash": "<failure>the server ended with -11:</failure>"}
    junit = "".join(f'<testcase classname="test_x" name="{name}">{said}</testcase>' for name, said in cases.items())
    twice = '<testcase classname="test_x" name="late[a::b.c]"><error message="left behind"/></testcase>'
    tool = load_tool(root, "count_results")
    assert tool.names(f"<testsuite>{junit}{twice}</testsuite>", passed=True) == ["test_x.py::fine"]
    assert tool.names(f"<testsuite>{junit}{twice}</testsuite>", passed=False) == ["test_x.py::late[a::b.c]"] * 2


def test_programs_are_tried_again_unless_they_crashed(root):
    failed = "[  FAILED  ] 2 test(s), listed below:"
    runs = [("fine", "OK", 0, ""), ("late", "FAIL", 1, failed), ("race", "FAIL", 1, "WARNING: ThreadSanitizer: data race"),
            ("crash", "FAIL", -11, failed), ("slow", "TIMEOUT", 1, failed), ("leak", "FAIL", 1, "ERROR: LeakSanitizer: detected memory leaks"),
            ("late leak", "FAIL", 23, failed + "ERROR: LeakSanitizer: detected memory leaks")]
    log = "\n".join(json.dumps({"name": f"freshet:x / {name}", "result": result, "returncode": code, "stdout": said})
                    for name, result, code, said in runs)
    assert list(load_tool(root, "count_results").meson_names(log)) == ["late"] * 2 + ["late leak"] * 2


def test_bench_installs_every_python_module_that_it_imports(root):
    packages = (root / "tools/dev/packages.sh").read_text()
    sets = [re.search(f"PACKAGES_{name}='(.*?)'", packages, re.DOTALL).group(1) for name in ("RUN", "BENCH")]
    imported = set()
    for file in [root / "bench/run", *(root / "bench/harness").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"harness", "lib"}
    assert "jwt" in others
    assert others <= set(re.findall(r"^py:(\w+)", "\n".join(sets), re.MULTILINE))


def test_bench_compare_prints_both_builds_and_names_what_this_one_misses(root, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("bench_report", root / "bench/harness/report.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    comparison = report.Comparison("write", ["this", "HEAD~1"])
    for this, other in [(3.0, 2.0), (6.0, 3.0), (4.5, 3.0)]:
        reports = {"HEAD~1": report.Report("write"), "this": report.Report("write")}
        for build, value in (("this", this), ("HEAD~1", other)):
            reports[build].verdict("commit", value, 4)
            reports[build].figure("rate", value, more_is_better=True)
        comparison.add_round(reports)
    assert comparison.finish(tmp_path) == ["write: commit"]
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert re.fullmatch(r"\s+commit +4\.50 \(3\.00–6\.00\) +3\.00 \(2\.00–3\.00\) +1\.50 +≤ 4 +FAIL", rows["commit"])
    assert "more is better" in rows["rate"] and "FAIL" not in rows["rate"]
    targets = json.loads((tmp_path / "write.compare.json").read_text())["targets"]
    assert targets[0]["values"] == {"this": [3.0, 6.0, 4.5], "HEAD~1": [2.0, 3.0, 3.0]}


def test_bench_compare_refuses_a_commit_that_is_not_there(root):
    done = subprocess.run([root / "dev", "bench", "write", "--compare", "no-such-commit"], text=True, capture_output=True, check=False)
    assert (done.returncode, "there is no commit 'no-such-commit' here" in done.stderr) == (2, True)
