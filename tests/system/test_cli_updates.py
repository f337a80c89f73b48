"""`freshet put`, `load`, `watch` and `status` against a real pod: R1, R2, R8, R22 from a terminal."""
import json
import os
import subprocess
import uuid

import pytest

from lib.freshet import SANITIZER, binary, run
from lib.refdata import lines_of, module_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    return module_serve(module_refdata_db, pod("PUT", "LOAD", "CUT", "WATCH"))


@pytest.fixture
def freshet(server, token):
    """freshet(command, dictionary, *words): run against the pod as tenant demo."""
    env = {"FRESHET_URL": f"http://127.0.0.1:{server.port}", "FRESHET_TOKEN": token("demo")}

    def run_command(command, *words):
        return run(command, "demo", *words, env=env)
    run_command.env = env
    return run_command


def all_of(freshet, code, version):
    return {item["key"]: item["payload"] for item in lines_of(freshet("get", code, "--all", "--min-version", version).stdout.encode())}


def test_r1_put_prints_the_version_that_a_reader_can_ask_for(freshet):
    for expected, words in enumerate([("a", "1.50"), ("b/ж", '{"x": [null]}'), ("a", "--delete")], 1):
        done = freshet("put", "PUT", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")
    assert all_of(freshet, "PUT", 3) == {"b/ж": {"x": [None]}}


def test_r1_the_same_event_again_has_no_second_effect(freshet):
    event = str(uuid.uuid4())
    first, second = (freshet("put", "PUT", "k", "1", "--event-id", event) for _ in range(2))
    assert first.stdout == second.stdout and second.returncode == 0
    other = freshet("put", "PUT", "k", "2", "--event-id", event)
    assert other.returncode == 1 and "409 EVENT_ID_CONFLICT" in other.stderr


def test_r2_status_follows_an_async_put_to_its_end(freshet):
    event = freshet("put", "PUT", "later", "true", "--async").stdout.strip()
    done = freshet("status", event, "--wait", "1m")
    state = json.loads(done.stdout)
    assert (done.returncode, state["eventId"], state["status"], state["dictCode"]) == (0, event, "COMMITTED", "PUT")
    assert freshet("get", "PUT", "later", "--min-version", str(state["committedVersion"])).returncode == 0


def test_r1_a_stale_revision_is_exit_1(freshet):
    assert freshet("put", "PUT", "r", "1", "--revision", "10").returncode == 0
    done = freshet("put", "PUT", "r", "2", "--revision", "9")
    assert done.returncode == 1 and "409 STALE_SOURCE_REVISION" in done.stderr


# ---- load ----

def write_lines(path, count, label):
    path.write_text("".join(json.dumps({"key": f"k{i}", "payload": {"i": i, "label": label}}) + "\n" for i in range(count)))
    return path


def test_r8_load_replaces_everything_as_one_version(freshet, tmp_path):
    big, small = write_lines(tmp_path / "big.ndjson", 12_000, "a"), write_lines(tmp_path / "small.ndjson", 3, "b")
    assert freshet("load", "LOAD", big, "--chunk-items", "1000").stdout.startswith("version 1: 12000 items")
    assert len(all_of(freshet, "LOAD", "1")) == 12_000
    assert freshet("load", "LOAD", small).stdout.startswith("version 2: 3 items")
    assert all_of(freshet, "LOAD", "2") == {f"k{i}": {"i": i, "label": "b"} for i in range(3)}
    assert freshet("load", "LOAD", small).stdout.startswith("version 2: holds this file already")
    assert freshet("put", "LOAD", "k0", "--delete").stdout == "3\n"
    assert freshet("load", "LOAD", small).stdout.startswith("version 4: 3 items")
    empty = tmp_path / "empty.ndjson"
    empty.write_text("")
    assert freshet("load", "LOAD", empty, "--yes").returncode == 0 and all_of(freshet, "LOAD", "5") == {}


def test_a_load_that_was_killed_is_gone_on_with(freshet, tmp_path, module_refdata_db):  # noqa: F811
    """kill -9 behind some of the chunks; the same command again makes one version of the whole file."""
    file = write_lines(tmp_path / "items.ndjson", 3000, "x")
    command = ["load", "demo", "CUT", str(file), "--chunk-items", "10"]
    there = "select count(*) from refdata.update_request where dict_code = 'CUT'"
    with subprocess.Popen([binary(), *command], env={**os.environ, **freshet.env}, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        eventually(lambda: module_refdata_db.query(there)[0][0] >= 20, interval=0.001)
        process.kill()
    assert 20 <= module_refdata_db.query(there)[0][0] < 300, "it was not cut off in the middle"
    done = run(*command, env=freshet.env)
    assert done.returncode == 0 and done.stdout.startswith("version 1: 3000 items"), done.stderr
    assert module_refdata_db.query(there)[0][0] == 300
    assert len(all_of(freshet, "CUT", "1")) == 3000


# ---- watch ----

def test_r22_watch_prints_changes_as_they_are_committed(freshet):
    assert freshet("put", "WATCH", "a", "1").stdout == "1\n"
    with subprocess.Popen([binary(), "watch", "demo", "WATCH", "--after", "1", "--count", "3"], text=True,
                          env={**os.environ, **freshet.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline()) == {"upToDate": 1}
        for version, words, change in ((2, ("a", "2"), {"key": "a", "op": "UPSERT", "payload": 2}),
                                       (3, ("b", '"x"'), {"key": "b", "op": "UPSERT", "payload": "x"}),
                                       (4, ("a", "--delete"), {"key": "a", "op": "DELETE"})):
            assert freshet("put", "WATCH", *words).stdout == f"{version}\n"
            assert json.loads(process.stdout.readline()) == {"version": version, **change}
            if version < 4:  # the last one that is wanted ends it
                assert json.loads(process.stdout.readline()) == {"upToDate": version}
        assert (process.stdout.read(), process.wait(), process.stderr.read()) == ("", 0, "")
    done = freshet("watch", "WATCH", "--after", "99")
    assert done.returncode == 1 and "409 VERSION_NOT_COMMITTED" in done.stderr and not SANITIZER.search(done.stderr)
