"""One client does not starve or exhaust the others: scrapes, bodies, answers nobody reads, descriptors (issue 11.12, 11.13)."""
import contextlib
import select
import socket
import time

import pytest

from lib.refdata import TENANT, item_path, module_refdata_db, path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import PATIENCE, eventually
from lib.wire import RawConnection, request_bytes

pytestmark = pytest.mark.roles("query")

UPDATE = f"/v1/tenants/{TENANT}/updates/00000000-0000-4000-8000-000000000000"
HEALTH = request_bytes("GET", "/actuator/health/liveness")
SCRAPE = request_bytes("GET", "/actuator/prometheus")
BODIES, UNSENT = 'freshet_memory_used_bytes{account="bodies"}', 'freshet_memory_used_bytes{account="unsent"}'


def has_answer(connection):
    return bool(select.select([connection.socket], [], [], 0)[0])


def test_scrapes_share_a_rendering_and_leave_the_workers_to_others(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod("COUNTRY", http={"workers": 1}), args=["--roles", "command"],
                   env={"FRESHET_FAILPOINTS": "actuator.before_print=sleep-2500#1"})
    first = server.raw()
    first.send(SCRAPE)
    eventually(lambda: server.logs(failpoint="actuator.before_print"))
    others = [server.raw() for _ in range(40)]
    for connection in others:
        connection.send(SCRAPE)
    elsewhere = RawConnection(server.port, source="127.0.0.2")
    elsewhere.send(SCRAPE)
    # A route that needs the only worker is answered while all of them wait.
    status = server.client(token()).get(UPDATE).status
    assert status == 404
    assert not has_answer(first)
    answers = [connection.read_response() for connection in others]
    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) == 24 and all(answer.headers["retry-after"] for answer in refused)
    with elsewhere:
        answers.append(elsewhere.read_response())
    assert answers[-1].status == 200
    shared = {answer.body for answer in answers if answer.status == 200}
    assert len(shared) == 1 and b"http_connections 4" in shared.pop()
    assert first.read_response().status == 200
    assert first.exchange(SCRAPE).status == 200


def test_openapi_is_whole_however_it_is_asked_for(serve, module_refdata_db):
    server = serve(module_refdata_db, pod("COUNTRY"))
    with server.raw() as connection:
        request = request_bytes("GET", "/openapi.yaml")
        whole = connection.exchange(request)
        assert whole.status == 200 and int(whole.headers["content-length"]) == len(whole.body) > 65536
        connection.send(request * 3)
        assert [connection.read_response().body for _ in range(3)] == [whole.body] * 3
        head = connection.exchange(request_bytes("HEAD", "/openapi.yaml"), "HEAD")
        assert head.headers["content-length"] == whole.headers["content-length"]
        etag = whole.headers["etag"]
        assert connection.exchange(request_bytes("GET", "/openapi.yaml", {"If-None-Match": etag})).status == 304


def test_clients_leave_descriptors_to_the_database(serve, refdata_db, token):
    server = serve.make(refdata_db, pod("COUNTRY", http={"loops": 1, "limits": {"reservedDescriptors": 128}}),
                        args=["--roles", "command"])
    server.wrapper = ["prlimit", "--nofile=256"]
    server.start()
    client = server.client(token())
    assert client.get(UPDATE).status == 404
    crowd = [server.raw() for _ in range(300)]
    # All were accepted, told so or closed when the last one was: there is one loop.
    refused = 0
    for connection in crowd:
        try:
            refused += connection.exchange(HEALTH).status == 503
        except (EOFError, OSError):
            refused += 1
    assert 172 <= refused < 250
    refdata_db.query("select count(pg_terminate_backend(pid)) from pg_stat_activity"
                     " where datname = current_database() and pid <> pg_backend_pid()")
    eventually(lambda: client.get(UPDATE).status == 404)
    for connection in crowd:
        connection.close()
    eventually(lambda: server.metrics()["http_connections"] < 10)


# ---- bodies ----

