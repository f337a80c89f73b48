"""`freshet put` and `freshet status`: R1 and R2 on the command line."""
import json
import subprocess
import uuid

import pytest

from lib.fake_pod import FakePod
from lib.freshet import binary, run

GONE = (503, {"code": "UNAVAILABLE", "message": "not available right now, try again"})
EVENT = "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77"


@pytest.fixture
def fake():
    with FakePod() as pod:
        yield pod


def put(fake, *words, **options):
    return run("put", "demo", "FEATURE", *words, "--url", fake.url, "--token", "x", **options)


def status(fake, *words):
    return run("status", *words, "--url", fake.url, "--token", "x")


# ---- what is sent ----

def test_r1_the_version_is_printed_and_the_wait_is_asked_for(fake):
    done = put(fake, "dark mode", '{"enabled": true}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    (_, path, body), = fake.requests
    assert path == "/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000"
    assert uuid.UUID(body.pop("eventId")).version == 4
    assert body == {"dictCode": "FEATURE", "eventType": "DELTA",
                    "items": [{"key": "dark mode", "op": "UPSERT", "payload": {"enabled": True}}]}


def test_r1_delete_revision_and_event_id(fake):
    done = put(fake, "k", "--delete", "--revision", "-7", "--event-id", EVENT.upper())
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert fake.posts() == [{"eventId": EVENT, "dictCode": "FEATURE", "eventType": "DELTA", "sourceRevision": -7,
                             "items": [{"key": "k", "op": "DELETE"}]}]


def test_a_payload_is_sent_byte_for_byte(fake):
    """Numbers and spelling are the sender's: 1.50 stays 1.50."""
    seen = subprocess.run([binary(), "put", "demo", "FEATURE", "k", "-", "--url", fake.url, "--token", "x"],
                          input=b' {"n": 12345678901234567890, "text": "\xd0\x96"}\n', capture_output=True, check=False)
    assert seen.returncode == 0 and fake.posts()[0]["items"][0]["payload"] == {"n": 12345678901234567890, "text": "Ж"}


def test_async_prints_the_event_and_how_to_ask_for_it(fake):
    done = put(fake, "k", "1", "--async", "--event-id", EVENT)
    assert (done.returncode, done.stdout) == (0, f"{EVENT}\n")
    assert f"freshet status demo {EVENT}" in done.stderr
    assert fake.requests[0][1] == "/v1/tenants/demo/updates"


def test_a_wait_that_ran_out_is_exit_3(fake):
    fake.troubles = [(202, {"eventId": EVENT, "status": "PENDING", "statusUrl": f"/v1/tenants/demo/updates/{EVENT}"})]
    done = put(fake, "k", "1", "--event-id", EVENT)
    assert (done.returncode, done.stdout) == (3, f"{EVENT}\n") and "not committed yet" in done.stderr


# ---- trouble ----

def test_r1_a_503_and_a_lost_connection_are_tried_again_with_the_same_event(fake):
    fake.troubles = [GONE, "break", GONE]
    done = put(fake, "k", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    posts = fake.posts()
    assert len(posts) == 4 and all(post == posts[0] for post in posts)


def test_when_patience_ends_it_says_how_to_go_on(fake):
    fake.troubles = [GONE] * 3
    done = put(fake, "k", "1", "--patience", "0", "--event-id", EVENT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "503 UNAVAILABLE" in done.stderr and f"--event-id {EVENT}" in done.stderr
    assert len(fake.requests) == 1


@pytest.mark.parametrize("code, status_code", [("STALE_SOURCE_REVISION", 409), ("UPDATE_REFUSED", 422), ("BAD_REQUEST", 400)])
def test_a_refusal_is_printed_once_and_not_retried(fake, code, status_code):
    fake.troubles = [(status_code, {"code": code, "message": "no", "field": "items[0].key"})]
    done = put(fake, "k", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"freshet put: {status_code} {code}: items[0].key: no\n" and len(fake.requests) == 1


@pytest.mark.parametrize("words", [
    (), ("k",), ("k", "1", "2"), ("k", "1", "--delete"), ("", "1"), ("k", "text"), ("k", "{"), ("k", ""),
    ("k", "1", "--wait", "--async"), ("k", "1", "--revision", "x"), ("k", "1", "--event-id", "x"),
    ("k", "1", "--patience", "soon"), ("k", "1", "--nonsense")])
def test_called_wrongly_is_exit_2_and_nothing_is_sent(fake, words):
    done = put(fake, *words)
    assert (done.returncode, done.stdout, fake.requests) == (2, "", [])
    assert done.stderr.startswith("freshet put: ")


# ---- status ----

def test_r2_the_answer_is_printed_and_the_exit_status_tells(fake):
    for state, expected in (({"status": "COMMITTED", "committedVersion": 7}, 0), ({"status": "PENDING"}, 3),
                            ({"status": "FAILED", "errorCode": "UPDATE_REFUSED", "errorMessage": "no"}, 1)):
        fake.events[EVENT] = {"eventId": EVENT, **state}
        for words in (("demo", EVENT), (f"/v1/tenants/demo/updates/{EVENT}",)):
            done = status(fake, *words)
            assert (done.returncode, json.loads(done.stdout), done.stderr) == (expected, fake.events[EVENT], "")
    assert {path for _, path, _ in fake.requests} == {f"/v1/tenants/demo/updates/{EVENT}"}


def test_r2_wait_asks_until_it_is_decided(fake):
    pending = (200, {"eventId": EVENT, "status": "PENDING"})
    fake.troubles = [pending, GONE, pending, (200, {"eventId": EVENT, "status": "COMMITTED", "committedVersion": 9})]
    done = status(fake, "demo", EVENT, "--wait", "1m")
    assert (done.returncode, json.loads(done.stdout)["committedVersion"], len(fake.requests)) == (0, 9, 4)


def test_r2_an_unknown_update_is_exit_1(fake):
    done = status(fake, "demo", EVENT)
    assert (done.returncode, done.stdout) == (1, "") and "404 UNKNOWN_UPDATE" in done.stderr


@pytest.mark.parametrize("words", [(), ("demo",), ("demo", "x"), ("a b", EVENT), ("/v1/tenants/demo",), (f"/updates/{EVENT}",),
                                   ("demo", EVENT, "more"), ("demo", EVENT, "--wait", "x")])
def test_status_called_wrongly_is_exit_2(fake, words):
    done = status(fake, *words)
    assert (done.returncode, done.stdout, fake.requests) == (2, "", [])
