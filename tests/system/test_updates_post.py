"""POST /updates and its status, without anybody applying: what is refused and how, what is accepted, and once only
(R1, R2, R8, C6). The server runs the command role alone, so every update stays PENDING."""
import contextlib
import hashlib
import json
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.apply import commands_on_the_bus, committed_commands
from lib.refdata import TENANT, make_table, module_refdata_db, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.writers import chunks, delta, snapshot, status_path, updates_path

READ_ONLY = sql_dictionary("READONLY", "t")
UPSERT_ONLY = sql_dictionary("UPSERTONLY", "t", apply={"upsertSql": "insert into t values (:tenantId, :key, :payload)"})
REPLACE_ONLY = sql_dictionary("REPLACEONLY", "t", apply={"snapshotReplaceSql": "select :snapshotJson"})
BROKEN = sql_dictionary("BROKEN", "no_such_table")
LIMITS = {"items": 3, "payloadBytes": 64, "depth": 8}


def settings(**updates):
    changes = pod("B", READ_ONLY, UPSERT_ONLY, REPLACE_ONLY, BROKEN)
    changes["refdata"]["updates"] = {**LIMITS, **updates}
    return changes


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    make_table(module_refdata_db, "t")
    server = module_serve(module_refdata_db, settings(), args=("--roles", "command"))
    server.database = module_refdata_db
    return server


@pytest.fixture
def client(server, token):
    client = server.client(token(TENANT))
    client.database = server.database
    return client


def requests(database):
    return database.query("select count(*) from refdata.update_request")[0][0]


def messages(database):
    return committed_commands(database)


# ---- accepted ----

def test_an_update_is_accepted_and_its_status_can_be_asked(client):
    body = delta("B", {"a": 1})
    answer = client.post(updates_path(), body)
    assert answer.status == 202
    assert answer.json() == {"eventId": body["eventId"], "status": "PENDING",
                             "statusUrl": status_path(body["eventId"])}
    assert answer.headers["location"] == status_path(body["eventId"])
    row = client.get(answer.headers["location"])
    assert row.status == 200
    got = row.json()
    assert set(got) == {"eventId", "dictCode", "status", "requestedBy", "createdAt", "updatedAt"}
    assert (got["eventId"], got["dictCode"], got["status"]) == (body["eventId"], "B", "PENDING")
    assert got["createdAt"].endswith("Z") and got["updatedAt"] >= got["createdAt"]


