"""C7, C8: a stop that nobody notices: readiness falls first, requests are served, connections end with an answer, streams with a line."""
import json
import signal
import subprocess

import pytest

from lib.chat import Session
from lib.freshet import binary
from lib.refdata import item_path, path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import Client, RawConnection, request_bytes

LIVENESS = request_bytes("GET", "/actuator/health/liveness")
READINESS = "/actuator/health/readiness"


def leaving(serve, database, *dictionaries):
    """A server whose clients will have half a minute to leave."""
    return serve(database, pod(*dictionaries, http={"drainDelay": "30s"}))


def told_to_stop(server):
    before = len(server.logs(event="stopping"))
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: len(server.logs(event="stopping")) > before)


def end_delay(server):
    """The second signal."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert [line["event"] for line in server.logs()][-1] == "stopped"


@pytest.mark.tsan
def test_c8_readiness_falls_while_requests_are_served(serve, refdata_db, token):
    """Readiness and health are 503 at once and say why; liveness, reads and writes go on, on new connections too."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = leaving(serve, refdata_db, "D")
    client = server.client(token())
    assert client.get(item_path("D", "a")).headers.get("connection") is None
    told_to_stop(server)
    for address in (READINESS, "/actuator/health"):
        answer = Client(server.port).get(address)
        assert (answer.status, answer.json()["status"]) == (503, "DOWN")
        assert "stopping" in answer.json()["components"]["process:life"]["detail"]
        assert answer.json()["roles"]["query"]["status"] == "UP"
    assert Client(server.port).get("/actuator/health/liveness").status == 200
    answer = client.get(item_path("D", "a"))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    update = {"dictCode": "D", "eventType": "DELTA", "items": [{"key": "b", "op": "UPSERT", "payload": 2}]}
    answer = Client(server.port, token()).post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000", update)
    assert answer.status in (200, 202) and answer.headers["connection"] == "close"
    assert server.process.poll() is None
    end_delay(server)
    assert server.logs(event="drain_delay_skipped")
    with pytest.raises(OSError):
        Client(server.port).get(READINESS)


def test_c7_the_listener_closes_after_the_delay(serve, refdata_db):
    """Without a second signal."""
    server = serve(refdata_db, pod("D", http={"drainDelay": "300ms"}))
    told_to_stop(server)
    assert server.process.wait(60) == 0
    assert not server.logs(event="drain_delay_skipped")
    assert server.logs(event="stopping")[0]["drainDelayMs"] == 300


def test_c7_without_a_delay_a_stop_is_quick(serve, refdata_db):
    """The default: idle connections do not hold it up."""
    server = serve(refdata_db, pod("D"))
    idle = server.raw()
    assert idle.exchange(LIVENESS).status == 200
    told_to_stop(server)
    assert idle.is_closed()
    assert server.process.wait(60) == 0
    assert server.logs(event="stopping")[0]["drainDelayMs"] == 0


def test_c7_a_connection_ends_with_an_answer(serve, refdata_db):
    """An idle connection stays open until the delay is over; pipelined requests are all answered, the last one closes."""
    server = leaving(serve, refdata_db, "D")
    idle, used = server.raw(), server.raw()
    for connection in (idle, used):
        assert connection.exchange(LIVENESS).headers.get("connection") is None
    told_to_stop(server)
    eventually(lambda: all(server.raw().exchange(LIVENESS).headers.get("connection") == "close" for _ in range(8)))  # on every loop
    used.send(LIVENESS * 5)
    assert [used.read_response().headers.get("connection") for _ in range(5)] == [None] * 4 + ["close"]
    assert used.is_closed()
    fresh = RawConnection(server.port)
    assert fresh.exchange(LIVENESS).headers["connection"] == "close"
    idle.send(LIVENESS[:20])  # begun before the end of the delay
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.logs(event="drain_delay_skipped"))
    idle.send(LIVENESS[20:])
    answer = idle.read_response()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    idle.close()
    fresh.close()
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
def test_m3_the_last_line_of_a_chat_says_where_to_go_on(serve, database, token, accept):
    """Streams stay open during the delay, and end with their position."""
    server = leaving(serve, database)
    bearer = token()
    with Session(server, bearer) as chat:
        chat.say("one")
        with chat.stream(Accept=accept) as stream, chat.stream(after=0, Accept=accept) as quiet:
            stream.until(2)
            told_to_stop(server)
            Session(server, bearer, chat.project, chat.session).say("two")
            for each in (stream, quiet):
                each.until(4)
            server.process.send_signal(signal.SIGTERM)
            for each in (stream, quiet):
                last = each.event()
                while last["event_type"] == "up_to_date":
                    last = each.event()
                assert last == {"event_type": "stopping", "sequence": 4}
                assert each.event() is None
    assert server.process.wait(60) == 0


def test_r22_the_last_line_of_a_watch_says_where_to_go_on(serve, refdata_db, token):
    write_builtin(refdata_db, "D", {"a": 1}, version=7)
    server = leaving(serve, refdata_db, "D")
    raw = server.raw()
    raw.send(request_bytes("GET", path("D", "/watch"), {"Authorization": f"Bearer {token()}"}))
    assert raw.read_head().status == 200
    assert raw.read_chunk() == b'{"upToDate":7}\n'
    told_to_stop(server)
    server.process.send_signal(signal.SIGTERM)
    assert json.loads(raw.read_chunk()) == {"heartbeat": 7, "stopping": True}
    assert raw.read_chunk() == b""
    assert server.process.wait(60) == 0


def test_r22_m3_followers_go_on_with_the_next_process(serve, refdata_db, token):
    """`freshet watch` and `freshet tail` reconnect by themselves, and print everything once."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = leaving(serve, refdata_db, "D")
    bearer = token()

    def follow(*words):
        return subprocess.Popen([binary(), *words, "--url", f"http://127.0.0.1:{server.port}", "--token", bearer],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def write(key):
        update = {"dictCode": "D", "eventType": "DELTA", "items": [{"key": key, "op": "UPSERT", "payload": key}]}
        address = "/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000"
        assert Client(server.port, bearer).post(address, update).status in (200, 202)

    chat = Session(server, bearer)
    chat.say("one")
    watching = follow("watch", "demo", "D", "--after", "1", "--count", "2")
    tailing = follow("tail", "demo", chat.project, chat.session, "--count", "4")
    write("b")
    while "key" not in (change := json.loads(watching.stdout.readline())):
        pass  # up to date: with the version before, or not yet
    assert change["key"] == "b"
    assert tailing.stdout.readline().endswith("#1 user: one\n")
    assert tailing.stdout.readline().endswith("#2 assistant: one\n")
    told_to_stop(server)
    end_delay(server)
    server.own_port = server.port
    server.start()
    write("c")
    Session(server, bearer, chat.project, chat.session).say("two")
    watched, why = watching.communicate(timeout=60)
    assert [json.loads(line).get("key") for line in watched.splitlines() if "key" in line] == ["c"], watched
    assert "the pod ended the stream; continuing from version 2" in why
    tailed, _ = tailing.communicate(timeout=60)
    assert [line.split(" ", 1)[1] for line in tailed.splitlines()] == ["#3 user: two", "#4 assistant: two"]
    assert (watching.returncode, tailing.returncode) == (0, 0)
    chat.close()
    told_to_stop(server)
    end_delay(server)
