"""M3: a session's events live: every one of them, once, in order, from wherever a reader left off."""
import contextlib
import random
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lib.chat import CHAT, FAST, Session, fresh, states
from lib.config import merge
from lib.wait import eventually
from lib.wire import Client


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, FAST, args=CHAT)


@pytest.fixture
def chat(server, token):
    with Session(server, token("demo")) as one:
        yield one


def settled(database, chat):
    """All it said is published."""
    eventually(lambda: set(states(database, chat.session)) == {"published"})


@pytest.mark.tsan
def test_m3_a_line_an_event(chat, module_database):
    said = chat.say("hello")
    settled(module_database, chat)
    with chat.stream() as stream:
        assert stream.head.headers["content-type"] == "application/x-ndjson"
        first, second = stream.until(2)
        payload = first["payload"]
        assert list(first) == ["event_id", "event_type", "sequence", "session_id", "created_at", "payload"]
        assert (first["event_type"], first["sequence"], first["session_id"]) == ("message_created", 1, chat.session)
        assert first["created_at"] == said["created_at"]
        assert payload == {"event_id": first["event_id"], "message_id": said["message_id"], "role": "user", "content": "hello"}
        assert (second["payload"]["role"], second["payload"]["content"]) == ("assistant", "hello")
        assert stream.event() == {"event_type": "up_to_date", "sequence": 2}
        chat.say("more")
        assert [event["payload"]["content"] for event in stream.until(4)] == ["more", "more"]


@pytest.mark.tsan
def test_m3_resume_from_any_sequence(chat, module_database):
    for number in range(5):
        chat.say(str(number))
    eventually(lambda: states(module_database, chat.session) == ["published"] * 10)
    for after in range(11):
        with chat.stream(after) as stream:
            events, sequence = stream.caught_up()
            assert ([event["sequence"] for event in events], sequence) == (list(range(after + 1, 11)), 10)
    with chat.stream(3, Last_Event_ID="7") as stream:
        assert stream.caught_up()[0][0]["sequence"] == 8


def test_m3_a_sequence_that_was_committed_and_not_published_yet(serve, database, token):
    """Who has just posted may follow from there; up_to_date comes when the stream has got there."""
    server = serve(database, merge(FAST, {"chat": {"outbox": {"lease": "30s"}}}), args=CHAT,
                   env={"FRESHET_FAILPOINTS": "chat.after_claim=sleep-400"})
    with Session(server, token("demo")) as chat:
        for _ in range(3):
            last = chat.say()["sequence"] + 1
        with chat.stream(last) as stream:
            assert stream.caught_up() == ([], last)
            chat.say("next")
            assert [event["sequence"] for event in stream.until(last + 2)] == [last + 1, last + 2]


@pytest.mark.tsan
def test_m3_server_sent_events(chat, module_database):
    chat.say("hello")
    settled(module_database, chat)
    with chat.stream(Accept="text/event-stream") as stream, chat.stream() as plain:
        assert stream.head.headers["content-type"] == "text/event-stream"
        assert stream.until(2) == plain.until(2)
        assert stream.event() == {"event_type": "up_to_date", "sequence": 2}
        chat.say("line\nfeed\r\n")
        assert stream.until(4)[0]["payload"]["content"] == "line\nfeed\r\n"
    with chat.stream(Accept="text/event-stream", Last_Event_ID="3") as stream:
        assert [event["sequence"] for event in stream.until(4)] == [4]


