"""E3, E4, O1–O5: what a change leaves in the outbox, and what of it stands on the bus."""
import json
import threading
import uuid

import pytest

from lib.config import base_config, to_yaml
from lib.entitlement import (ROLE, SCOPES, agree, body, grant, listed, live, new_key, published, revoke, versions_published,
                             GRANTS)
from lib.freshet import run
from lib.refdata import module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

FAST = {"entitlement": {"outbox": {"poll-interval": "50ms", "backoff-base": "10ms", "backoff-max": "50ms"}}}


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    return module_serve(module_refdata_db, FAST, args=ROLE)


@pytest.fixture(scope="module")
def db(module_refdata_db):  # noqa: F811
    return module_refdata_db


@pytest.fixture
def client(server, token):
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        yield client


def test_e4_an_event_has_the_seeds_fields_and_headers(server, client, db):
    answer = client.request("POST", GRANTS, json.dumps(body("a/b", "100%")), {
        "Content-Type": "application/json", "Idempotency-Key": new_key(),
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    key = "demo/a%2Fb/100%25"
    found, headers, event = eventually(lambda: [row for row in published(db) if row[0] == key])[0]
    event_id = event["event_id"]
    assert str(uuid.UUID(event_id)) == event_id and found == key
    assert event == {"event_id": event_id, "event_type": "EntitlementGranted", "occurred_at": answer.json()["updated_at"],
                     "user_id": "a/b", "stock_keeping_unit": "100%", "source": "purchase", "source_id": "p_456", "version": 1,
                     "tenant_id": "demo"}
    assert headers == {"event-id": event_id, "event_type": "EntitlementGranted", "aggregate_key": key,
                       "occurred_at": event["occurred_at"], "tenant_id": "demo",
                       "trace_id": "0af7651916cd43dd8448eb211c80319c",
                       "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    row = db.query("select actor, action, detail, event_id::text, created_at = (select updated_at from entitlement.entitlements"
                   " where user_id = 'a/b') from entitlement.entitlement_audit where user_id = 'a/b'")
    assert row == [("shop", "GRANT", {"reason": "purchase", "purchase_id": "p_456"}, event_id, True)]
    settled = "select status, attempt_count, claim_count, lease_until from entitlement.outbox_events where event_id = %s"
    assert eventually(lambda: [r for r in db.query(settled, (event_id,)) if r[0] == "PUBLISHED"]) == [("PUBLISHED", 0, 1, None)]
    assert eventually(lambda: server.logs(event="outbox_publish_succeeded") or True)


def test_e4_an_event_without_a_trace_gets_one(client, db):
    grant(client, "untraced")
    headers = eventually(lambda: [row for row in published(db) if row[0] == "demo/untraced/item1"])[0][1]
    assert len(headers["trace_id"]) == 32 and headers["trace_id"] in headers["traceparent"]


def test_e2_a_refusal_writes_nothing(client, db):
    before = db.value("select count(*) from entitlement.entitlement_audit")
    revoke(client, "nobody")
    assert db.value("select count(*) from entitlement.entitlements where user_id = 'nobody'") == 0
    assert db.value("select count(*) from entitlement.entitlement_audit") == before


def storm(servers, bearer, *, threads, changes, user, skus=1):
    """Everybody grants and revokes the same few; how many changes were made, and the versions they were told."""
    versions, wrong, lock = [], [], threading.Lock()

    def work(number):
        with servers[number % len(servers)].client(bearer) as client:
            for count in range(changes):
                sku = f"item{(count + number) % skus}"
                answer = (grant if (count + number) % 2 else revoke)(client, user, sku)
                with lock:
                    if answer.status == 200:
                        versions.append((sku, answer.json()["version"]))
                    elif (answer.status, answer.code) != (409, "ENTITLEMENT_STATE_CONFLICT"):
                        wrong.append((answer.status, answer.body))

    all_threads = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    assert not wrong
    return versions


@pytest.mark.tsan
def test_e2_o3_a_storm_of_two_processes_leaves_no_hole_and_all_tables_agree(serve, refdata_db, token):  # noqa: F811
    """Versions 1, 2, 3 … per (user, sku); audit, outbox and bus agree to the last row, in order."""
    servers = [serve(refdata_db, FAST, args=ROLE) for _ in range(2)]
    versions = storm(servers, token("demo", subject="shop", scope=SCOPES), threads=12, changes=24, user="u_storm", skus=3)
    for sku in ("item0", "item1", "item2"):
        told = sorted(version for name, version in versions if name == sku)
        assert told == list(range(1, len(told) + 1))
    eventually(lambda: live(refdata_db) == 0)
    assert agree(refdata_db) == len(versions) > 10
    assert refdata_db.value("select count(*) from entitlement.outbox_events where status <> 'PUBLISHED'") == 0


def test_i3_duplicates_of_one_grant_have_one_effect_and_one_answer(serve, refdata_db, token):  # noqa: F811
    """Serialize: all wait, all get the same bytes; in two processes."""
    servers = [serve(refdata_db, FAST, args=ROLE) for _ in range(2)]
    bearer, answers = token("demo", subject="shop", scope=SCOPES), []

    def send(server):
        with server.client(bearer) as client:
            answers.append(grant(client, key="duplicate"))
    threads = [threading.Thread(target=send, args=(servers[number % 2],)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(answer.status, answer.body) for answer in answers} == {(200, answers[0].body)}
    assert sorted("idempotency-replayed" in answer.headers for answer in answers) == [False] + [True] * 23
    eventually(lambda: live(refdata_db) == 0)
    assert agree(refdata_db) == 1


# ---- keys that have expired ----

def test_i6_an_expired_key_is_new_again_and_only_expired_ones_are_deleted(serve, refdata_db, token):  # noqa: F811
    """Expired at the very moment of expires_at; replays do not prolong it; the count is logged."""
    server = serve(refdata_db, {"entitlement": {"idempotency": {"cleanup-interval": "50ms"}}}, args=ROLE)
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        grant(client, key="old"), grant(client, "u_2", key="young")
        expiry = "select expires_at, expires_at - created_at = interval '24 hours' from entitlement.idempotency_keys" \
                 " where idempotency_key = 'young'"
        before = refdata_db.query(expiry)
        assert before[0][1] and grant(client, "u_2", key="young").headers["idempotency-replayed"] == "true"
        assert refdata_db.query(expiry) == before
        refdata_db.query("update entitlement.idempotency_keys set expires_at = now() where idempotency_key = 'old'")
        answer = grant(client, key="old")
        assert (answer.status, answer.code) == (409, "ENTITLEMENT_STATE_CONFLICT")  # a request like any other, and stored again
        assert "idempotency-replayed" not in answer.headers
        refdata_db.query("update entitlement.idempotency_keys set expires_at = now() where idempotency_key = 'old'")
        keys = "select idempotency_key from entitlement.idempotency_keys"
        eventually(lambda: refdata_db.query(keys) == [("young",)])
    cleaned = 'idempotency_cleanup_count_total{route="/v1/entitlements/grants"}'
    assert eventually(lambda: server.metrics().get(cleaned)) in (1, 2)  # it may have been quicker than the second grant


# ---- poison ----

@pytest.mark.parametrize("payload", ["no json", "{}", '{"event_id":"x"}'])
def test_o4_a_payload_that_cannot_be_parsed_fails_at_once_and_blocks_nothing(server, client, db, payload):
    user, metric = f"u_{new_key()}", 'outbox_dead_lettered_total{module="entitlement",event_type="EntitlementGranted"}'
    dead = server.metrics().get(metric, 0)
    event_id = str(uuid.uuid4())
    db.query("insert into entitlement.outbox_events (event_id, tenant_id, aggregate_key, sequence, event_type, payload,"
             " created_at) values (%s, 'demo', %s, 0, 'EntitlementGranted', %s, now())",
             (event_id, f"demo/{user}/item1", payload))
    grant(client, user)
    eventually(lambda: versions_published(db, f"demo/{user}/item1") == [1])
    status, attempts, error = eventually(lambda: [row for row in db.query(
        "select status, attempt_count, last_error from entitlement.outbox_events where event_id = %s", (event_id,))
        if row[0] == "FAILED"])[0]
    assert attempts == 1 and "payload" in error
    assert payload not in error or payload == "{}"
    assert eventually(lambda: server.logs(event="outbox_event_dead_lettered", eventId=event_id))[0]["module"] == "entitlement"
    assert eventually(lambda: server.metrics().get(metric, 0)) >= dead + 1


def test_o4_by_hand(server, client, db, jwks_path, tmp_path):
    """freshet outbox list, retry, discard and republish know the table."""
    config = tmp_path / "outbox.yaml"
    config.write_text(to_yaml(base_config(db, jwks_path)))

    def outbox(*args):
        done = run("outbox", *args, "--table", "entitlement.outbox_events", "--config", config,
                   env={"FRESHET_TEST_PG_PASSWORD": db.password})
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    user = f"u_{new_key()}"
    grant(client, user)
    eventually(lambda: versions_published(db, f"demo/{user}/item1") == [1])
    eventually(lambda: live(db) == 0)
    assert len(outbox("list", "--state", "published", "--of", f"demo/{user}/item1")) == 1
    outbox("republish", "--of", f"demo/{user}/item1")
    eventually(lambda: versions_published(db, f"demo/{user}/item1") == [1, 1])
    assert len({event["event_id"] for key, _, event in published(db) if user in key}) == 1


# ---- configuration ----

def refused(database, jwks_path, tmp_path, changes):
    from lib.config import merge  # pylint: disable=import-outside-toplevel
    path = tmp_path / "bad.yaml"
    path.write_text(to_yaml(merge(base_config(database, jwks_path), changes)))
    done = run("config", "--config", path, env={"FRESHET_TEST_PG_PASSWORD": ""})
    return done.returncode, done.stderr + done.stdout


NATS = {"bus": {"events": "nats"}, "nats": {"servers": ["nats://127.0.0.1:4222"]}}


@pytest.mark.parametrize("nats, named", [
    ({}, "entitlement.nats.subject"),
    ({"subject": "entitlement.events"}, "entitlement.nats.stream"),
    ({"subject": "a..b", "stream": "events"}, "entitlement.nats.subject"),
    ({"subject": "a.>", "stream": "events"}, "entitlement.nats.subject"),
    ({"subject": "a.b", "stream": "a.b"}, "entitlement.nats.stream"),
    ({"subject": "a.b", "stream": "events", "duplicate-window": "1m"}, "entitlement.nats.duplicate-window"),
])
def test_e4_nats_settings_are_required_and_make_sense(db, jwks_path, tmp_path, nats, named):
    status, said = refused(db, jwks_path, tmp_path, {**NATS, "entitlement": {"nats": nats}})
    assert status == 1 and f"{named}: " in said and "bad.yaml:" in said


def test_an_unknown_user_costs_no_row(client, db):
    before = db.value("select count(*) from entitlement.entitlements")
    assert listed(client, "never-seen").json()["entitlements"] == []
    assert db.value("select count(*) from entitlement.entitlements") == before
