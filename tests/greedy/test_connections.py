"""One tenant, or one client without a token, does not take the connections of the server from others (C6)."""
import contextlib
import select
import socket
import struct

import pytest

from lib.refdata import module_refdata_db, path, pod, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes

CONNECTIONS = 4
HEALTH = request_bytes("GET", "/actuator/health/liveness")


@pytest.fixture(scope="module")
def started(module_serve, module_refdata_db):  # noqa: F811
    """On one loop, with time limits that end nothing."""
    write_builtin(module_refdata_db, "COUNTRY", {"DE": 1}, version=1, tenant="other")
    limits = {"connections": CONNECTIONS, "headerTimeout": "1h", "bodyTimeout": "1h", "idleTimeout": "1h"}
    return module_serve(module_refdata_db, pod("COUNTRY", http={"loops": 1, "limits": limits}), args=["--roles", "query,command"])


def reset(connection):
    """A stream that is only closed is noticed with its next heartbeat."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def reset_all(server):
    """Until the server knows."""
    while server.clients:
        reset(server.clients.pop())
    eventually(lambda: is_alone(server))


def is_alone(server):
    with contextlib.suppress(ValueError):  # a scrape that was refused
        return server.metrics()["http_connections"] == 1
    return False


@pytest.fixture
def server(started):
    yield started
    reset_all(started)


def get(target, bearer):
    return request_bytes("GET", target, {"Authorization": f"Bearer {bearer}"})


def item_of_other_tenant(server, token):
    """On a connection of its own, which must be accepted."""
    with RawConnection(server.port) as connection:
        return connection.exchange(get(path("COUNTRY", "/items/DE", "other"), token("other"))).status


def follow(server, token):
    """A stream without an end, or the refusal of it."""
    connection = server.raw()
    connection.send(get(path("COUNTRY", "/watch", "greedy"), token("greedy")))
    return connection, connection.read_head()


def held_stream(server, token):
    connection, head = follow(server, token)
    if head.status == 200:
        return connection
    server.clients.remove(connection)
    reset(connection)
    return None


def test_streams_of_one_tenant_leave_half_of_the_connections_to_others(server, token):
    held = [eventually(lambda: held_stream(server, token)) for _ in range(CONNECTIONS // 2)]
    refused, head = follow(server, token)
    assert head.status == 503 and head.headers["retry-after"]
    assert b"OVERLOADED" in refused.read_exactly(int(head.headers["content-length"]))
    assert item_of_other_tenant(server, token) == 200
    assert server.metrics()["http_held_refused_total"] >= 1
    server.clients.remove(held[0])
    reset(held[0])  # its place is free again
    eventually(lambda: held_stream(server, token))


def test_requests_whose_bodies_do_not_arrive_hold_connections_too(server, token):
    head = {"Authorization": f"Bearer {token('greedy')}", "Content-Type": "application/json", "Content-Length": "100"}
    connections = [server.raw() for _ in range(CONNECTIONS // 2 + 1)]
    for connection in connections:
        connection.send(request_bytes("POST", "/v1/tenants/greedy/updates", head))
    answered = eventually(lambda: select.select([connection.socket for connection in connections], [], [], 0)[0])
    refused, = [connection.read_response() for connection in connections if connection.socket in answered]
    assert refused.status == 503 and refused.json()["message"] == "too much at once, try again"
    assert item_of_other_tenant(server, token) == 200


def test_idle_connections_give_way_to_new_ones(server, token):
    """Those that sent nothing, that have their answer, and that do not finish a head."""
    held = [server.raw() for _ in range(CONNECTIONS)]
    for connection, sent in zip(held, [b"", HEALTH, HEALTH[:-2], b""]):
        connection.send(sent)

    def is_closed(connection):
        readable = select.select([connection.socket], [], [], 0)[0]
        return bool(readable) and not connection.socket.recv(1024, socket.MSG_DONTWAIT)

    def all_gave_way():
        server.raw()  # one more each time
        return all(is_closed(connection) for connection in held)
    eventually(all_gave_way)
    reset_all(server)
    assert server.metrics()["http_idle_closed_total"] >= CONNECTIONS
    assert item_of_other_tenant(server, token) == 200