def test_m3_heartbeats(module_serve, module_database, token):
    server = module_serve(module_database, merge(FAST, {"chat": {"stream": {"heartbeat": "20ms"}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        chat.say()
        settled(module_database, chat)
        with chat.stream() as stream, chat.stream(Accept="text/event-stream") as sse:
            for each in (stream, sse):
                each.caught_up()
                assert [each.event() for _ in range(3)] == [{"event_type": "heartbeat"}] * 3


@pytest.mark.parametrize("query, field", [("x", "after"), ("-1", "after"), ("99999999999999999999", "after"), ("3", "after"), ("1&a=1", "a")])
def test_m3_positions_that_are_none(chat, query, field):
    chat.say()
    with chat.stream(query) as stream:
        assert (stream.head.status, stream.refusal()["field"]) == (400, field)


def test_m3_last_event_id_must_be_one(chat):
    chat.say()
    with chat.stream(Last_Event_ID="x") as stream:
        assert (stream.head.status, stream.refusal()["field"]) == (400, "Last-Event-ID")


def test_m3_an_unknown_session_is_404(chat):
    with chat.stream() as stream:
        assert (stream.head.status, stream.refusal()) == (404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})
    head = chat.stream(method="HEAD")
    assert head.head.status == 404
    head.close()
    chat.say()
    with chat.stream(method="HEAD") as head:
        assert (head.head.status, head.head.headers["content-type"]) == (200, "application/x-ndjson")


def test_m3_a_long_catch_up_comes_in_pages(chat, module_database):
    """More than a page by rows and by bytes, while more is written."""
    for _ in range(150):
        chat.say("x" * 300)
    for _ in range(4):
        chat.say("y" * 30000)
    with chat.stream() as stream, chat.stream(Accept="text/event-stream") as sse:
        chat.say("last")
        for each in (stream, sse):
            events = each.until(310)
            assert each.seen == list(range(1, 311))
            assert [event["payload"]["content"][0] for event in events[::2]] == ["x"] * 150 + ["y"] * 4 + ["l"]


def test_m3_410_when_it_is_no_longer_kept(serve, database, token):
    """By retention; what is kept is still to be had."""
    server = serve(database, merge(FAST, {"chat": {"retention": {"event-log": "1s", "cleanup-interval": "20ms"}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        last = chat.say()["sequence"] + 1
        eventually(lambda: database.value("select forgotten_sequence from chat.chat_sessions where session_id = %s",
                                          (chat.session,)) == last)
        for after in (0, 1):
            with chat.stream(after) as stream:
                assert stream.head.status == 410
                refusal = stream.refusal()
                assert (refusal["code"], refusal["requested_sequence"], refusal["oldest_sequence"]) == (
                    "SEQUENCE_TOO_OLD", after, 3)
        with chat.stream(last) as stream, chat.stream() as start:
            assert stream.caught_up() == start.caught_up() == ([], 2)
            chat.say("new")
            assert [event["sequence"] for event in stream.until(4)] == [event["sequence"] for event in start.until(4)] == [3, 4]
        assert len(chat.history()) == 4


def test_m3_sessions_never_mix(server, token):
    project = fresh()
    chats = [Session(server, token("demo"), project) for _ in range(4)] + [Session(server, token("other"), project)]
    chats.append(Session(server, token("third"), project, chats[0].session))
    with contextlib.ExitStack() as stack:
        for number, chat in enumerate(chats):
            stack.enter_context(chat)
            chat.say(f"{number}")
        streams = [stack.enter_context(chat.stream()) for chat in chats]
        for _ in range(5):
            for number, chat in enumerate(chats):
                chat.say(f"{number}")
        for number, stream in enumerate(streams):
            assert {event["payload"]["content"] for event in stream.until(12)} == {f"{number}"}
            assert stream.seen == list(range(1, 13))


def test_m3_a_token_that_ends_ends_the_stream(server, module_database, token):
    with Session(server, token("demo")) as chat:
        chat.say()
        settled(module_database, chat)
        short = Session(server, token("demo", ttl=2), chat.project, chat.session)
        with short.stream() as stream:
            stream.caught_up()
            chat.say("a")
            stream.until(4)
            time.sleep(2.1)
            chat.say("b")
            assert stream.event() is None
        short.close()


# ---- processes ----

@pytest.mark.tsan
def test_m3_streams_and_publisher_in_different_processes(serve, database, token):
    """Whoever publishes, every process's streams say the same."""
    servers = [serve(database, FAST, args=CHAT) for _ in range(2)]
    with Session(servers[0], token("demo")) as chat, Session(servers[1], token("demo"), chat.project, chat.session) as other:
        chat.say("first")
        with chat.stream() as here, other.stream() as there:
            for number in range(10):
                (chat, other)[number % 2].say(str(number))
            assert here.until(22) == there.until(22)
            assert here.seen == there.seen == list(range(1, 23))


@pytest.mark.parametrize("place", ["chat.after_claim", "chat.after_log", "chat.after_publish", "outbox.after_settle"])
def test_m3_a_publisher_that_dies_loses_and_repeats_nothing(serve, database, token, place):
    survivor = serve(database, FAST, args=CHAT)
    with Session(survivor, token("demo")) as chat:
        chat.say("before")
        settled(database, chat)
        with chat.stream() as stream:
            stream.caught_up()
            armed = serve(database, FAST, args=CHAT, env={"FRESHET_FAILPOINTS": f"{place}=kill#1"})
            with Session(armed, token("demo"), chat.project, chat.session) as other:
                with pytest.raises(OSError):
                    while True:  # until it is the armed one that gets hold of an event
                        other.post("by the one that dies")
            eventually(lambda: armed.process.poll() is not None)
            last = chat.say("after")["sequence"] + 1
            events = stream.until(last)
            assert stream.seen == list(range(1, last + 1))
            assert len({event["event_id"] for event in events}) == len(events)
            assert [event["payload"]["content"] for event in events[-2:]] == ["after"] * 2
            # what the one that died had under way may commit still, behind all this
            assert [each["sequence"] for each in chat.history()][:last] == stream.seen


class Reader(threading.Thread):
    """Reads to `last`, coming back from where it was at random points, over whichever server."""

    def __init__(self, chat, servers, last, seed):
        super().__init__()
        self.chat, self.servers, self.last = chat, servers, last
        self.random = random.Random(seed)
        self.events, self.wrong = [], None

    def run(self):
        try:
            while not self.events or self.events[-1]["sequence"] < self.last:
                self.leg()
        except Exception as error:  # pylint: disable=broad-except
            self.wrong = error

    def leg(self):
        after = self.events[-1]["sequence"] if self.events else self.random.choice([None, 0])
        accept = self.random.choice(["text/event-stream", "application/x-ndjson"])
        with self.chat.stream(after, self.random.choice(self.servers), Accept=accept) as stream:
            for _ in range(self.random.randrange(1, 40)):
                if self.events and self.events[-1]["sequence"] == self.last:
                    return
                event = stream.event()
                if event is None:
                    return
                if "event_id" in event:
                    self.events.append(event)


def test_m3_history_order_is_stream_order_is_sequence(serve, database, token):
    """Many writers on one session in two processes, readers that come and go at random: no gap, no repeat."""
    writers, turns = 6, 12
    last = writers * turns * 2
    servers = [serve(database, FAST, args=CHAT) for _ in range(2)]
    chat = Session(servers[0], token("demo"))
    project, session = chat.project, chat.session
    chat.say("first")
    last += 2

    def write(number):
        with Session(servers[number % 2], token("demo"), project, session) as own:
            for turn in range(turns):
                own.say(f"{number}.{turn}")
    readers = [Reader(chat, servers, last, seed) for seed in range(8)]
    with ThreadPoolExecutor(writers) as pool:
        for reader in readers:
            reader.start()
        list(pool.map(write, range(writers)))
    for reader in readers:
        reader.join(60)
    history = chat.history(1000)
    chat.close()
    expected = [(each["sequence"], each["message_id"], each["content"], each["created_at"]) for each in history]
    for reader in readers:
        assert reader.wrong is None, reader.wrong
        assert [(event["sequence"], event["payload"]["message_id"], event["payload"]["content"], event["created_at"])
                for event in reader.events] == expected
    assert [row[0] for row in expected] == list(range(1, last + 1))


# ---- readers that do not read ----

def test_m3_a_slow_reader_is_cut_off_with_its_position(serve, database, token):
    """It can go on from there; the one beside it is not held up."""
    server = serve(database, merge(FAST, {"chat": {"stream": {"buffer-bytes": "64KiB"}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        chat.say("first")
        settled(database, chat)
        with chat.stream(2, receive_buffer=4096) as slow, chat.stream(2) as quick:
            quick.caught_up()
            content = "x" * 30000
            for _ in range(150):
                last = chat.say(content)["sequence"] + 1
                quick.until(last)
            eventually(lambda: server.metrics()['chat_stream_cuts_total{format="ndjson"}'] == 1)
            got, end = [], None
            while (event := slow.event()) is not None:
                if event["event_type"] == "cut_off":
                    end = event
                elif "event_id" in event:
                    got.append(event["sequence"])
            assert end and end == {"event_type": "cut_off", "sequence": got[-1]}
            assert got == list(range(3, got[-1] + 1)) and got[-1] < last
        with chat.stream(end["sequence"]) as again:
            assert [event["sequence"] for event in again.until(last)] == list(range(end["sequence"] + 1, last + 1))


def test_m3_one_who_reads_is_not_cut_off_however_long_a_message_is(serve, database, token):
    """A message and its answer are more than is kept: who had all before them is led on from the log."""
    server = serve(database, merge(FAST, {"chat": {"stream": {"buffer-bytes": "16KiB", "buffer-events": 1}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        chat.say("first")
        settled(database, chat)
        with chat.stream(2) as stream, chat.stream(2, Accept="text/event-stream") as sse:
            for last in range(4, 24, 2):
                chat.say("\x01" * 30000)
                for each in (stream, sse):
                    assert each.until(last)[-1]["payload"]["content"] == "\x01" * 30000
            assert stream.seen == sse.seen == list(range(3, 23))
        assert not any(value for name, value in server.metrics().items() if name.startswith("chat_stream_cuts_total"))


def test_m3_streams_go_with_their_readers_and_end_with_the_process(serve, database, token):
    server = serve(database, merge(FAST, {"chat": {"stream": {"heartbeat": "50ms"}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        chat.say()
        settled(database, chat)
        streams = [chat.stream() for _ in range(50)]
        for stream in streams:
            stream.caught_up()
        assert server.metrics()['chat_streams{format="ndjson"}'] == 50
        for stream in streams[:25]:
            stream.close()
        eventually(lambda: server.metrics()['chat_streams{format="ndjson"}'] == 25)
        server.stop()
        for stream in streams[25:]:
            while (event := stream.event()) == {"event_type": "heartbeat"}:
                pass
            assert event == {"event_type": "stopping", "sequence": 2}
            assert stream.event() is None
            stream.close()


def test_m3_a_reader_behind_gets_its_last_line_whole_when_the_process_stops(serve, database, token):
    """An end that looks like one is one: whoever is in the middle of a line gets the rest of it."""
    server = serve(database, FAST, args=CHAT)
    with Session(server, token("demo")) as chat:
        for _ in range(10):
            chat.say("x" * 30000)
        settled(database, chat)
        with chat.stream(0, receive_buffer=4096) as behind, chat.stream(20, receive_buffer=4096) as live:
            live.caught_up()
            for _ in range(10):
                chat.say("y" * 30000)
            settled(database, chat)
            server.process.send_signal(signal.SIGTERM)
            for stream, first in ((live, 21), (behind, 1)):
                while stream.event() is not None:
                    pass
                assert stream.seen == list(range(first, first + len(stream.seen)))
        assert server.process.wait(30) == 0


def test_c7_streams_while_the_database_is_away(serve, own_postgres, token):
    """503 at once for who comes; once it is back, nothing is missing."""
    database = own_postgres.create_database()
    server = serve(database, FAST, args=CHAT)
    with Session(server, token("demo")) as chat:
        chat.say("before")
        settled(database, chat)
        with chat.stream() as stream:
            stream.caught_up()
            own_postgres.stop()
            with chat.stream() as refused:
                assert refused.head.status == 503 and refused.refusal()["code"] == "UNAVAILABLE"
            assert chat.post("lost").status == 503
            own_postgres.start()
            eventually(lambda: chat.post("after").status == 200)
            assert stream.until(4)[-1]["payload"]["content"] == "after"
            assert stream.seen == [1, 2, 3, 4]


def test_m3_many_who_do_not_read_cost_little_and_hold_up_nobody(serve, database, token):
    """The memory of a reader is bounded, however much it has not read; the one beside them gets everything."""
    count, messages, content = 50, 40, "x" * 30000
    server = serve(database, merge(FAST, {"chat": {"stream": {"buffer-bytes": "64KiB"}}}), args=CHAT)

    def resident():
        status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024
    with Session(server, token("demo")) as chat, contextlib.ExitStack() as stack:
        chat.say("first")
        settled(database, chat)
        for _ in range(count):
            stack.enter_context(chat.stream(2, receive_buffer=4096))
        quick = stack.enter_context(chat.stream(2))
        quick.caught_up()
        before = resident()
        for _ in range(messages):
            last = chat.say(content)["sequence"] + 1
            quick.until(last)
        assert quick.seen == list(range(3, last + 1))
        # Nothing of what they do not take is kept for them, but for what each is in the middle of.
        assert resident() - before < count * messages * 2 * len(content) * 2 / 3
