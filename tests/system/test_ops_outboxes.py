"""Issue 15, point 1: /v1/ops/outboxes lists the events of every outbox, and changes them."""
import json
import time

import pytest

from lib.outbox import leave
from lib.refdata import refdata_db  # noqa: F401

READ = "ops:read"
WRITE = "ops:read ops:write"
ALL = "ops:read ops:write ops:all-tenants"
TABLE = "/v1/ops/outboxes/refdata.outbox_event"


@pytest.fixture
def server(serve, refdata_db):  # noqa: F811
    return serve(refdata_db, args=["--roles", "query,ops"])


@pytest.fixture
def filled(refdata_db):  # noqa: F811
    """Of acme: 1 pending, 2 waits for its next attempt, 3 in flight, 4 in flight for too long, 5 published, 6 and 7 failed; of other: 1 failed."""
    leave(refdata_db, "D", 1, 7, tenant="acme")
    leave(refdata_db, "D", 1, 1, tenant="other")
    one = "update refdata.outbox_event set {} where tenant_id = 'acme' and version {}"
    refdata_db.query(one.format("attempt_count = 1, next_attempt_at = now() + interval '1 hour', last_error = 'busy'", "= 2"))
    refdata_db.query(one.format("locked_until = now() + interval '1 minute', locked_by = 'pod-1', claim_id = gen_random_uuid()", "in (3, 4)"))
    refdata_db.query(one.format("created_at = now() - interval '10 minutes'", "= 4"))
    refdata_db.query(one.format("published = true, published_at = now()", "= 5"))
    refdata_db.query(one.format("failed_at = now(), attempt_count = 10, last_error = '<script>'", "in (6, 7)"))
    refdata_db.query("update refdata.outbox_event set failed_at = now(), last_error = 'secret' where tenant_id = 'other'")
    return refdata_db


def page(client, path, status=200):
    answer = client.get(path)
    assert answer.status == status, answer.body
    return answer.json()


def post(client, path, body, status=200):
    answer = client.post(path, body)
    assert answer.status == status, answer.body
    return answer.json()


def ids(database, *versions, tenant="acme"):
    return [str(database.value("select id from refdata.outbox_event where tenant_id = %s and version = %s", [tenant, v]))
            for v in versions]


def listed(client, query=""):
    return [item["id"] for item in page(client, TABLE + "/events" + query)["items"]]


def test_what_is_stuck_is_listed_unless_another_state_is_asked_for(server, token, filled):
    with server.client(token("acme", scope=READ)) as client:
        assert listed(client) == ids(filled, 6, 7, 2, 4)  # failed ones first
        assert listed(client, "?limit=2") == ids(filled, 6, 7)
        assert listed(client, "?state=pending") == ids(filled, 1, 2)
        assert listed(client, "?state=in_flight") == ids(filled, 3, 4)
        assert listed(client, "?state=published") == ids(filled, 5)
        assert listed(client, "?state=failed") == ids(filled, 6, 7)
        assert listed(client, "?aggregate=acme/D") == ids(filled, 6, 7, 2, 4) and listed(client, "?aggregate=acme/E") == []
        assert listed(client, "?event_type=invalidation&state=failed") == ids(filled, 6, 7)
        assert listed(client, "?to=2020-01-01T00:00:00Z") == []
        item = page(client, TABLE + "/events?state=in_flight")["items"][0]
        assert item.pop("age_seconds") >= 0 and item.pop("created_at").endswith("Z")
        assert item == {"database": "main", "id": ids(filled, 3)[0], "aggregate": "acme/D", "sequence": int(ids(filled, 3)[0]),
                        "event_type": "invalidation", "state": "in_flight", "attempts": 0, "claims": 0, "next_retry_at": None,
                        "locked_by": "pod-1", "last_error": None, "tenant_id": "acme"}


def test_pages_follow_each_other_without_a_gap(server, token, filled):
    leave(filled, "E", 1, 30, tenant="acme")
    filled.query("update refdata.outbox_event set failed_at = now() where dict_code = 'E'")
    failed = ids(filled, 6, 7) + [str(i) for (i,) in filled.query(
        "select id from refdata.outbox_event where dict_code = 'E' order by id")]
    with server.client(token("acme", scope=READ)) as client:
        for state, limit, expected in (("failed", 7, failed), ("failed", 8, failed), ("stuck", 8, failed + ids(filled, 2, 4)),
                                       ("stuck", 1, failed + ids(filled, 2, 4))):
            seen, cursor = [], ""
            while cursor is not None:
                answer = page(client, f"{TABLE}/events?state={state}&limit={limit}" + (cursor and "&cursor=" + cursor))
                assert len(answer["items"]) <= limit
                seen += [item["id"] for item in answer["items"]]
                cursor = answer["next_cursor"]
            assert seen == expected


