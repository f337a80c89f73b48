"""I1–I7 on intake, policy reject: forms of keys, replays, conflicts, scope, time to live, cleaning up, metrics."""
import hashlib
import json

import pytest

from lib.items import CONFLICT, INTAKE, INVALID, PATH, ROUTE, effects, fresh, item, post
from lib.wait import eventually
from lib.wire import Client, request_bytes


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, args=INTAKE)


@pytest.fixture
def client(server, token):
    with Client(server.port, token("demo")) as one:
        yield one


def is_replay(first, again):
    """The same answer to the byte, and marked as one."""
    return ((again.status, again.body, again.headers.get("location")) == (first.status, first.body, first.headers.get("location"))
            and again.headers.get("idempotency-replayed") == "true")


def test_a_key_needs_a_user(server, token):
    """C5, I2: tokens without sub would share their keys, and read each other's answers."""
    body = item()
    with Client(server.port, token("demo", subject=None)) as nobody:
        refused = post(nobody, body, fresh("key"))
        assert (refused.status, refused.json()["error_code"]) == (403, "INSUFFICIENT_SCOPE")
        assert "sub" in refused.json()["detail"]
        assert post(nobody, body).status == 201  # nothing was written before; without a key no user is needed


# ---- forms (I1) ----

@pytest.mark.parametrize("text", ["client-request-123", "user-456-session-789", "2024-01-15-10-30-00-abc123", "a", "-", "_", "0",
                                 "x" * 255, "A-Z_az-09"])
def test_a_valid_key_is_taken(client, text):
    key = text if len(text) == 255 else (text + fresh("-"))[:255]
    body = item()
    first = post(client, body, key)
    assert (first.status, first.headers.get("idempotency-replayed")) == (201, None)
    assert is_replay(first, post(client, body, key))


@pytest.mark.parametrize("text", ["@invalid-key#123", "", "invalid@key#123", "x" * 256, "a b", "a,b", "a.b", "a/b", "ключ",
                                 '"quoted"', "a\\b", "a;b", "%41"])
def test_an_invalid_key_is_refused_word_for_word(client, module_database, text):
    body = item()
    answer = post(client, body, text.encode().decode("latin-1"))
    assert answer.status == 400
    assert answer.json() == {"detail": INVALID, "error_code": "INVALID_IDEMPOTENCY_KEY", "idempotency_key": text[:255]}
    assert effects(module_database, body["sku"]) == (0, 0, 0)


def test_a_key_that_comes_twice_is_refused(server, token):
    """Even where both say the same: which one would count elsewhere on the way?"""
    for second in ("one", "two"):
        body = json.dumps(item()).encode()
        data = request_bytes("POST", PATH, {"Authorization": f"Bearer {token('demo')}", "Content-Type": "application/json",
                                            "Idempotency-Key": "one"}, body)
        data = data.replace(b"Idempotency-Key: one\r\n", b"Idempotency-Key: one\r\nidempotency-key: %s\r\n" % second.encode())
        with server.raw() as connection:
            answer = connection.exchange(data)
        assert (answer.status, answer.json()["error_code"]) == (400, "INVALID_IDEMPOTENCY_KEY")


def test_spaces_around_a_key_are_not_the_keys(client):
    body, key = item(), fresh("key")
    first = post(client, body, f"  {key}\t")
    assert first.status == 201
    assert is_replay(first, post(client, body, key))


def test_without_a_key_everything_works_as_usual(client, module_database):
    body = item()
    assert post(client, body).status == 201
    again = post(client, body)
    assert (again.status, again.json()["error_code"]) == (409, "SKU_TAKEN")
    assert effects(module_database, body["sku"]) == (1, 1, 0)


def test_a_get_knows_no_key(client):
    """I1: only POST."""
    body = item()
    made = post(client, body)
    read = client.get(made.headers["location"], Idempotency_Key="not a key @")
    assert (read.status, read.body, read.headers.get("idempotency-replayed")) == (200, made.body, None)


# ---- replays and conflicts (I2) ----