def begin_post(server, tenant, bearer, length, sent):
    """A POST of `length` bytes of which `sent` are sent."""
    connection = server.raw()
    head = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json", "Content-Length": length}
    connection.send(request_bytes("POST", f"/v1/tenants/{tenant}/updates", head) + b" " * sent)
    return connection


def test_a_body_with_a_fast_beginning_and_a_slow_rest_is_408(serve, module_refdata_db, token):
    limits = {"bodyTimeout": "500ms", "bodyRate": "64KiB"}
    server = serve(module_refdata_db, pod("COUNTRY", http={"limits": limits}), args=["--roles", "command"])
    connection = begin_post(server, TENANT, token(), 1024 * 1024, 512 * 1024)
    for _ in range(200):
        if select.select([connection.socket], [], [], 0.05)[0]:
            break
        connection.send(b" ")
    else:
        raise AssertionError("a body may dribble on after a fast beginning")
    answer = connection.read_response()
    assert answer.status == 408 and answer.code == "REQUEST_TIMEOUT"
    assert server.metrics()[BODIES] == 0


def test_bodies_are_bounded_in_sum_and_a_tenant_leaves_room_for_others(serve, module_refdata_db, token):
    limits = {"body": "128KiB", "bodies": "1171KiB"}  # 1 MiB, and the reserve
    server = serve(module_refdata_db, pod("COUNTRY", http={"limits": limits}), args=["--roles", "command"])
    bearers = {tenant: token(tenant) for tenant in ("demo", "other", "third", "fourth")}
    held = []

    def hold(tenant, count):
        for _ in range(count):
            held.append(begin_post(server, tenant, bearers[tenant], 120_000, 100_000))
            eventually(lambda: server.metrics()[BODIES] == len(held) * 128 * 1024)

    def refused(tenant):
        answer = begin_post(server, tenant, bearers[tenant], 120_000, 100_000).read_response()
        return answer.status == 503 and answer.headers["retry-after"] and answer.code == "OVERLOADED"

    hold("demo", 4)  # half of it
    assert refused("demo")
    hold("other", 2)  # half of the rest
    assert refused("other")
    hold("third", 1)
    assert refused("third") and refused("fourth")
    assert server.metrics()['freshet_memory_refused_total{account="bodies"}'] == 4
    # A body that fits its head's block needs none of it.
    small = server.client(bearers["third"]).post("/v1/tenants/third/updates", {})
    assert small.status == 400
    held[0].send(b" " * 20_000)
    assert held.pop(0).read_response().status == 400
    hold("fourth", 1)
    for connection in held:
        connection.close()
    eventually(lambda: server.metrics()[BODIES] == 0)


# ---- answers nobody reads ----

