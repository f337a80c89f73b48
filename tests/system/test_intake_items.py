"""I8, C4, C6: items by POST and GET, in the error style of seed 002."""
import json
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from lib.items import INTAKE, PATH, effects, fresh, item, post
from lib.wire import Client, request_bytes

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, args=INTAKE)


@pytest.fixture
def client(server, token):
    with Client(server.port, token("demo")) as one:
        yield one


@pytest.mark.tsan
def test_an_item_is_created_and_read(client, module_database):
    body = item()
    made = post(client, body)
    assert made.status == 201, made.body
    value = made.json()
    assert list(value) == ["id", "sku", "title", "created_at"]
    assert uuid.UUID(value["id"]) and TIME.fullmatch(value["created_at"])
    assert (value["sku"], value["title"]) == (body["sku"], "Sample Item")
    assert made.headers["location"] == f"{PATH}/{body['sku']}"
    assert "idempotency-replayed" not in made.headers
    read = client.get(made.headers["location"])
    assert (read.status, read.body) == (200, made.body)
    assert client.request("HEAD", made.headers["location"]).status == 200
    assert effects(module_database, body["sku"]) == (1, 1, 0)
    assert module_database.value("select created_by from intake.items where sku = %s", (body["sku"],)) == "alice"


def test_other_members_come_back_as_the_bytes_they_came_as(client):
    """1.50 is not 1.5, and an integer past 2^63 is one."""
    sku = fresh()
    raw = b' { "price" : 1.50, "big":123456789012345678901234567890, "sku" : "%s","tags":[ "a" ,{"b":null}],' \
          b'"title":"T\\u00e9 \\"q\\" \\/","\\u006e":"\\u00e9" } ' % sku.encode()
    made = post(client, raw)
    assert made.status == 201, made.body
    assert made.body.endswith(b'","price":1.50,"big":123456789012345678901234567890,"tags":[ "a" ,{"b":null}],"\\u006e":"\\u00e9"}')
    assert made.json()["title"] == 'Té "q" /'
    assert client.get(f"{PATH}/{sku}").body == made.body


@pytest.mark.parametrize("sku", ["a/b?c#d%e", "ключ 🔑", "a" * 128, "🔑" * 128, "-", ".", " a ", "\u00a0x", "%2F", "a+b", '"\\'])
def test_any_sku_is_found_where_location_says(client, sku):
    sku = sku if len(sku) > 100 else f"{sku}{uuid.uuid4().hex}"
    made = post(client, item(sku))
    assert made.status == 201, made.body
    assert made.headers["location"] == f"{PATH}/{quote(sku, safe='-._~')}"
    assert client.get(made.headers["location"]).json()["sku"] == sku


def test_a_sku_is_its_tenants_own(server, token):
    """C11, 409 SKU_TAKEN."""
    body = item()
    with Client(server.port, token("demo")) as one, Client(server.port, token("other")) as other:
        first = post(one, body)
        assert first.status == 201
        again = post(one, {**body, "title": "Another"})
        assert (again.status, again.json()) == (
            409, {"detail": "an item with this sku exists", "error_code": "SKU_TAKEN", "field": "sku"})
        assert other.get(f"{PATH}/{body['sku']}").status == 404
        assert post(other, body).json()["id"] != first.json()["id"]
        assert one.get(f"{PATH}/{body['sku']}").body == first.body


def test_of_many_who_want_one_sku_one_gets_it(server, token, module_database):
    """Without a key each is a request of its own."""
    sku, gate = fresh(), threading.Barrier(16)

    def one(number):
        with Client(server.port, token("demo")) as client:
            gate.wait()
            return post(client, item(sku, number=number))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(16)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 15
    assert {answer.json().get("error_code") for answer in answers} == {None, "SKU_TAKEN"}
    assert effects(module_database, sku) == (1, 1, 0)


def test_what_is_not_there_is_404(client):
    for path in (f"{PATH}/none", f"{PATH}/{'x' * 2000}", f"{PATH}/%F0%9F%94%91"):
        answer = client.get(path)
        assert (answer.status, answer.json()) == (
            404, {"detail": "no item with this sku", "error_code": "ITEM_NOT_FOUND", "field": "sku"})


DEEP = '{"sku":"s","title":"t","x":' + "[" * 63 + "]" * 63 + "}"
BAD = [
    (b"", None), (b"{", None), (b"[]", None), (b'"sku"', None), (b"\xff", None), (b'{"sku":"a","title":"b"}x', None),
    ({"title": "t"}, "sku"), ({"sku": "s"}, "title"), ({}, "sku"),
    ({"sku": "", "title": "t"}, "sku"), ({"sku": " ", "title": "t"}, "sku"), ({"sku": "s", "title": ""}, "title"),
    ({"sku": "s", "title": "  "}, "title"), ({"sku": 7, "title": "t"}, "sku"), ({"sku": None, "title": "t"}, "sku"),
    ({"sku": ["s"], "title": "t"}, "sku"), ({"sku": "s", "title": {"t": 1}}, "title"), ({"sku": "s", "title": True}, "title"),
    ({"sku": "x" * 129, "title": "t"}, "sku"), ({"sku": "s", "title": "x" * 1025}, "title"),
    ({"sku": "a\nb", "title": "t"}, "sku"), ({"sku": "a\x7f", "title": "t"}, "sku"), ({"sku": "s", "title": "a\tb"}, "title"),
    ({"sku": "a\u0000", "title": "t"}, "sku"), ({"sku": "s", "title": "t", "x": {"y": ["\u0000"]}}, "x"),
    (b'{"sku":"s","title":"t","\\u0000":1}', "a name"), (b'{"sku":"a","sku":"b","title":"t"}', "sku"),
    (b'{"sku":"a","\\u0073ku":"b","title":"t"}', "sku"), (b'{"sku":"a","title":"t","x":1,"x":1}', "x"),
    (b'{"sku":"\\ud800","title":"t"}', None), ({"sku": "s", "title": "t", "id": 1}, "id"),
    ({"sku": "s", "title": "t", "created_at": None}, "created_at"),
    (DEEP.replace("[[", "[[[", 1).replace("]]", "]]]", 1).encode(), None),
]