@pytest.mark.tsan
def test_the_same_again_gives_the_same_answer_and_no_second_effect(client, module_database):
    """Seed scenarios 1 and 2."""
    body, key = item(price=1.50, tags=["a"]), fresh("new-key")
    first = post(client, body, key)
    assert first.status == 201
    for _ in range(3):
        assert is_replay(first, post(client, body, key))
    assert effects(module_database, body["sku"]) == (1, 1, 1)
    stored = module_database.query("select tenant_id, subject, method, route, request_hash, response_status, response_body"
                                   " from intake.idempotency_keys where idempotency_key = %s", (key,))[0]
    assert (*stored[:4], bytes(stored[4]), *stored[5:]) == (
        "demo", "alice", "POST", PATH, hashlib.sha256(json.dumps(body).encode()).digest(), 201, first.body.decode())


def test_another_body_under_the_same_key_is_a_conflict(client, module_database):
    """Seed scenario 3; the body is its bytes, so other white space is another body."""
    body, key = item(), fresh("key")
    first = post(client, body, key)
    other = item()
    for sent in (other, {**body, "title": "Different Item"}, json.dumps(body).encode() + b" "):
        answer = post(client, sent, key)
        assert answer.status == 409
        assert answer.json() == {"detail": CONFLICT, "error_code": "IDEMPOTENCY_KEY_CONFLICT", "idempotency_key": key}
    assert effects(module_database, other["sku"]) == (0, 0, 0)
    assert is_replay(first, post(client, body, key))


def test_a_key_is_its_users_its_tenants_and_its_routes(server, token, client, module_database):
    """I2: nobody reads another's answer."""
    body, key = item(), fresh("key")
    first = post(client, body, key)
    with Client(server.port, token("demo", subject="bob")) as bob, Client(server.port, token("other")) as other:
        refused = post(bob, body, key)  # a request of his own, for a sku that is taken
        assert (refused.status, refused.json()["error_code"]) == (409, "SKU_TAKEN")
        made = post(bob, item(), key)
        assert (made.status, made.headers.get("idempotency-replayed")) == (201, None)
        elsewhere = post(other, body, key)
        assert (elsewhere.status, elsewhere.headers.get("idempotency-replayed")) == (201, None)
        assert elsewhere.json()["id"] != first.json()["id"]
    # As if the same key had been used on another route, with another body.
    module_database.query("insert into intake.idempotency_keys select tenant_id, subject, method, '/api/v1/other', %s,"
                          " sha256('other'), 200, '{}', created_at, expires_at from intake.idempotency_keys"
                          " where idempotency_key = %s and subject = 'alice' and tenant_id = 'demo'", (f"{key}-r", key))
    assert post(client, item(), f"{key}-r").status == 201
    assert is_replay(first, post(client, body, key))


# ---- failures (I4) ----

def test_a_failed_request_frees_its_key(client, module_database):
    taken, key = item(), fresh("key")
    assert post(client, taken).status == 201
    for wanted, code, sent in ((409, "SKU_TAKEN", {**taken, "x": 1}), (400, "BAD_REQUEST", {"sku": "s"}),
                               (409, "SKU_TAKEN", {**taken, "x": 2})):
        answer = post(client, sent, key)
        assert (answer.status, answer.json()["error_code"]) == (wanted, code)
        assert "idempotency-replayed" not in answer.headers
    assert module_database.value("select count(*) from intake.idempotency_keys where idempotency_key = %s", (key,)) == 0
    body = item()
    first = post(client, body, key)
    assert (first.status, first.headers.get("idempotency-replayed")) == (201, None)
    assert is_replay(first, post(client, body, key))


def test_an_effect_that_fails_in_the_middle_leaves_nothing(client, module_database):
    """C4, I4, I8: the event cannot be written, so there is no item, no stored answer, and no word of the inside."""
    body, key = item(), fresh("key")
    module_database.query("create function intake.refuse() returns trigger language plpgsql as"
                          " $$ begin raise exception 'a secret of the inside'; end $$;"
                          "create trigger refuse before insert on intake.event_outbox for each row execute function intake.refuse()")
    try:
        answer = post(client, body, key)
        assert (answer.status, answer.json()["error_code"]) == (500, "INTERNAL_ERROR")
        assert b"secret" not in answer.body and b"raise" not in answer.body
        assert effects(module_database, body["sku"]) == (0, 0, 0)
    finally:
        module_database.query("drop trigger refuse on intake.event_outbox; drop function intake.refuse()")
    assert post(client, body, key).status == 201
    assert effects(module_database, body["sku"]) == (1, 1, 1)


# ---- time to live (I6) ----

