"""Issue 15, 4: a chat followed by both clients: no event lost, none twice, whatever breaks."""
import threading
import uuid

import pytest

from driver import Refusal
from faulty import FaultyLine
from lib.chat import FAST, Session
from lib.refdata import module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually, free_port
from test_copies import short_tokens, url_of

STREAMS = {"chat": {**FAST["chat"], "stream": {"heartbeat": "1s"}}}


def fresh():
    return str(uuid.uuid4())


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    return module_serve(module_refdata_db, STREAMS)


class Talker:
    """Posts messages at a server that stays, until told to stop."""

    def __init__(self, server, bearer, project=None, session=None):
        self.chat = Session(server, bearer, project or fresh(), session or fresh())
        self.said, self.error = 0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def say(self):
        self.chat.say(f"message {self.said}")
        self.said += 1

    def _run(self):
        try:
            while not self._stop.wait(0.01):
                self.say()
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def __enter__(self):
        self.say()
        self._thread.start()
        return self

    def __exit__(self, *_):
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
        assert self.error is None, self.error

    def wait(self, more):
        said = self.said
        eventually(lambda: self.said >= said + more or self.error)

    def where(self):
        return {"project": self.chat.project, "session": self.chat.session}


def heard_everything(client, talker, name="s", after=0):
    """Every event of the history, each once, in order."""
    talker.__exit__()
    history = talker.chat.history()
    def complete():
        heard = client("heard", name=name)
        assert heard["error"] is None, heard["error"]
        assert [event["sequence"] for event in heard["events"]] == list(range(after + 1, len(history) + 1))
        return heard
    heard = eventually(complete)
    assert [event["payload"]["content"] for event in heard["events"]] == [row["content"] for row in history[after:]]
    assert heard["position"] == len(history)
    return heard


def test_a_chat_is_heard_from_the_start_and_live(drive, server, token):
    with Talker(server, token()) as talker:
        client = drive(url_of(server), token=token())
        client("listen", name="s", **talker.where())
        client("listen", name="later", **talker.where(), after=2)
        talker.wait(5)
        assert heard_everything(client, talker)["reconnects"] == 0
        heard_everything(client, talker, "later", after=2)
        events = client("events", project_id=talker.chat.project, event_type="message_created")
        eventually(lambda: len(client("events", project_id=talker.chat.project)) >= 2 * talker.said)
        assert events[0]["payload"]["content"] == "message 0"


def test_an_own_message_is_heard(drive, server, token):
    client = drive(url_of(server), token=token())
    project, session = fresh(), fresh()
    client("post_message", project_id=project, session_id=session, content="привет 🙂")
    client("listen", name="s", project=project, session=session)
    eventually(lambda: len(client("heard", name="s")["events"]) == 2)
    assert [event["payload"]["role"] for event in client("heard", name="s")["events"]] == ["user", "assistant"]


def test_a_session_that_is_not_there_is_refused(drive, server, token):
    client = drive(url_of(server), token=token())
    client("listen", name="none", project=fresh(), session=fresh())
    error = eventually(lambda: client("heard", name="none")["error"])
    assert (error["code"], error["status"]) == ("SESSION_NOT_FOUND", 404)
    with pytest.raises(Refusal) as refusal:
        client("messages", project_id=fresh(), session_id=fresh())
    assert refusal.value.code == "SESSION_NOT_FOUND"


def test_connections_that_are_cut_lose_and_repeat_nothing(drive, server, token, whole):
    with FaultyLine(server.port) as line, Talker(server, token()) as talker:
        client = drive(line.url, token=token())
        client("listen", name="s", **talker.where())
        for cuts in range(20 if whole else 4):
            eventually(lambda: client("heard", name="s")["reconnects"] >= cuts)  # pylint: disable=cell-var-from-loop
            talker.wait(2)
            line.cut()
        line.bytes_to_cut_after = 3001  # in the middle of a line
        line.cut()
        talker.wait(5)
        line.bytes_to_cut_after = None
        assert heard_everything(client, talker)["reconnects"] >= 3


@pytest.mark.whole
def test_a_connection_that_says_nothing_is_given_up(drive, server, token):
    with FaultyLine(server.port) as line, Talker(server, token()) as talker:
        client = drive(line.url, token=token())
        client("listen", name="s", **talker.where(), idle_timeout=3)
        eventually(lambda: client("heard", name="s")["events"])
        line.stalled = True
        connections = line.connections
        eventually(lambda: line.connections > connections)
        line.stalled = False
        heard_everything(client, talker)


def test_a_server_that_is_killed_and_started_again(drive, serve, refdata_db, token, whole):
    """kill -9 in the middle of the stream; messages are posted elsewhere meanwhile. Once it stops properly."""
    stays = serve(refdata_db, STREAMS)
    victim = serve.make(refdata_db, STREAMS)
    victim.own_port = free_port()
    victim.start()
    with Talker(stays, token()) as talker:
        client = drive(url_of(victim), token=token())
        client("listen", name="s", **talker.where())
        for kills in range(6 if whole else 2):
            eventually(lambda: client("heard", name="s")["reconnects"] >= kills)  # pylint: disable=cell-var-from-loop
            talker.wait(2)
            if kills == 1:
                victim.stop()
            else:
                victim.kill()
            talker.wait(2)
            victim.start()
        talker.wait(2)
        assert heard_everything(client, talker)["reconnects"] >= 1


@pytest.mark.whole
def test_a_chat_outlives_its_tokens(drive, server, token, tmp_path):
    with short_tokens(token, tmp_path / "token") as path, Talker(server, token()) as talker:
        client = drive(url_of(server), token_file=path)
        client("listen", name="s", **talker.where())
        eventually(lambda: client("heard", name="s")["reconnects"] >= 2)
        heard_everything(client, talker)


def test_events_that_are_no_longer_kept_are_reported_or_left_out(drive, server, token, module_refdata_db):
    """410: what was lost is for the caller to decide."""
    with Talker(server, token()) as talker:
        talker.wait(3)
        talker.__exit__()
        session, count = talker.chat.session, len(talker.chat.history())
        logged = "select count(*) from chat.event_log where session_id = %s"
        eventually(lambda: module_refdata_db.value(logged, (session,)) == count)
        module_refdata_db.query("delete from chat.event_log where session_id = %s and sequence <= 3", (session,))
        client = drive(url_of(server), token=token())
        client("listen", name="told", **talker.where(), after=1)
        error = eventually(lambda: client("heard", name="told")["error"])
        assert (error["name"], error["code"], error["oldest_sequence"]) == ("SequenceTooOld", "SEQUENCE_TOO_OLD", 4)
        client("listen", name="left", **talker.where(), after=1, skip_lost=True)
        eventually(lambda: len(client("heard", name="left")["events"]) == count - 3)
        assert client("heard", name="left")["events"][0]["sequence"] == 4
