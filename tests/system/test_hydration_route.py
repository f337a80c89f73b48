"""H5, H6, C4-C8: GET /v1/hydration/…, an entity of any module as its owner has it."""
import json
import secrets
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from lib.items import fresh, item, post
from lib.wait import eventually, free_port
from lib.wire import Client, RawConnection, request_bytes

ROUTE = "/v1/hydration"
NOT_FOUND = b'{"code":"ENTITY_NOT_FOUND","message":"no such entity"}'
SILENT = "nobody_has"  # a type without an owner
PATIENT = {"hydration": {"wait_timeout_ms": 5000}}  # a slow machine decides nothing
BRIEF = {"hydration": {"wait_timeout_ms": 400}}  # long enough for a connection of the database


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, PATIENT, args=["--roles", "hydration,intake"])


@pytest.fixture(scope="module")
def alone(module_serve, module_database):
    """Nobody answers here; and it does not wait long."""
    return module_serve(module_database, BRIEF, args=["--roles", "hydration"])


@pytest.fixture
def client(server, token):
    with server.client(token("demo")) as client:
        yield client


def made(client, **members):
    """A new item's sku and itself, to the byte."""
    answer = post(client, item(**members))
    assert answer.status == 201, answer.body
    return answer.json()["sku"], answer.body


def entity(client, sku, query=""):
    return client.get(f"{ROUTE}/item/{quote(sku, safe='')}{query}")


def waiters(server):
    return server.metrics()["hydration_waiters"]


# ---- the entity ----

def test_h6_it_is_as_its_owner_has_it_to_the_byte(client):
    sku, whole = made(client, price=1.50, tags=["a", {"b": None}])
    answer = entity(client, sku)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert answer.body == (b'{"entity_type":"item","entity_id":"%s","source_module":"intake","data":%s}' % (sku.encode(), whole))
    assert entity(client, sku, "?mode=full&failure_mode=fail-fast").body == answer.body
    assert client.request("HEAD", f"{ROUTE}/item/{sku}").headers["content-length"] == str(len(answer.body))


def test_h2_partial_has_the_members_asked_for_and_existence_none(client):
    sku, _ = made(client, price=1.50, **{"a,b": "comma", "ключ": 7})

    def data(query):
        answer = entity(client, sku, query)
        assert answer.status == 200, answer.body
        return answer.json()["data"]
    assert data("?mode=partial&fields=title") == {"title": "Sample Item"}
    assert data("?mode=partial&fields=sku,price,none,sku") == {"sku": sku, "price": 1.50}
    assert data(f"?mode=partial&fields=a%2Cb,{quote('ключ')}") == {"a,b": "comma", "ключ": 7}
    assert data(f"?mode=partial&fields=a%2Cb&fields={quote('ключ')}") == {"a,b": "comma", "ключ": 7}
    assert data("?mode=existence") == {}
    assert data("")["sku"] == sku


def test_h6_what_is_not_there_is_404_with_the_same_words_each_time(client):
    sku = fresh()
    for query in ("", "", "?mode=existence", "?mode=partial&fields=title", "?failure_mode=defer", "?failure_mode=degrade"):
        answer = entity(client, sku, query)
        assert (answer.status, answer.body) == (404, NOT_FOUND)


def test_h4_what_was_not_there_is_found_once_it_is(client):
    sku = fresh()
    assert entity(client, sku).status == 404
    made(client, sku=sku)
    eventually(lambda: entity(client, sku).status == 200)


def test_c11_a_tenant_has_its_own(client, server, token):
    sku, _ = made(client)
    with server.client(token("other")) as stranger:
        assert entity(stranger, sku).body == NOT_FOUND
    assert entity(client, sku).status == 200


@pytest.mark.parametrize("sku", ["a/b", "100%", "a b", "ключ 🔑", 'quo"te\\', "a+b", "%2F", ".."])
def test_c3_any_text_is_an_id(client, sku):
    sku += fresh("-")
    made(client, sku=sku)
    assert entity(client, sku).json()["entity_id"] == sku


def test_an_id_with_a_slash_may_be_two_segments(client):
    sku, _ = made(client, sku=f"{fresh()}/тест %")
    first, second = sku.split("/")
    answer = client.get(f"{ROUTE}/item/{first}/{quote(second)}")
    assert answer.status == 200 and answer.body == entity(client, sku).body
    assert client.get(f"{ROUTE}/item/{first}/none").body == NOT_FOUND
    assert client.get(f"{ROUTE}/item/{first}/a/b").code == "NOT_FOUND"


# ---- questions that are none ----

@pytest.mark.parametrize("target, field", [
    ("/item/x?mode=partial", "fields"),
    ("/item/x?mode=partial&fields=", "fields"),
    ("/item/x?mode=partial&fields=a,,b", "fields"),
    ("/item/x?mode=partial&fields=" + "x" * 129, "fields"),
    ("/item/x?mode=partial&fields=" + ",".join(map(str, range(33))), "fields"),
    ("/item/x?mode=partial&fields=a%00", "fields"),
    ("/item/x?fields=title", "fields"),
    ("/item/x?mode=existence&fields=title", "fields"),
    ("/item/x?mode=FULL", "mode"),
    ("/item/x?mode=", "mode"),
    ("/item/x?mode=full&mode=full", "mode"),
    ("/item/x?failure_mode=never", "failure_mode"),
    ("/item/x?stray=1", "stray"),
    ("/Item/x", "entity_type"),
    ("/0item/x", "entity_type"),
    ("/i-tem/x", "entity_type"),
    ("/" + "i" * 65 + "/x", "entity_type"),
    ("/item/" + "x" * 1101, "entity_id"),
    ("/item/a%0Ab", "entity_id"),
    ("/item/%00", "entity_id"),
    ("/item/%ff", "entity_id"),
    ("/item/a%2", "entity_id"),
    ("/item/a/%ff", "second"),
])
def test_c6_a_bad_question_is_400_and_names_the_field(client, target, field):
    answer = client.get(ROUTE + target)
    assert (answer.status, answer.code, answer.json().get("field")) == (400, "BAD_REQUEST", field), answer.body


