"""`freshet watch`: R22 on the command line: every change once, whatever happens to the connection."""
import json
import os
import subprocess
import threading

import pytest

from lib.fake_pod import FakePod
from lib.freshet import binary, run
from lib.wait import free_port

GONE = (503, {"code": "UNAVAILABLE", "message": "not available right now, try again"})


@pytest.fixture
def fake():
    with FakePod() as pod:
        yield pod


def watch(fake, *options):
    return run("watch", "demo", "COUNTRY", *options, "--url", fake.url, "--token", "x")


def change(version, key):
    return {"version": version, "key": key, "op": "UPSERT", "payload": {"of": version}}


def printed(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_are_printed_as_they_come_without_heartbeats(fake):
    fake.streams = [[{"heartbeat": 4}, change(5, "a"), {"upToDate": 5}, {"heartbeat": 5},
                     {"version": 6, "key": "a", "op": "DELETE"}, change(7, "late")]]
    done = watch(fake, "--after", "4", "--count", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert printed(done) == [change(5, "a"), {"upToDate": 5}, {"version": 6, "key": "a", "op": "DELETE"}]
    assert fake.requests[0][1] == "/v1/tenants/demo/dictionaries/COUNTRY/watch?after=4"


def test_r22_after_a_break_nothing_is_lost_and_nothing_comes_twice(fake):
    """Cut off behind version 4: it goes on from there, and what was printed since is left out."""
    fake.streams = [[{"upToDate": 4}, change(5, "a"), change(6, "a"), change(6, "b"), b'{"version":6,"key'],
                    [change(5, "a"), change(6, "a"), change(6, "b"), change(6, "c"), {"upToDate": 6}],
                    [{"upToDate": 6}, {"heartbeat": 6}, change(10, "a")]]
    fake.troubles = [None, GONE, "break"]
    done = watch(fake, "--count", "5")
    assert done.returncode == 0
    assert printed(done) == [{"upToDate": 4}, change(5, "a"), change(6, "a"), change(6, "b"), change(6, "c"), {"upToDate": 6},
                             change(10, "a")]
    paths = [path.rsplit("/", 1)[1] for _, path, _ in fake.requests]
    assert paths == ["watch", "watch?after=4", "watch?after=4", "watch?after=4", "watch?after=6"]
    assert done.stderr.count("continuing from version") == 4


def test_a_line_may_come_in_pieces(fake):
    whole = (json.dumps(change(1, "a")) + "\n" + json.dumps(change(2, "b")) + "\n").encode()
    fake.streams = [[whole[i:i + 7] for i in range(0, len(whole), 7)]]
    assert printed(watch(fake, "--count", "2")) == [change(1, "a"), change(2, "b")]


def test_a_version_with_many_keys_is_resumed_too(fake):
    keys = [f"k{i}" for i in range(500)]
    fake.streams = [[change(2, key) for key in keys[:300]], [change(2, key) for key in keys]]
    done = watch(fake, "--count", "500")
    assert [line["key"] for line in printed(done)] == keys


def test_r22_versions_no_longer_kept_are_exit_3_with_a_way_out(fake):
    fake.troubles = [(410, {"code": "VERSION_TOO_OLD", "message": "changes since version 1 are no longer kept"})]
    done = watch(fake, "--after", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "410 VERSION_TOO_OLD" in done.stderr and "freshet get demo COUNTRY --all" in done.stderr


def test_a_refusal_and_a_pod_that_was_never_there_are_exit_1(fake):
    fake.troubles = [(404, {"code": "UNKNOWN_DICTIONARY", "message": "no such dictionary"})]
    done = watch(fake)
    assert (done.returncode, done.stdout) == (1, "") and "404 UNKNOWN_DICTIONARY" in done.stderr
    done = run("watch", "demo", "COUNTRY", "--url", f"http://127.0.0.1:{free_port()}", "--token", "x")
    assert (done.returncode, done.stdout) == (1, "")


def test_what_is_not_a_stream_of_changes_is_exit_1(fake):
    fake.streams = [[{"hello": 1}]]
    done = watch(fake)
    assert (done.returncode, done.stdout) == (1, "") and "not one of freshet's" in done.stderr


@pytest.mark.parametrize("words", [(), ("demo",), ("demo", "a/b"), ("demo", "D", "--after", "-1"), ("demo", "D", "--count", "0"),
                                   ("demo", "D", "more")])
def test_called_wrongly_is_exit_2(words):
    done = run("watch", *words, "--token", "x")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("freshet watch: ")


def test_what_a_server_answers_is_shown_without_what_moves_the_cursor(fake):
    fake.troubles = [(400, {"code": "\x1b[31mBAD", "field": "\x1b]0;title\x07", "message": "evil \x1b[2J\u202e\nsecond line"})]
    done = watch(fake)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "freshet watch: 400 ?[31mBAD: ?]0;title?: evil ?[2J? second line\n"


def test_a_line_without_an_end_takes_no_more_memory_than_a_line_may(fake):
    fake.streams = [[b"a" * (1 << 20)] * 300]
    with subprocess.Popen([binary(), "watch", "demo", "COUNTRY", "--url", fake.url, "--token", "x"], stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        said = process.stderr.read()
        guard.cancel()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert (process.returncode, "not one of freshet's" in said) == (1, True), said
    assert used.ru_maxrss < 300 << 10  # KiB; the line alone would have 300 MiB, and twice that where it grows