def test_the_command_and_the_row_are_there_together(client):
    body = delta("B", {"a": {"x": 0.10}}, sourceRevision=7)
    assert client.post(updates_path("WAIT_COMMIT"), body, traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01").status == 202
    assert client.get(status_path(body["eventId"])).json()["requestedBy"] == "alice"
    (key, named, payload), = eventually(lambda: [
        each for each in commands_on_the_bus(client.database) if each[1]["event-id"] == body["eventId"]])
    command = json.loads(payload)
    assert command["items"] == body["items"] and command["sourceRevision"] == 7
    assert (command["tenantId"], command["source"], command["eventId"]) == (TENANT, "REST", body["eventId"])
    assert key == f"{TENANT}:B"
    assert named["event-id"] == body["eventId"] and named["waited"] == "1"
    assert named["traceparent"].split("-")[1] == "ab" * 16


def test_the_server_gives_what_the_client_left_out(client):
    answer = client.post(f"/v1/tenants/{TENANT}/updates", {"dictCode": "B", "eventType": "DELTA", "items": []})
    assert answer.status == 202
    uuid.UUID(answer.json()["eventId"])
    assert client.get(answer.json()["statusUrl"]).json()["status"] == "PENDING"


def test_a_wait_that_runs_out_is_a_202_with_the_commit_made(client):
    body = delta("B", {"a": 1})
    answer = client.post(updates_path("WAIT_COMMIT", timeout_ms=50), body)
    assert (answer.status, answer.json()["status"]) == (202, "PENDING")
    assert client.get(status_path(body["eventId"])).status == 200


def test_a_large_body_is_taken_as_a_small_one_is(serve, refdata_db, token):  # noqa: F811
    server = serve(refdata_db, pod("B"), args=("--roles", "command"))
    client = server.client(token(TENANT))
    big = delta("B", {f"k{i}": "x" * 200 for i in range(5000)})
    assert client.post(updates_path(), big).status == 202
    (_, _, payload), = eventually(lambda: commands_on_the_bus(refdata_db))
    assert len(payload) > 1_000_000
    big["items"][4999]["key"] = ""
    answer = client.post(updates_path(), {**big, "eventId": str(uuid.uuid4())})
    assert (answer.status, answer.json()["field"]) == (400, "items[4999].key")
    answer = client.post(updates_path(), {**big, "dictCode": "NOPE"})
    assert (answer.status, answer.code) == (404, "UNKNOWN_DICTIONARY")
    eventually(lambda: server.metrics()['freshet_memory_used_bytes{account="writes"}'] == 0)


# ---- refused ----

def post_text(client, number, body):
    """The string "number" in it is sent as this text: Python would write it in its own way."""
    text = json.dumps(body).replace('"number"', number)
    return client.request("POST", updates_path(), text, {"Content-Type": "application/json"})


@pytest.mark.parametrize("change, field", [
    ({"priority": 1}, "priority"),
    ({"eventId": "x"}, "eventId"),
    ({"tenantId": "other"}, "tenantId"),
    ({"eventType": "MERGE"}, "eventType"),
    ({"sourceRevision": "1"}, "sourceRevision"),
    ({"snapshotId": 7}, "snapshotId"),
    ({"chunksTotal": 2}, "chunksTotal"),
    ({"occurredAt": "2026-02-27T12:00:00+01:00"}, "occurredAt"),
    ({"items": {}}, "items"),
    ({"items": [{"key": "a"}]}, "items[0].op"),
    ({"items": [{"key": "a", "op": "DELETE"}, {"key": "a\u0000", "op": "DELETE"}]}, "items[1].key"),
    ({"items": [{"key": "k" * 1025, "op": "DELETE"}]}, "items[0].key"),
    ({"items": [{"key": "a", "op": "UPSERT", "payload": "\u0000"}]}, "items[0].payload"),
])
def test_a_bad_member_is_400_by_name_and_nothing_is_written(client, change, field):
    before = requests(client.database), messages(client.database)
    answer = client.post(updates_path(), {**delta("B", {"a": 1}), **change})
    assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", field)
    assert (requests(client.database), messages(client.database)) == before
    assert client.post(updates_path(), delta("B", {"a": 1})).status == 202  # and the connection goes on


@pytest.mark.parametrize("number", ["1e131071", "-1E+1000", "2e-16383", "1" * 1001, "0." + "1" * 1000,
                                    "0.5e99999999999999999999"], ids=lambda number: number[:12])
def test_a_number_that_would_be_printed_with_thousands_of_digits_is_400(client, number):
    """C6: a limit holds for what a value becomes."""
    before = requests(client.database), messages(client.database)
    sent = post_text(client, number, delta("B", {"a": 1, "b": {"n": ["number"]}}))
    assert (sent.status, sent.code, sent.json()["field"]) == (400, "BAD_REQUEST", "items[1].payload")
    assert "1000 digits" in sent.json()["message"] and len(sent.body) < 300
    assert (requests(client.database), messages(client.database)) == before
    assert client.post(updates_path(), delta("B", {"a": 1})).status == 202


def test_a_payload_is_limited_by_what_its_numbers_become(client):
    """C6: 64 bytes here, however they are spelled."""
    assert post_text(client, "1e61", delta("B", {"a": "number"})).status == 202
    answer = post_text(client, "[1e40,1e40]", delta("B", {"b": 1, "a": "number"}))
    assert (answer.status, answer.json()["field"]) == (413, "items[1].payload")


@pytest.mark.parametrize("query, field", [
    ("consistencyMode=NOW", "consistencyMode"), ("consistencyMode=", "consistencyMode"),
    ("consistencyMode=ASYNC&consistencyMode=ASYNC", "consistencyMode"), ("timeoutMs=49", "timeoutMs"),
    ("timeoutMs=1001", "timeoutMs"), ("timeoutMs=1e2", "timeoutMs"), ("timeoutMs=", "timeoutMs"), ("wait=1", "wait"),
])
def test_a_bad_query_is_400_by_name(client, query, field):
    answer = client.post(f"/v1/tenants/{TENANT}/updates?{query}", delta("B", {}))
    assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", field)


@pytest.mark.parametrize("text", [b"", b"[]", b"nonsense", b'{"dictCode":"B"', b'{"dictCode":"B"}{}', b"\xff"])
def test_what_is_no_json_object_is_400(client, text):
    answer = client.request("POST", updates_path(), text, {"Content-Type": "application/json"})
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")


def test_limits_are_413(client):
    answer = client.post(updates_path(), delta("B", {str(i): i for i in range(4)}))
    assert (answer.status, answer.code, answer.json()["field"]) == (413, "PAYLOAD_TOO_LARGE", "items")
    answer = client.post(updates_path(), delta("B", {"a": "x" * 63}))
    assert (answer.status, answer.json()["field"]) == (413, "items[0].payload")
    assert client.post(updates_path(), delta("B", {"a": "x" * 62})).status == 202
    answer = client.post(updates_path(), delta("B", {"a": [[[[[[1]]]]]]}))
    assert answer.status == 400  # too deep


def test_a_body_over_the_servers_limit_is_413_and_another_type_415(client, server):
    with server.raw() as raw:  # the length alone is enough
        raw.send(f"POST {updates_path()} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
                 f"Content-Type: application/json\r\nContent-Length: {(8 << 20) + 1}\r\n\r\n".encode())
        assert raw.read_response().status == 413
    assert client.request("POST", updates_path(), b"{}", {"Content-Type": "text/plain"}).status == 415
    assert client.request("PUT", updates_path(), b"{}", {"Content-Type": "application/json"}).status == 405


@pytest.mark.parametrize("body, status, code", [
    (delta("NOPE", {"a": 1}), 404, "UNKNOWN_DICTIONARY"),
    (delta("READONLY", {"a": 1}), 409, "DICTIONARY_READ_ONLY"),
    (delta("READONLY", {}), 409, "DICTIONARY_READ_ONLY"),
    (snapshot("READONLY", {}), 409, "DICTIONARY_READ_ONLY"),
    (delta("UPSERTONLY", {"a": 1}), 202, None),
    (delta("UPSERTONLY", {"a": 1, "b": None}), 409, "DICTIONARY_READ_ONLY"),
    (snapshot("UPSERTONLY", {}), 409, "DICTIONARY_READ_ONLY"),
    (snapshot("REPLACEONLY", {}), 202, None),
    (delta("REPLACEONLY", {"a": 1}), 409, "DICTIONARY_READ_ONLY"),
    (snapshot("B", {"a": 1}), 202, None),
])
def test_a_dictionary_takes_what_it_has_sql_for(client, body, status, code):
    answer = client.post(updates_path(), body)
    assert (answer.status, answer.code) == (status, code)


def test_checks_come_in_order_token_tenant_dictionary_body(server, token):
    worst = {"dictCode": "NOPE", "items": 7}
    assert server.client().post(updates_path(), worst).status == 401
    answer = server.client(token("other")).post(updates_path(), worst)
    assert (answer.status, answer.code) == (403, "TENANT_MISMATCH")
    client = server.client(token(TENANT))
    assert client.post(updates_path(), worst).code == "UNKNOWN_DICTIONARY"
    assert client.post(updates_path(), {**worst, "dictCode": "READONLY"}).code == "BAD_REQUEST"


def test_another_tenant_finds_no_update(server, token):
    body = delta("B", {"a": 1})
    assert server.client(token(TENANT)).post(updates_path(), body).status == 202
    other = server.client(token("other"))
    assert other.get(status_path(body["eventId"])).status == 403
    answer = other.get(status_path(body["eventId"], "other"))
    assert (answer.status, answer.code) == (404, "UNKNOWN_UPDATE")
    assert other.post(updates_path(tenant="other"), body).status == 202  # an eventId is the tenant's own


def test_a_status_is_asked_by_a_uuid(client):
    assert client.get(status_path(str(uuid.uuid4()))).code == "UNKNOWN_UPDATE"
    answer = client.get(status_path("x"))
    assert (answer.status, answer.json()["field"]) == (400, "eventId")
    body = delta("B", {"a": 1})
    client.post(updates_path(), body)
    assert client.get(status_path(body["eventId"].upper())).status == 200


# ---- once only ----

@pytest.mark.parametrize("mode", ["ASYNC", "WAIT_COMMIT"])
def test_the_same_event_again_is_the_first_one(client, mode):
    body = delta("B", {"a": {"x": 1, "y": 2}})
    assert client.post(updates_path(), body).status == 202
    before = messages(client.database)
    text = json.dumps({**body, "items": [{"payload": {"y": 2, "x": 1}, "op": "UPSERT", "key": "a"}]}, indent=3)
    again = client.request("POST", updates_path(mode, timeout_ms=50), text, {"Content-Type": "application/json"})
    assert (again.status, again.json()["eventId"]) == (202, body["eventId"])
    other = client.post(updates_path(mode), {**body, "items": []})
    assert (other.status, other.code) == (409, "EVENT_ID_CONFLICT")
    assert messages(client.database) == before


def test_the_same_event_from_many_at_once_is_one(serve, refdata_db, token):  # noqa: F811
    servers = [serve(refdata_db, pod("B"), args=("--roles", "command")) for _ in range(2)]
    bodies = [delta("B", {"a": i}) for i in range(20)]

    def send(i):
        with servers[i % 2].client(token(TENANT)) as client:
            return [client.post(updates_path("WAIT_COMMIT" if i % 3 else "ASYNC", timeout_ms=50), body).status
                    for body in (bodies if i % 4 else reversed(bodies))]
    with ThreadPoolExecutor(8) as pool:
        statuses = [status for each in pool.map(send, range(8)) for status in each]
    assert set(statuses) == {202}
    assert requests(refdata_db) == messages(refdata_db) == len(bodies)


def test_a_conflict_does_not_spoil_those_who_shared_its_commit(serve, refdata_db, token):  # noqa: F811
    server = serve(refdata_db, pod("B"), args=("--roles", "command"))
    first = delta("B", {"a": 1})
    assert server.client(token(TENANT)).post(updates_path(), first).status == 202

    def send(i):
        body = {**first, "items": []} if i % 4 == 0 else delta("B", {"a": i})
        return i % 4 == 0, server.client(token(TENANT)).post(updates_path(), body).status
    with ThreadPoolExecutor(16) as pool:
        for conflict, status in pool.map(send, range(200)):
            assert status == (409 if conflict else 202)
    assert requests(refdata_db) == messages(refdata_db) == 151


# ---- Idempotency-Key ----

def test_a_replay_is_marked_whoever_chose_the_event_id(client):
    body = delta("B", {"a": 1})
    key = uuid.uuid4().hex
    first = client.post(updates_path(), body, Idempotency_Key=key)
    assert first.status == 202 and "idempotency-replayed" not in first.headers
    again = client.post(updates_path(), body, Idempotency_Key=key)
    assert (again.status, again.json(), again.headers["idempotency-replayed"]) == (202, first.json(), "true")
    other = client.post(updates_path(), delta("B", {"a": 2}, eventId=body["eventId"]), Idempotency_Key=key)
    assert (other.status, other.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")


def test_a_key_stands_for_its_event(client):
    body = {"dictCode": "B", "eventType": "DELTA", "items": []}
    key = uuid.uuid4().hex
    first = client.post(updates_path(), body, Idempotency_Key=key)
    assert first.status == 202 and "idempotency-replayed" not in first.headers
    before = requests(client.database), messages(client.database)
    again = client.post(updates_path("WAIT_COMMIT"), body, Idempotency_Key=key)
    assert (again.status, again.json(), again.headers["idempotency-replayed"]) == (202, first.json(), "true")
    other = client.post(updates_path(), {**body, "eventType": "SNAPSHOT"}, Idempotency_Key=key)
    assert (other.status, other.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")
    assert (requests(client.database), messages(client.database)) == before


def test_a_key_is_its_users_own_and_ends_after_an_hour(client, server, token):
    body = {"dictCode": "B", "eventType": "DELTA", "items": []}
    key = uuid.uuid4().hex
    first = client.post(updates_path(), body, Idempotency_Key=key).json()["eventId"]
    neighbour = server.client(token(TENANT, subject="neighbour"))
    assert neighbour.post(updates_path(), body, Idempotency_Key=key).json()["eventId"] != first
    stranger = server.client(token("other"))
    assert stranger.post(updates_path(tenant="other"), body, Idempotency_Key=key).json()["eventId"] != first
    client.database.query("update refdata.update_key set created_at = now() - interval '61 minutes'")
    late = client.post(updates_path(), {**body, "eventType": "SNAPSHOT"}, Idempotency_Key=key)
    assert late.status == 202 and late.json()["eventId"] != first


def test_a_refused_update_leaves_its_key_free(client):
    body, key = delta("B", {"a": 1}), uuid.uuid4().hex
    assert client.post(updates_path(), body).status == 202
    conflict = {**body, "items": []}
    assert client.post(updates_path(), conflict, Idempotency_Key=key).code == "EVENT_ID_CONFLICT"
    fine = delta("B", {"a": 2})
    answer = client.post(updates_path(), fine, Idempotency_Key=key)
    assert (answer.status, answer.json()["eventId"]) == (202, fine["eventId"])


@pytest.mark.parametrize("header", ["", " ", "a b", "ключ".encode().decode("latin-1"), "k" * 256, "a,b", "a.b"])
def test_a_bad_key_is_400(client, header):
    answer = client.post(updates_path(), delta("B", {}), Idempotency_Key=header)
    assert (answer.status, answer.code) == (400, "INVALID_IDEMPOTENCY_KEY")
    assert client.post(updates_path(), delta("B", {}), Idempotency_Key="k" * 255).status in (202, 409)


def test_the_same_key_from_many_at_once_is_one_event(serve, refdata_db, token):  # noqa: F811
    servers = [serve(refdata_db, pod("B"), args=("--roles", "command")) for _ in range(2)]
    body = {"dictCode": "B", "eventType": "DELTA", "items": []}

    def insist(client, key):
        """I3: while one with this key is in flight, in this process or the other, its duplicates are turned away."""
        while (answer := client.post(updates_path(), body, Idempotency_Key=key)).status == 409:
            assert answer.code == "IDEMPOTENCY_KEY_PROCESSING" and answer.json()["idempotency_key"] == key
        assert answer.status == 202
        return answer.json()["eventId"]

    def send(i):
        with servers[i % 2].client(token(TENANT)) as client:
            return [insist(client, f"k{j}") for j in range(10)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert requests(refdata_db) == messages(refdata_db) == 10


def lock_of(subject, key, tenant=TENANT):
    """Of the key's scope, each part behind its length (src/idempotency/key.c)."""
    parts = (tenant, subject, "POST", "/v1/tenants/{tenantId}/updates", key)
    framed = b"".join(struct.pack("<I", len(part.encode())) + part.encode() for part in parts)
    return struct.unpack(">q", hashlib.sha256(framed).digest()[:8])[0]


def test_a_duplicate_of_another_process_is_told_to_come_back(client, server):
    """I3, I7: whoever has the key's lock is at it; others are not kept waiting, and their updates not either."""
    key, body = uuid.uuid4().hex, delta("B", {"a": 1})
    collisions = 'idempotency_processing_collision_total{route="/v1/tenants/{tenantId}/updates"}'
    before = server.metrics().get(collisions, 0)
    with contextlib.closing(client.database.connect()) as duplicate, duplicate.cursor() as cursor:
        duplicate.autocommit = False
        cursor.execute("select pg_advisory_xact_lock(%s)", (lock_of("alice", key),))
        with ThreadPoolExecutor(4) as pool:
            keyed = pool.submit(client.post, updates_path(), body, Idempotency_Key=key)
            others = [pool.submit(server.client(client.token).post, updates_path(), delta("B", {})) for _ in range(8)]
            answer = keyed.result()
            assert [other.result().status for other in others] == [202] * 8
        assert (answer.status, answer.json()) == (409, {
            "code": "IDEMPOTENCY_KEY_PROCESSING", "idempotency_key": key,
            "message": "Request with this idempotency key is already being processed"})
        assert answer.headers["retry-after"] == "1"
        # one that has expired is no answer either, while somebody is at it
        client.database.query("insert into refdata.update_key values (%s, 'alice', %s, '', %s, now() - interval '2 hours')",
                              (TENANT, key, str(uuid.uuid4())))
        assert client.post(updates_path(), body, Idempotency_Key=key).status == 409
        duplicate.rollback()
    answer = client.post(updates_path(), body, Idempotency_Key=key)
    assert (answer.status, answer.json()["eventId"]) == (202, body["eventId"])
    assert "idempotency-replayed" not in answer.headers
    assert server.metrics()[collisions] == before + 2


def test_a_duplicate_of_one_that_waits_is_told_what_is_known(client, server):
    """R1, I3: nobody applies here, so the first waits for its whole second; it is committed, so its key is no longer in process."""
    key, body = uuid.uuid4().hex, delta("B", {"a": 1})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, updates_path("WAIT_COMMIT", timeout_ms=1000), body, Idempotency_Key=key)
        duplicate = server.client(client.token)
        eventually(lambda: client.database.query("select 1 from refdata.update_key where idempotency_key = %s", (key,)))
        answer = duplicate.post(updates_path(), body, Idempotency_Key=key)
        assert (answer.status, answer.headers["idempotency-replayed"]) == (202, "true")
        assert first.result().status == 202 and "idempotency-replayed" not in first.result().headers


def test_a_key_knows_its_body_by_sha_256_and_is_counted(client, server):
    """I2, I7, with the words of the seed."""
    names = [f'idempotency_{name}_total{{route="/v1/tenants/{{tenantId}}/updates"}}' for name in ("miss", "hit", "conflict")]
    before = [server.metrics().get(name, 0) for name in names]
    key, body = uuid.uuid4().hex, json.dumps(delta("B", {"a": 1})).encode()

    def post(content):
        return client.post(updates_path(), content, Idempotency_Key=key, Content_Type="application/json")
    for _ in range(3):
        assert post(body).status == 202
    assert client.database.query("select body_hash from refdata.update_key where idempotency_key = %s", (key,)) == [
        (hashlib.sha256(body).hexdigest(),)]
    other = post(body + b" ")
    assert (other.status, other.json()) == (409, {
        "code": "IDEMPOTENCY_KEY_CONFLICT", "message": "Idempotency key already used with different request body",
        "idempotency_key": key})
    assert [server.metrics()[name] - then for name, then in zip(names, before)] == [1, 2, 1]


# ---- chunks ----

@pytest.mark.parametrize("shared", [False, True])
def test_a_chunk_is_known_by_its_snapshot_and_index(client, shared):
    parts = chunks("B", {"a": 1, "b": 2, "c": 3}, 3)
    if shared:
        parts = [{**part, "eventId": parts[0]["eventId"]} for part in parts]
    before = messages(client.database)
    for part in parts:
        assert client.post(updates_path(), part).status == 202
    assert messages(client.database) == before + 3
    for part in parts:  # twice: nothing new
        assert client.post(updates_path(), part).status == 202
    assert messages(client.database) == before + 3
    answer = client.post(updates_path(), {**parts[1], "items": []})
    assert (answer.status, answer.code) == (409, "CHUNK_CONFLICT")
    fresh = {**parts[1], "items": [], "eventId": str(uuid.uuid4())}
    assert client.post(updates_path(), fresh).code == "CHUNK_CONFLICT"
    assert client.get(status_path(fresh["eventId"])).status == 404
    assert messages(client.database) == before + 3


def test_an_event_is_of_one_snapshot(client):
    first, second = chunks("B", {"a": 1, "b": 2}, 2), chunks("B", {"a": 1, "b": 2}, 2)
    assert client.post(updates_path(), first[0]).status == 202
    answer = client.post(updates_path(), {**second[0], "eventId": first[0]["eventId"]})
    assert (answer.status, answer.code) == (409, "EVENT_ID_CONFLICT")
    assert client.post(updates_path(), second[0]).status == 202  # the refused one claimed nothing
    answer = client.post(updates_path(), {**delta("B", {"a": 1}), "eventId": first[0]["eventId"]})
    assert answer.code == "EVENT_ID_CONFLICT"