@pytest.mark.parametrize("body, field", BAD, ids=[str(number) for number in range(len(BAD))])
def test_a_bad_body_is_400_naming_the_field(client, module_database, body, field):
    """C6: nothing written, the connection still usable, and the key free."""
    before = module_database.query("select (select count(*) from intake.items), (select count(*) from intake.idempotency_keys)")
    key = fresh("key")
    answer = post(client, body, key)
    value = answer.json()
    assert (answer.status, value["error_code"], value.get("field")) == (400, "BAD_REQUEST", field), value
    assert value["detail"] and "connection" not in answer.headers
    assert module_database.query(
        "select (select count(*) from intake.items), (select count(*) from intake.idempotency_keys)") == before
    good = post(client, item(), key)
    assert (good.status, good.headers.get("idempotency-replayed")) == (201, None)


def test_the_deepest_and_the_largest_are_taken(client):
    assert post(client, DEEP.replace('"s"', f'"{fresh()}"').encode()).status == 201
    body = item(blob="x" * (500 * 1024))
    made = post(client, body, fresh("key"))
    assert (made.status, made.json()["blob"]) == (201, body["blob"])
    assert client.get(made.headers["location"]).body == made.body


def test_errors_of_its_paths_have_its_style(server, token):
    """C4: {"detail","error_code"} wherever the path is known."""
    bearer = {"Authorization": f"Bearer {token('demo')}"}
    json_type = {"Content-Type": "application/json"}
    cases = [
        (request_bytes("POST", PATH, json_type, b"{}"), 401, "UNAUTHENTICATED"),
        (request_bytes("DELETE", PATH, bearer), 405, "METHOD_NOT_ALLOWED"),
        (request_bytes("GET", PATH, bearer), 405, "METHOD_NOT_ALLOWED"),
        (request_bytes("PUT", f"{PATH}/x", bearer), 405, "METHOD_NOT_ALLOWED"),
        (request_bytes("POST", PATH, {**bearer, "Content-Type": "text/plain"}, b"{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (request_bytes("POST", PATH, {**bearer, **json_type}, b"x" * (512 * 1024 + 1)), 413, "PAYLOAD_TOO_LARGE"),
        (request_bytes("POST", PATH, {**bearer, **json_type, "Content-Length": str(1 << 40)}), 413, "PAYLOAD_TOO_LARGE"),
        (request_bytes("POST", f"{PATH}?x=1", {**bearer, **json_type}, b"{}"), 400, "BAD_REQUEST"),
        (request_bytes("GET", f"{PATH}/a?x=1", bearer), 400, "BAD_REQUEST"),
        (request_bytes("GET", f"{PATH}/%00", bearer), 400, "BAD_REQUEST"),
        (request_bytes("GET", f"{PATH}/%zz", bearer), 400, "BAD_REQUEST"),
        (request_bytes("GET", f"{PATH}/%ff", bearer), 400, "BAD_REQUEST"),
        (request_bytes("GET", f"{PATH}/a/b", bearer), 404, "NOT_FOUND"),
        (request_bytes("GET", f"{PATH}/", bearer), 404, "NOT_FOUND"),
    ]
    for data, status, code in cases:
        with server.raw() as connection:
            answer = connection.exchange(data)
        value = answer.json()
        assert (answer.status, value.get("error_code")) == (status, code), (data[:80], value)
        assert value["detail"] and "code" not in value and "message" not in value
    assert "allow" in answer.headers or status == 404


def test_a_token_without_a_tenant_is_refused(server, token):
    """C5."""
    with Client(server.port, token(None)) as client:
        for answer in (post(client, item()), client.get(f"{PATH}/x")):
            assert (answer.status, answer.json()["error_code"]) == (403, "TENANT_MISMATCH")


def test_its_health_and_routes_are_there(server):
    """C8, C1: a process of this role alone."""
    with Client(server.port) as client:
        health = client.get("/actuator/health").json()
        assert (health["status"], health["roles"]) == ("UP", {"intake": {"status": "UP"}}), health
        assert client.get("/v1/tenants/demo/dictionaries/X/version").status == 404


def test_it_counts(server, client):
    before = server.metrics()
    body = item()
    for wanted, sent in ((201, body), (409, body), (400, {})):
        assert post(client, sent).status == wanted
    after = server.metrics()
    for result in ("created", "taken", "rejected"):
        name = f'intake_items_total{{result="{result}"}}'
        assert after[name] == before.get(name, 0) + 1


def test_what_a_key_refuses_is_counted_with_the_keys(server, client):
    """I7."""
    key = fresh("key")
    assert [post(client, body, key).status for body in (item(), item())] == [201, 409]
    assert 'intake_items_total{result="unavailable"}' not in server.metrics()


def test_bodies_stay_out_of_the_log(server, client):
    """C9."""
    secret = fresh("secret")
    assert post(client, item(title=secret, note=secret), fresh(secret)).status == 201
    assert post(client, {"title": secret, secret: 1}).status == 400
    client.get(f"{PATH}/{secret}")
    assert secret not in server.log()
    assert json.dumps(secret) not in server.log()