def shift(database, key, by):
    """Moves the clock for one key: its row is so much older."""
    database.query("update intake.idempotency_keys set created_at = created_at - %s::interval,"
                   " expires_at = expires_at - %s::interval where idempotency_key = %s", (by, by, key))


def test_an_answer_lives_for_an_hour(client, module_database):
    """Seed's table of timings: T+1m, T+10m, T+60m are replays, T+61m is new; replays prolong nothing."""
    body, key = item(), fresh("key")
    first = post(client, body, key)
    ttl = "select extract(epoch from expires_at - created_at) from intake.idempotency_keys where idempotency_key = %s"
    assert module_database.value(ttl, (key,)) == 3600
    for by in ("1 minute", "9 minutes", "49 minutes 50 seconds"):
        shift(module_database, key, by)
        assert is_replay(first, post(client, body, key))
        assert module_database.value(ttl, (key,)) == 3600
    shift(module_database, key, "1 minute 10 seconds")  # T+61m
    again = post(client, body, key)  # a new request: its sku is taken now, and that frees the key
    assert (again.status, again.json()["error_code"]) == (409, "SKU_TAKEN")
    other = item()
    new = post(client, other, key)
    assert (new.status, new.headers.get("idempotency-replayed")) == (201, None)
    assert is_replay(new, post(client, other, key))
    assert module_database.value(ttl, (key,)) == 3600


def test_an_expired_key_takes_another_body_and_an_expired_duplicate_is_no_conflict(client, module_database):
    body, key = item(), fresh("key")
    assert post(client, body, key).status == 201
    shift(module_database, key, "1 hour 1 second")
    other = item()
    first = post(client, other, key)
    assert (first.status, first.headers.get("idempotency-replayed")) == (201, None)
    assert post(client, body, key).json()["error_code"] == "IDEMPOTENCY_KEY_CONFLICT"


def left(database, keys):
    """Those of the keys whose rows are there."""
    rows = database.query("select idempotency_key from intake.idempotency_keys")
    return {name for name, key in keys.items() if (key,) in rows}


def test_cleaning_up_takes_what_expired_and_nothing_alive(serve, database, token):
    """I6: counted and logged; a row that somebody holds on to, who is using its key again, waits."""
    keys = {name: fresh(name) for name in ("old", "older", "edge", "young", "busy")}
    first = serve(database, args=INTAKE)
    with Client(first.port, token("demo")) as client:
        for key in keys.values():
            assert post(client, item(), key).status == 201
    first.stop()
    for name, by in (("old", "1 hour 1 second"), ("older", "30 days"), ("edge", "59 minutes"), ("busy", "2 hours")):
        shift(database, keys[name], by)
    with database.connect() as holder:
        holder.autocommit = False
        with holder.cursor() as cursor:
            cursor.execute("select from intake.idempotency_keys where idempotency_key = %s for update", (keys["busy"],))
            tidy = serve(database, {"intake": {"idempotency": {"cleanup-interval": "100ms"}}}, args=INTAKE)
            eventually(lambda: left(database, keys) == {"edge", "young", "busy"})
    holder.close()
    eventually(lambda: left(database, keys) == {"edge", "young"})
    lines = eventually(lambda: len(lines := tidy.logs(event="idempotency_keys_cleaned")) == 2 and lines)
    assert [(line["table"], line["count"]) for line in lines] == [("intake.idempotency_keys", 2), ("intake.idempotency_keys", 1)]
    assert tidy.metrics()['idempotency_cleanup_count_total{route="/api/v1/items"}'] == 3


# ---- metrics and logs (I7, C9) ----

def test_metrics_tell_what_became_of_keys_by_route(server, client):
    def counts():
        metrics = server.metrics()
        return [metrics.get(f"idempotency_{name}_total{ROUTE}", 0) for name in ("hit", "miss", "conflict", "processing_collision")]
    before = counts()
    body, key = item(), fresh("key")
    for sent in (body, body, body, item(), item()):
        post(client, sent, key)
    post(client, item())
    assert [now - then for now, then in zip(counts(), before)] == [2, 1, 2, 0]


def test_keys_and_bodies_are_never_logged(server, client):
    secret = fresh("secret")
    body = item(title=secret)
    for key, sent in ((secret, body), (secret, body), (secret, {**body, "x": 1}), (f"{secret}@", body), (f"{secret}2", {"sku": 1})):
        post(client, sent, key)
    assert secret not in server.log()