def test_rows_of_other_tenants_need_their_own_scope(server, token, filled):
    with server.client(token("acme", scope=READ)) as client:
        assert page(client, TABLE + "/events?tenant=other", 403)["code"] == "TENANT_MISMATCH"
        assert page(client, f"{TABLE}/events/{ids(filled, 1, tenant='other')[0]}", 404)["code"] == "NOT_FOUND"
        (table,) = [t for t in page(client, "/v1/ops/outboxes")["items"] if t["table"] == "refdata.outbox_event"]
        assert table["failed"] == 2 and table["last_error"] == "<script>"
    with server.client(token("acme", scope=ALL)) as client:
        assert len(listed(client, "?state=failed&tenant=*")) == 3
        assert listed(client, "?tenant=other") == ids(filled, 1, tenant="other")
    with server.client(token("acme", scope=WRITE)) as client:
        body = {"ids": ids(filled, 1, tenant="other"), "reason": "mine?"}
        assert post(client, TABLE + "/retry", body) == {"matched": 0, "changed": 0, "dry_run": False}
    with server.client(token("acme", scope="refdata:read")) as client:
        assert page(client, TABLE + "/events", 403)
    with server.client(token("acme", scope=READ)) as client:
        post(client, TABLE + "/retry", {"filter": {}, "reason": "x"}, 403)


def test_every_table_of_every_module_is_counted(server, token, filled):
    with server.client(token("acme", scope=ALL)) as client:
        answer = page(client, "/v1/ops/outboxes?tenant=*")
    tables = {(t["database"], t["table"]): t for t in answer["items"]}
    assert {name for _, name in tables} >= {"refdata.outbox_event", "refdata.command_outbox"}
    one = tables["main", "refdata.outbox_event"]
    assert (one["pending"], one["in_flight"], one["failed"], one["more"]) == (2, 2, 3, False)
    assert one["module"] == "refdata" and one["oldest_pending_age_seconds"] >= 0
    assert tables["main", "refdata.command_outbox"]["oldest_pending_age_seconds"] is None  # nothing waits


def test_one_event_has_its_payload(server, token, filled):
    with server.client(token("acme", scope=READ)) as client:
        event = page(client, f"{TABLE}/events/{ids(filled, 6)[0]}")
        assert json.loads(event["payload"])["version"] == 6 and event["state"] == "failed" and event["last_error"] == "<script>"
        assert "payload_truncated" not in event
        filled.query("update refdata.outbox_event set payload = to_jsonb(repeat('x', 100000)) where tenant_id = 'acme' and version = 6")
        event = page(client, f"{TABLE}/events/{ids(filled, 6)[0]}")
        assert len(event["payload"]) == 65536 and event["payload_truncated"] is True
        page(client, TABLE + "/events/999999999", 404)
        assert page(client, TABLE + "/events/nonsense", 400)["field"] == "id"
        page(client, "/v1/ops/outboxes/refdata.nothing/events", 404)


def test_a_dry_run_counts_and_changes_nothing(server, token, filled):
    with server.client(token("acme", scope=WRITE)) as client:
        body = {"filter": {"state": "failed"}, "reason": "look", "dry_run": True}
        assert post(client, TABLE + "/retry", body) == {"matched": 2, "changed": 0, "dry_run": True}
        assert listed(client, "?state=failed") == ids(filled, 6, 7)
        assert filled.value("select count(*) from platform.ops_audit") == 0
        assert post(client, TABLE + "/retry", {**body, "dry_run": False}) == {"matched": 2, "changed": 2, "dry_run": False}
        assert listed(client, "?state=failed") == []


