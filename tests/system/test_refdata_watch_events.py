"""R22, issue 15, point 4: GET …/watch as text/event-stream, for browsers: what they see, and that they resume without a gap."""
import contextlib
import json
import random
import threading
import uuid

import pytest

from lib.refdata import module_refdata_db, path, pod  # noqa: F401
from lib.watcher import Follower, Watcher, Writer
from lib.wire import RawConnection, request_bytes

EVENTS = "text/event-stream"


class EventSource:
    """Does what a browser does: parses events, remembers the last id, and sends it when it connects again."""

    def __init__(self, server, bearer, tenant, after=None, last_id=""):
        self.last_id, self.text = last_id, b""
        self.raw = RawConnection(server.port)
        query = "" if after is None else f"?after={after}"
        headers = {"Authorization": f"Bearer {bearer}", "Accept": EVENTS}
        if last_id:
            headers["Last-Event-ID"] = last_id
        self.raw.send(request_bytes("GET", path("B", "/watch" + query, tenant), headers))
        self.head = self.raw.read_head()

    def line(self):
        """The data of the next event, or None at the stream's proper end."""
        assert self.head.status == 200, self.head
        while b"\n\n" not in self.text:
            chunk = self.raw.read_chunk()
            if not chunk:
                assert self.text == b"", "the last event is not whole"
                return None
            self.text += chunk
        event, self.text = self.text.split(b"\n\n", 1)
        data = []
        for field in event.split(b"\n"):
            name, _, value = field.partition(b": ")
            assert name in (b"id", b"data"), event
            if name == b"id":
                self.last_id = value.decode()
            else:
                data.append(value)
        assert len(data) == 1, event
        return json.loads(data[0])

    def to(self, version):
        lines = [self.line()]
        while lines[-1].get("upToDate", -1) < version:
            lines.append(self.line())
        return lines

    def close(self):
        self.raw.close()


@pytest.fixture
def tenant():
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def writer(module_refdata_db, tenant):  # noqa: F811
    with contextlib.closing(Writer(module_refdata_db, tenant)) as writer:
        yield writer


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    return module_serve(module_refdata_db, pod("B", http={"loops": 2}))


@pytest.fixture
def watch(server, tenant, token):
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(EventSource(server, token(tenant), tenant, **options)))


def test_r22_events_are_the_lines_and_only_up_to_date_has_an_id(writer, watch, server, tenant, token):
    writer.update({"a": 1})
    stream = watch()
    assert stream.head.headers["content-type"] == EVENTS and stream.head.headers["x-dict-version"] == "1"
    assert stream.head.headers["cache-control"] == "no-store" and stream.head.headers["x-accel-buffering"] == "no"
    assert stream.line() == {"upToDate": 1} and stream.last_id == "1"
    with contextlib.closing(Watcher(server, token(tenant), tenant)) as plain:
        assert plain.line() == {"upToDate": 1}
        writer.update({"b": "line\nfeed", "ä\"\n": None}, ["a"])
        for expected in plain.lines_to(2):
            assert stream.last_id == "1"
            assert stream.line() == expected
    assert stream.last_id == "2"


def test_r22_a_browser_that_reconnects_in_the_middle_of_a_version_gets_all_of_it(writer, watch):
    writer.update({"a": 1})
    stream = watch()
    stream.to(1)
    writer.update({f"k{number}": number for number in range(10)})
    seen = [stream.line() for _ in range(4)]
    assert stream.last_id == "1"
    again = watch(last_id=stream.last_id)
    lines = again.to(2)
    assert lines[:4] == seen and len(lines) == 11


def test_r22_last_event_id_wins_over_the_url_that_a_browser_repeats(writer, watch):
    for value in range(1, 5):
        writer.update({"a": value})
    assert watch(after=0, last_id="3").to(4) == [{"version": 4, "key": "a", "op": "UPSERT", "payload": 4}, {"upToDate": 4}]
    assert [line.get("version") for line in watch(after=2).to(4)] == [4, None]


def test_c6_a_position_that_is_none_is_named(server, writer, tenant, token):
    writer.update({"a": 1})
    with server.client(token(tenant)) as client:
        for headers, field in (({"Last_Event_ID": "x"}, "Last-Event-ID"), ({"Last_Event_ID": "-1"}, "Last-Event-ID")):
            answer = client.get(path("B", "/watch", tenant), Accept=EVENTS, **headers)
            assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", field)
        assert client.get(path("B", "/watch", tenant), Accept=EVENTS, Last_Event_ID="99").code == "VERSION_NOT_COMMITTED"


def test_r22_heartbeats_and_the_end_of_the_process_are_events(serve, module_refdata_db, tenant, writer, token):  # noqa: F811
    configuration = pod("B")
    configuration["refdata"]["watch"] = {"heartbeat": "20ms"}
    server = serve(module_refdata_db, configuration)
    writer.update({"a": 1})
    with contextlib.closing(EventSource(server, token(tenant), tenant)) as stream:
        stream.to(1)
        assert [stream.line() for _ in range(3)] == [{"heartbeat": 1}] * 3
        server.process.terminate()
        while (line := stream.line()) == {"heartbeat": 1}:
            pass
        assert line == {"heartbeat": 1, "stopping": True} and stream.last_id == "1"
        assert stream.line() is None


def test_r22_a_format_costs_nothing_when_its_last_follower_has_left(writer, watch, server, tenant, token):
    """Followers of one format leave and come back, while those of the other one stay."""
    writer.update({"a": 0})
    plain = Watcher(server, token(tenant), tenant)
    assert plain.line() == {"upToDate": 1}
    for version in range(2, 8):
        stream = watch()
        assert stream.line() == {"upToDate": version - 1}
        writer.update({"a": version})
        assert stream.to(version) == plain.lines_to(version)
        stream.close()
    plain.close()


@pytest.mark.tsan
def test_r22_browsers_that_come_and_go_have_exactly_every_version(server, writer, tenant, token):
    """Both formats, reconnecting at random by the last id: no gap, nothing applied twice matters."""
    writer.update({"a": 0})
    last, wrong = 120, []

    def browse(seed):
        try:
            chance, bearer = random.Random(seed), token(tenant)
            follower, last_id = Follower(writer, writer.history[1], 1), "1"
            while follower.version < last:
                stream = EventSource(server, bearer, tenant, last_id=last_id)
                with contextlib.closing(stream):
                    for _ in range(chance.randrange(1, 40)):
                        line = stream.line()
                        if line is None or follower.version >= last:
                            break
                        follower.take(line)
                    last_id = stream.last_id
                # what came after the last id is sent again: the map is the one of that version
                follower.content, follower.version = dict(writer.history[int(last_id)]), int(last_id)
        except Exception as error:  # noqa: BLE001: told by the test's own thread
            wrong.append(repr(error))

    def read():
        try:
            follower = Follower(writer, writer.history[1], 1)
            with contextlib.closing(Watcher(server, token(tenant), tenant, after=1)) as plain:
                follower.follow(plain, last)
        except Exception as error:  # noqa: BLE001
            wrong.append(repr(error))

    threads = [threading.Thread(target=browse, args=(seed,)) for seed in range(3)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    chance = random.Random(7)
    while writer.version < last and not wrong:
        writer.update({f"k{chance.randrange(20)}": chance.random() for _ in range(chance.randrange(1, 6))})
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