def reader(server):
    """A client as far away as most are: on loopback the systems between us would hold megabytes otherwise."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    client.connect(("127.0.0.1", server.port))
    client.settimeout(30)
    return client


def test_answers_that_nobody_reads_are_bounded_in_sum(serve, module_refdata_db):
    server = serve(module_refdata_db, pod("COUNTRY", http={"loops": 1, "limits": {"unsent": "1MiB"}}))
    clients = [reader(server) for _ in range(30)]
    requests = request_bytes("GET", "/openapi.yaml") * 100
    try:
        for client in clients:
            client.sendall(requests)
        eventually(lambda: server.metrics()['http_cut_total{reason="full"}'] > 0)
        with server.raw() as other:
            for _ in range(50):
                assert other.exchange(request_bytes("GET", "/openapi.yaml")).status == 200
        samples = server.metrics()
        assert samples[UNSENT] <= 1024 * 1024
    finally:
        for client in clients:
            client.close()
    eventually(lambda: server.metrics()[UNSENT] == 0)


def test_texts_of_metrics_that_nobody_reads_are_charged_and_bounded(serve, module_refdata_db):
    """C6: anybody may ask for them. They are charged to the address that asked, so another one still gets them."""
    server = serve(module_refdata_db, pod(*(f"D{number}" for number in range(2500)), limits={"memory": "64MiB"},
                                          http={"loops": 1, "limits": {"writeTimeout": "1h"}}))
    used, refused = (f'freshet_memory_{name}{{account="requests"}}' for name in ("used_bytes", "refused_total"))
    size, before = len(server.client().get("/actuator/prometheus").body), server.metrics()[used]
    assert size > 256 * 1024, "it would fit into the buffers of the systems between"
    with contextlib.ExitStack() as held:
        for number in range(100):
            client = held.enter_context(contextlib.closing(reader(server)))
            client.sendall(SCRAPE)
            head = client.recv(12)
            if number == 4:
                assert server.metrics()[used] - before > 4 * size
            if head.endswith(b"503"):
                break
        else:
            raise AssertionError("a hundred texts are kept")
        with RawConnection(server.port, source="127.0.0.2") as other:
            assert other.exchange(SCRAPE).status == 200
    eventually(lambda: server.metrics()[used] - before < 4 * size)
    assert server.metrics()[refused] >= 1


MANY = {"code": "MANY", "loadSql": "select 'k' || i as k, to_jsonb(repeat('x', 2000)) as v"
                                   " from generate_series(1, 8000) i where :tenantId <> ''"}


def read_all_slowly(server, token, piece, seconds):
    """Reads /all in pieces, one every 20 ms, for at most that many seconds; True when the server cut it off."""
    with reader(server) as client:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/x-ndjson"}
        client.sendall(request_bytes("GET", path("MANY", "/all"), headers))
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                if not client.recv(piece):
                    return True
                time.sleep(0.02)
        except ConnectionResetError:
            return True
    return False


def test_a_slow_reader_of_a_whole_dictionary_is_cut_off(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod(MANY, http={"limits": {"writeTimeout": "2s", "writeRate": "64MiB"}}))
    assert read_all_slowly(server, token(), 16384, 30)
    assert server.metrics()['http_cut_total{reason="slow"}'] == 1


def test_a_reader_that_keeps_the_least_rate_is_not_cut_off(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod(MANY, http={"limits": {"writeTimeout": "2s", "writeRate": "1KiB"}}))
    assert not read_all_slowly(server, token(), 4096, 3)
    assert server.metrics()['http_cut_total{reason="slow"}'] == 0


def test_memory_is_given_back_after_a_burst(serve, module_refdata_db, token):
    server = serve(module_refdata_db, pod("COUNTRY"), args=["--roles", "command"])
    held = [begin_post(server, tenant, token(tenant), 8_000_000, 7_000_000) for tenant in ("a", "b", "c", "d", "e")]
    eventually(lambda: server.metrics()[BODIES] == 5 * 8 * 1024 * 1024)
    for connection in held:
        connection.close()
    eventually(lambda: server.metrics()["freshet_memory_trims_total"] >= 1)


def test_c6_answers_that_come_before_a_body_are_one_each_and_take_no_room_of_heads(serve, module_refdata_db, token):
    """A request that was answered before its body came waits on its sender's account, not on that of heads, and has one answer."""
    write_builtin(module_refdata_db, "EARLY", {"a": 1}, 1)
    server = serve(module_refdata_db, pod("EARLY", limits={"memory": "64MiB"}, http={"loops": 1}))
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)) for _ in range(700)]
        for connection in connections:
            connection.sendall(request_bytes("POST", "/nope", {"Content-Length": "60000"}))
            assert connection.recv(65536).count(b"HTTP/1.1 ") == 1
        get = request_bytes("GET", item_path("EARLY", "a"), {"Authorization": f"Bearer {token()}"})
        with RawConnection(server.port, source="127.0.0.2") as other:
            other.send(get[:30])
            time.sleep(0.05)  # to come in two reads, not for any outcome
            other.send(get[30:])
            assert other.read_response().status == 200
        for connection in connections:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert connection.recv(65536) == b"", "a second answer"