def test_every_action_changes_what_it_is_for_and_is_audited(server, token, filled):
    with server.client(token("acme", sub="ann", scope=WRITE)) as client:
        assert post(client, TABLE + "/retry", {"ids": ids(filled, 2, 6), "reason": "repaired"})["changed"] == 2
        assert post(client, TABLE + "/discard", {"ids": ids(filled, 7), "reason": "obsolete"})["changed"] == 1
        assert post(client, TABLE + "/republish", {"filter": {"state": "published"}, "reason": "lost"})["changed"] == 1
        assert post(client, TABLE + "/unlock", {"filter": {"state": "in_flight", "aggregate": "acme/D"}, "reason": "dead pod"})["changed"] == 2
    assert filled.query("select tenant_id, who, action, target, changed, reason from platform.ops_audit order by id") == [
        ("acme", "ann", "outbox.retry", "refdata.outbox_event", 2, "repaired"),
        ("acme", "ann", "outbox.discard", "refdata.outbox_event", 1, "obsolete"),
        ("acme", "ann", "outbox.republish", "refdata.outbox_event", 1, "lost"),
        ("acme", "ann", "outbox.unlock", "refdata.outbox_event", 2, "dead pod")]


def test_an_unlock_of_what_is_stuck_leaves_the_leases_of_what_is_not(server, token, filled):
    """4 is in flight for too long, 3 a moment only: its process works on it."""
    with server.client(token("acme", scope=WRITE)) as client:
        body = {"filter": {"state": "stuck"}, "reason": "dead pod"}
        assert post(client, TABLE + "/unlock", {**body, "dry_run": True})["matched"] == 1
        assert post(client, TABLE + "/unlock", body)["changed"] == 1
        assert listed(client, "?state=in_flight") == ids(filled, 3)


@pytest.mark.parametrize("body, field", [
    ({"ids": ["1"]}, "reason"), ({"ids": ["1"], "reason": ""}, "reason"), ({"ids": ["1"], "reason": "x" * 501}, "reason"),
    ({"reason": "x"}, "ids"), ({"ids": [], "reason": "x"}, "ids"), ({"ids": ["a"], "reason": "x"}, "ids"),
    ({"ids": ["1"], "filter": {}, "reason": "x"}, "ids"), ({"filter": {"state": "published"}, "reason": "x"}, "state"),
    ({"filter": {"from": "yesterday"}, "reason": "x"}, "from"), ({"filter": {"from": "0000-01-01T00:00:00Z"}, "reason": "x"}, "from"), ({"filter": {"x": "y"}, "reason": "x"}, "filter"),
    ({"filter": {}, "reason": "x", "database": "nothing"}, "database"),
    # what the audit keeps of a change is small: else one tenant's changes would make its pages too large to be read
    ({"filter": {"aggregate": "x" * 4097}, "reason": "x"}, "aggregate"), ({"ids": ["0" * 64 + "1"], "reason": "x"}, "ids")])
def test_a_bad_body_is_refused_with_its_field(server, token, filled, body, field):
    with server.client(token("acme", scope=WRITE)) as client:
        assert post(client, TABLE + "/retry", body, 400)["field"] == field


@pytest.mark.parametrize("query, field", [("?state=odd", "state"), ("?limit=501", "limit"), ("?cursor=00", "cursor"), ("?x=1", "x"),
                                          ("?from=x", "from"), ("?database=nothing", "database"),
                                          ("?from=0000-02-01T00:00:00Z", "from"), ("?to=0001-01-01T00:00:00%2B01:00", "to")])
def test_a_bad_query_is_refused_with_its_field(server, token, query, field):
    with server.client(token("acme", scope=READ)) as client:
        assert page(client, TABLE + "/events" + query, 400)["field"] == field


def test_a_page_costs_milliseconds_with_a_million_rows_behind_it(server, token, filled):
    filled.query("insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, published, published_at)"
                 " select 'acme', gen_random_uuid(), 'M', n, '{}', true, now() - n * interval '1 ms' from generate_series(1, 300000) n")
    filled.query("insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, failed_at, last_error)"
                 " select 'acme', gen_random_uuid(), 'N', n, '{}', now(), 'x' from generate_series(1, 200000) n")
    filled.query("analyze refdata.outbox_event")
    with server.client(token("acme", scope=READ)) as client:
        for state in ("stuck", "failed", "published", "pending"):
            times = []
            for _ in range(3):
                begun = time.monotonic()
                answer = page(client, f"{TABLE}/events?state={state}&limit=50")
                times.append(time.monotonic() - begun)
            assert len(answer["items"]) == (2 if state == "pending" else 50), state
            assert bool(answer["next_cursor"]) == (state != "pending")
            assert min(times) < 0.5, (state, times)  # a scan of all rows takes many times that in this build
