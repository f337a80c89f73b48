"""Commands keep their time limits when a pod is frozen: it accepts connections and never answers (issue 15, point 3)."""
import json
import signal
import time

import pytest

from lib.freshet import run
from lib.refdata import pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import PATIENCE

LONG = 45  # s: more than any limit below even on a slow machine, and less than the minute that a call may take without one
EVENT = "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77"


@pytest.fixture
def frozen(serve, refdata_db, tmp_path):  # noqa: F811
    """A pod that was stopped by SIGSTOP while it served."""
    env = {"FRESHET_VAR": str(tmp_path / "var")}
    assert run("token", "--tenant", "demo", env=env).returncode == 0
    write_builtin(refdata_db, "D", {"a": 1}, 1)
    write_builtin(refdata_db, "E", {"a": 1}, 1)
    server = serve(refdata_db, pod("D", "E", auth={"jwksFile": str(tmp_path / "var/keys/jwks.json")}), env=env)
    server.process.send_signal(signal.SIGSTOP)
    yield server
    server.process.send_signal(signal.SIGCONT)


def call(server, *args):
    """The finished command, and how many seconds it took."""
    began = time.monotonic()
    done = run(*args, env={**server.env, "FRESHET_URL": f"http://127.0.0.1:{server.port}"}, timeout=2 * PATIENCE)
    return done, time.monotonic() - began


def commands(folder):
    """(exit status, words) of every command that calls a pod and ends by itself."""
    items = folder / "items.ndjson"
    items.write_text(json.dumps({"key": "a", "payload": 1}) + "\n")
    return [
        (["get", "demo", "D", "a", "--timeout", "2s"], 2),
        (["get", "demo", "D", "a", "b", "--timeout", "2s"], 2),
        (["get", "demo", "D", "--all", "--timeout", "2s"], 2),
        (["put", "demo", "D", "a", "1", "--patience", "2s"], 2),
        (["load", "demo", "D", items, "--patience", "2s"], 2),
        (["status", "demo", EVENT], 10),
        (["status", "demo", EVENT, "--wait", "2s"], 2),
    ]


def test_every_command_ends_at_its_limit(frozen, tmp_path):
    for args, limit in commands(tmp_path):
        done, seconds = call(frozen, *args)
        assert done.returncode == 1 and done.stdout == "", args
        assert "no answer within" in done.stderr, (args, done.stderr)
        assert limit * 0.9 <= seconds < LONG, args


def test_verify_asks_a_frozen_pod_once_and_compares_the_others(frozen, serve, refdata_db):  # noqa: F811
    """Both dictionaries, two pods: the frozen one costs its limit once."""
    server = serve(refdata_db, pod("D", "E", auth={"jwksFile": frozen.env["FRESHET_VAR"] + "/keys/jwks.json"}))
    urls = [f"http://127.0.0.1:{each.port}" for each in (frozen, server)]
    done, seconds = call(frozen, "verify", "--config", frozen.config_path, "--patience", "5s", "--url", urls[0], "--url", urls[1])
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == 4 and seconds < LONG
    assert [line for line in lines if line.startswith("FAILED")] == [
        f"FAILED demo/{code} at {urls[0]}: no answer within 5.0 s" for code in "DE"]
    assert "2 of 4 could not be compared" in done.stderr and "not equal" not in done.stderr


def test_a_limit_of_nothing_is_one_attempt_of_a_second(frozen):
    done, seconds = call(frozen, "verify", "demo/D", "--config", frozen.config_path, "--patience", "0")
    assert done.returncode == 1 and done.stdout.endswith(": no answer within 1.0 s\n") and seconds < LONG