def test_c5_a_token_with_a_tenant_is_needed_and_no_scope(server, token):
    with server.client() as nobody, server.client(token(None)) as homeless:
        assert entity(nobody, "x").code == "UNAUTHENTICATED"
        assert entity(homeless, "x").code == "TENANT_MISMATCH"


def test_c6_it_is_only_read(client):
    for method in ("POST", "PUT", "DELETE"):
        answer = client.request(method, f"{ROUTE}/item/x")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


# ---- when nobody answers ----

def test_c6_the_longest_id_of_the_longest_name_is_one_as_any_other(alone, token):
    """H4: the ledger's keys take it; it is asked for, and nobody answers."""
    with alone.client(token("demo", subject=secrets.token_hex(127))) as client:
        answer = client.get(f"{ROUTE}/{'n' * 64}/{secrets.token_hex(550)}")
        assert (answer.status, answer.code) == (503, "HYDRATION_TIMEOUT")



@pytest.mark.tsan
def test_h5_three_ways_to_fail(alone, token):
    with alone.client(token("demo")) as client:
        target = f"{ROUTE}/{SILENT}/{fresh()}"
        failed = client.get(target)
        assert (failed.status, failed.code) == (503, "HYDRATION_TIMEOUT") and int(failed.headers["retry-after"]) >= 1
        deferred = client.get(target + "?failure_mode=defer")
        assert (deferred.status, deferred.body) == (202, b'{"status":"PENDING"}')
        degraded = client.get(target + "?failure_mode=degrade")
        assert degraded.status == 200 and degraded.json() == {
            "entity_type": SILENT, "entity_id": target.rsplit("/", 1)[1], "source_module": None, "data": {}, "degraded": True}


def test_h2_answers_leave_in_order_whoever_has_to_wait(client, alone, token):
    """A pipeline of those who wait and one who need not."""
    bearer = {"Authorization": f"Bearer {token('demo')}"}
    with RawConnection(alone.port) as connection:
        connection.send(b"".join(request_bytes("GET", f"{ROUTE}/{kind}/{fresh()}{query}", bearer) for kind, query in
                                 ((SILENT, ""), ("Item", ""), (SILENT, "?failure_mode=defer"))))
        assert [connection.read_response("GET").status for _ in range(3)] == [503, 400, 202]


@pytest.mark.tsan
def test_h2_many_wait_without_a_thread_and_all_are_answered(alone, token):
    bearer, sku, before = token("demo"), fresh(), waiters(alone)  # another test's, deferred: they wait for a minute

    def one(number):
        with Client(alone.port, bearer) as client:
            return client.get(f"{ROUTE}/{SILENT}/{sku}-{number % 3}").status
    with ThreadPoolExecutor(60) as pool:
        assert set(pool.map(one, range(180))) == {503}
    eventually(lambda: waiters(alone) <= before)


def test_h2_a_client_that_goes_takes_its_waiter_along(server, token):
    """The wait is of 5 s: nobody sits it out."""
    head = request_bytes("GET", f"{ROUTE}/{SILENT}/{fresh()}", {"Authorization": f"Bearer {token('demo')}"})
    connections = [RawConnection(server.port) for _ in range(20)]
    for connection in connections:
        connection.send(head)
    eventually(lambda: waiters(server) == 20)
    begun = time.monotonic()
    for connection in connections:  # a plain close may be a half one, and still be answered
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    eventually(lambda: waiters(server) == 0)
    assert time.monotonic() - begun < 4


def test_c8_without_postgres_it_is_503(serve, database, token):
    config = {"hydration": {}, "postgres": {"jdbcUrl": f"jdbc:postgresql://127.0.0.1:{free_port()}/none"}}
    server = serve.make(database, config, args=["--roles", "hydration"]).start(ready=False)
    eventually(lambda: "serving" in server.log())
    with server.client(token("demo")) as client:
        answer = entity(client, "x")
        assert (answer.status, answer.code) == (503, "UNAVAILABLE") and "retry-after" in answer.headers
        assert client.get(f"{ROUTE}/item/x?mode=partial").code == "BAD_REQUEST"


def test_c7_a_stop_answers_who_waits(serve, database, token):
    server = serve(database, {"hydration": {"wait_timeout_ms": 1500}}, args=["--roles", "hydration"])
    with RawConnection(server.port) as connection:
        connection.send(request_bytes("GET", f"{ROUTE}/{SILENT}/x", {"Authorization": f"Bearer {token('demo')}"}))
        eventually(lambda: waiters(server) == 1)
        server.process.terminate()
        answer = connection.read_response("GET")
        assert answer.status == 503 and json.loads(answer.body)["code"] in ("UNAVAILABLE", "HYDRATION_TIMEOUT")
    server.stop()
