"""`freshet tail`: M3 on the command line: every event once, whatever happens to the connection; a dictionary too."""
import json
import subprocess

import pytest

from lib.chat import CHAT, FAST, Session, fresh
from lib.fake_pod import FakePod
from lib.freshet import binary, run
from lib.wait import eventually

PROJECT, SESSION = fresh(), fresh()
GONE = (503, {"code": "UNAVAILABLE", "message": "not available right now, try again"})


@pytest.fixture
def fake():
    with FakePod() as pod:
        yield pod


def tail(fake, *options):
    return run("tail", "demo", PROJECT, SESSION, *options, "--url", fake.url, "--token", "x")


def message(sequence, content="hi", role="user"):
    return {"event_id": fresh(), "event_type": "message_created", "sequence": sequence, "session_id": SESSION,
            "created_at": "2026-01-08T07:10:00.123456Z",
            "payload": {"event_id": fresh(), "message_id": fresh(), "role": role, "content": content}}


def switch(sequence):
    return {**message(sequence), "event_type": "agent_switched", "payload": {"from": "a", "to": "b", "routing_score": 1}}


def test_m3_a_line_a_message(fake):
    fake.streams = [[{"event_type": "heartbeat"}, message(1), message(2, "ж\n\x1b[2Jb\u009b\t\u202e", "assistant"),
                     {"event_type": "up_to_date", "sequence": 2}, {"event_type": "of the future"}, switch(3), message(4)]]
    done = tail(fake, "--count", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("07:10:00 #1 user: hi\n07:10:00 #2 assistant: ж\n    ?[2Jb?\t?\n07:10:00 #3 — a hands over to b\n"
                           "07:10:00 #4 user: hi\n")
    assert fake.requests[0][1] == f"/my/projects/{PROJECT}/chat/{SESSION}/stream"


def test_m3_after_a_break_nothing_is_lost_and_nothing_comes_twice(fake):
    lines = [message(number) for number in range(1, 6)]
    fake.streams = [[lines[0], lines[1], b'{"event_id":"'], [{"event_type": "cut_off", "sequence": 2}],
                    [lines[1], lines[2], lines[3]], [lines[4]]]
    fake.troubles = [None, GONE, "break"]
    done = tail(fake, "--json", "--count", "5")
    assert done.returncode == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == lines
    assert [path.rsplit("/", 1)[1] for _, path, _ in fake.requests] == [
        "stream", "stream?after=2", "stream?after=2", "stream?after=2", "stream?after=2", "stream?after=4"]
    assert done.stderr.count("continuing from sequence 2") == 4


@pytest.mark.parametrize("answer, status, words", [
    ((404, {"code": "SESSION_NOT_FOUND", "message": "no such session"}), 1, "404 SESSION_NOT_FOUND: no such session"),
    ((410, {"code": "SEQUENCE_TOO_OLD", "message": "no longer kept"}), 3, "read its history"),
    (GONE, 1, "503 UNAVAILABLE"),
])
def test_m3_what_is_refused(fake, answer, status, words):
    fake.troubles = [answer]
    done = tail(fake, "--after", "0")
    assert (done.returncode, done.stdout) == (status, "") and words in done.stderr


def test_what_is_no_stream_of_ours(fake):
    for line in ({"hello": 1}, b"<html>\n", {"event_type": "x", "event_id": "y"}):
        fake.streams = [[line]]
        done = tail(fake)
        assert done.returncode == 1 and "not one of freshet's" in done.stderr


@pytest.mark.parametrize("words", [(), ("demo",), ("demo", "x", "y"), ("a b", PROJECT, SESSION), ("demo", PROJECT, SESSION, "z"),
                                   ("demo", PROJECT, SESSION, "--after", "x"), ("demo", PROJECT, SESSION, "--count", "0"),
                                   ("demo", "COUNTRY", "--after", "x"), ("demo", "C D")])
def test_wrong_calls(words):
    done = run("tail", *words)
    assert done.returncode == 2 and "freshet tail" in done.stderr and "freshet watch" not in done.stderr


def test_r22_a_dictionary_is_watched(fake):
    fake.streams = [[{"version": 5, "key": "a", "op": "DELETE"}]]
    done = run("tail", "demo", "COUNTRY", "--after", "4", "--count", "1", "--url", fake.url, "--token", "x")
    assert (done.returncode, json.loads(done.stdout)["version"]) == (0, 5)
    assert fake.requests[0][1] == "/v1/tenants/demo/dictionaries/COUNTRY/watch?after=4"
    fake.troubles = [(404, {"code": "UNKNOWN_DICTIONARY", "message": "none"})]
    done = run("tail", "demo", "NONE", "--url", fake.url, "--token", "x")
    assert done.returncode == 1 and done.stderr == "freshet tail: 404 UNKNOWN_DICTIONARY: none\n"


def test_m3_over_the_death_of_its_pod(serve, database, token):
    """The second process takes the first one's place, port and all."""
    first = serve(database, FAST, args=CHAT)
    with Session(first, token("demo")) as chat:
        chat.say("one")
        following = subprocess.Popen([binary(), "tail", "demo", chat.project, chat.session, "--url",
                                      f"http://127.0.0.1:{first.port}", "--token", token("demo"), "--count", "4"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = [following.stdout.readline() for _ in range(2)]
        first.kill()
    second = serve.make(database, FAST, args=CHAT)
    second.args += ["--listen", f"127.0.0.1:{first.port}"]
    second.start(ready=False)
    second.port = first.port
    lines += _say_and_read(second, token("demo"), chat, following)
    assert [line[9:].rstrip() for line in lines] == ["#1 user: one", "#2 assistant: one", "#3 user: two", "#4 assistant: two"]
    assert following.wait(30) == 0


def _say_and_read(server, bearer, before, following):
    eventually(server.is_ready)
    with Session(server, bearer, before.project, before.session) as chat:
        chat.say("two")
        return [following.stdout.readline() for _ in range(2)]
