"""C6 and C7 on the real program: the connection cap, idle connections, slow readers and the graceful stop."""
import signal
import socket

import pytest

from lib.refdata import item_path, module_refdata_db, path, pod, slow_dictionary  # noqa: F401
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes

pytestmark = pytest.mark.roles("query")

HEALTH = request_bytes("GET", "/actuator/health/liveness")


def test_c7_one_connection_too_many_is_told_so(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod("FEATURE", http={"limits": {"connections": 4}}))
    held = []
    for tenant in ("a", "a", "b", "b"):  # half of them for each
        # The readiness check's own connection may still be closing.
        def follow():
            connection = server.raw()
            connection.send(request_bytes("GET", path("FEATURE", "/watch", tenant), {"Authorization": f"Bearer {token(tenant)}"}))
            return connection.read_head().status == 200 and connection
        held.append(eventually(follow))
    with server.raw() as extra:
        answer = extra.exchange(HEALTH)
        assert answer.status == 503 and answer.headers["retry-after"] and answer.json()["code"] == "OVERLOADED"
        assert extra.is_closed()
    for connection in held:
        assert connection.read_chunk()
    held[0].close()

    def room_again():
        with RawConnection(server.port) as connection:
            return connection.exchange(HEALTH).status == 200
    assert eventually(room_again)


def test_idle_connections_are_closed(serve, module_refdata_db):
    server = serve(module_refdata_db, pod(http={"limits": {"idleTimeout": "100ms"}}))
    with server.raw() as fresh, server.raw() as used:
        assert used.exchange(HEALTH).status == 200
        assert used.is_closed()
        assert fresh.is_closed()


def test_a_connection_is_idle_only_after_its_answer(serve, module_refdata_db, token):
    """A request that takes longer than idleTimeout leaves the connection that long for the next one."""
    server = serve(module_refdata_db, pod(slow_dictionary("SLOW", 2.5), http={"limits": {"idleTimeout": "2s"}}),
                   args=["--roles", "query"])
    with server.raw() as connection:
        request = request_bytes("GET", item_path("SLOW", "k"), {"Authorization": f"Bearer {token()}"})
        assert connection.exchange(request).status == 200
        with server.raw() as later:  # the loops go on in between
            assert later.exchange(HEALTH).status == 200
        assert connection.exchange(request).status == 200


def test_c7_sigterm_answers_what_is_in_flight_and_takes_nothing_new(serve, module_refdata_db):
    server = serve(module_refdata_db, pod(http={"loops": 1}))  # so that both connections hear of the stop at once
    idle, begun = server.raw(), server.raw()
    assert idle.exchange(HEALTH).status == 200
    begun.send(HEALTH[:20])
    eventually(lambda: server.metrics()["http_connections"] >= 2)
    server.process.send_signal(signal.SIGTERM)
    assert idle.is_closed()
    begun.send(HEALTH[20:])
    answer = begun.read_response()
    assert answer.status == 200 and answer.headers["connection"] == "close"
    assert server.process.wait(30) == 0


def test_c6_a_reader_that_takes_nothing_is_cut_off(serve, module_refdata_db):
    server = serve(module_refdata_db, pod(http={"limits": {"writeTimeout": "200ms"}}))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.settimeout(30)
        try:
            for _ in range(100000):  # more than the sockets between us can hold
                slow.sendall(request_bytes("GET", "/actuator/prometheus") * 10)
        except OSError:
            pass  # cut while sending
        else:
            raise AssertionError("the server read on although nobody took the answers")
    with server.raw() as other:
        assert other.exchange(HEALTH).status == 200
