"""What processes remember of commits that PostgreSQL has lost (R14): the same number with other content, copies of entities, and
streams of chats, one at a time."""
import os
import signal

import pytest

from cluster import Cluster
from lib import items
from lib.chat import FAST, Session
from lib.hydration import path as hydration_path
from lib.refdata import item_path, migrated, path
from lib.wait import eventually
from lib.writers import commit, delta

pytestmark = [pytest.mark.whole, pytest.mark.embedded]
WRITER, POD = ["--roles", "command,apply,relay,intake,chat"], ["--roles", "query,hydration,chat"]


class Lost:
    """A writer, a pod, and a pair whose standby gets cut off."""

    def __init__(self, serve, pair, jwks_path, folder, token):
        self.pair, self.database = pair, migrated(pair, jwks_path, folder)
        settings = {**FAST, "hydration": {"copy_ttl_ms": 1000, "negative_cache_ttl_ms": 1000}}
        self.cluster = Cluster(serve, self.database, [WRITER, POD], **settings).start()
        self.writer, self.pod = self.cluster.servers
        self.bearer = token("demo", subject="ann", ttl=3600)
        self.client, self.reader = self.writer.client(self.bearer), self.pod.client(self.bearer)

    def cut(self):
        self.pair.catch_up()
        self.pair.cut()

    def fail_over(self):
        self.pair.kill()
        self.pair.promote()

    def write(self, *values):
        for value in values:
            answer = commit(self.client, delta("PLAIN", {"k": value}))
            assert answer.status == 200, answer.body
        return answer.json()["committedVersion"]

    def value(self, **headers):
        answer = self.reader.get(item_path("PLAIN", "k"), **headers)
        return answer.json().get("payload"), int(answer.headers.get("x-dict-version", -1))


@pytest.fixture
def lost(serve, make_pair, jwks_path, tmp_path, token):
    return Lost(serve, make_pair("jdbc hosts"), jwks_path, tmp_path, token)


def test_a_number_that_is_reached_again_with_other_content_is_noticed_by_its_event(lost):
    """R14, R7: the pod is frozen until the new primary is at the very number that the pod holds."""
    assert lost.write("one") == 1
    lost.cut()
    assert lost.write("lost 2", "lost 3") == 3
    eventually(lambda: lost.value() == ("lost 3", 3))
    os.kill(lost.pod.process.pid, signal.SIGSTOP)
    try:
        lost.fail_over()
        assert lost.write("new 2", "new 3") == 3
    finally:
        os.kill(lost.pod.process.pid, signal.SIGCONT)
    eventually(lambda: lost.value(X_Min_Version="3") == ("new 3", 3))
    assert lost.pod.metrics()['dict_version_regressions_total{dict_code="PLAIN"}'] == 1
    (line,) = lost.pod.logs(event="dictionary_history_replaced")
    assert (line["level"], line["dictCode"], line["localVersion"], line["version"]) == ("error", "PLAIN", 3, 3)
    assert lost.reader.get(path("PLAIN", "/version")).json()["version"] == 3


def test_an_entity_that_was_lost_is_not_found_any_more(lost):
    """H4: the pod holds a copy of an item that its owner does not have any more, until hydration.copy_ttl_ms have passed."""
    kept, gone = items.item(), items.item()
    assert items.post(lost.client, kept).status == 201
    lost.cut()
    assert items.post(lost.client, gone).status == 201
    for body in (kept, gone):
        eventually(lambda b=body: lost.reader.get(hydration_path("item", b["sku"])).status == 200)
    lost.fail_over()
    eventually(lambda: items.post(lost.client, items.item()).status == 201)
    eventually(lambda: lost.reader.get(hydration_path("item", gone["sku"])).status == 404)
    assert lost.reader.get(hydration_path("item", kept["sku"])).status == 200


def test_a_stream_shows_what_is_written_after_messages_were_lost(lost):
    """M3: the sequences of lost messages are given again."""
    with Session(lost.writer, lost.bearer) as chat:
        chat.say("kept")
        lost.cut()
        with chat.stream(server=lost.pod) as stream:
            stream.until(2)
            chat.say("lost")
            stream.until(4)
            lost.fail_over()
            eventually(lambda: chat.post("new").status == 200)
            history = [message["content"] for message in chat.history() if message["role"] == "user"]
            assert history == ["kept", "new"]
            eventually(lambda: streamed(chat, lost.pod) == ["kept", "new"])
            eventually(lambda: lost.pod.logs(event="chat_history_replaced"))
            assert None in (stream.event() for _ in range(20)), "the stream goes on"  # its reader comes back and reads the log


def streamed(chat, server):
    with chat.stream(server=server) as stream:
        return [event["payload"]["content"] for event in stream.until(4) if event["payload"]["role"] == "user"]
