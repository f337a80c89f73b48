"""E4, O1–O3 on NATS: what is published twice is there once, and an outage is no event's fault."""
from lib.entitlement import ROLE, SCOPES, agree, grant, live, published, revoke
from lib.wait import eventually

FAST = {"entitlement": {"outbox": {"poll-interval": "50ms", "lease": "2s"}}}


def test_o1_while_nats_is_away_rows_show_it_and_none_becomes_failed(engines, serve, refdata_db, token):
    """One failure would be an event's last. Only what was tried is written, and what waits goes out when NATS is back."""
    outbox = {"max-attempt": 1, "batch-size": 5, "poll-interval": "50ms", "lease": "2s"}
    server = serve(refdata_db, {"entitlement": {"outbox": outbox}}, args=ROLE)
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        assert grant(client, "u_before").status == 200
        eventually(lambda: live(refdata_db) == 0)
        engines.nats.kill()
        for number in range(30):
            assert grant(client, f"u_{number}").status == 200
    tried, status, errors, waits, failures = eventually(lambda: [row for row in refdata_db.query(
        "select count(*) filter (where attempt_count > 0), max(status), count(last_error),"
        "       count(*) filter (where next_retry_at between created_at and now() + interval '2 s'), max(attempt_count)"
        " from entitlement.outbox_events where published_at is null") if row[0]])[0]
    assert (status in ("PENDING", "IN_FLIGHT"), errors, waits) == (True, tried, tried) and tried <= 15
    assert server.metrics()['outbox_publish_failed_total{module="entitlement",event_type="EntitlementGranted"}'] >= failures
    engines.nats.start()
    eventually(lambda: live(refdata_db) == 0)
    assert refdata_db.value("select count(*) from entitlement.outbox_events where status = 'PUBLISHED'") == 31
    assert [line["table"] for line in server.logs(event="outbox_engine_away")] == ["entitlement.outbox_events"]
    assert len(eventually(lambda: server.logs(event="outbox_engine_back"))) == 1
    assert server.logs(event="outbox_publish_failed") == []


def test_e4_repetitions_are_dropped_and_an_outage_uses_up_no_attempt(engines, serve, refdata_db, token):
    server = serve(refdata_db, FAST, args=ROLE)
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        for change in (grant, revoke, grant):
            assert change(client).status == 200
        eventually(lambda: live(refdata_db) == 0)
        refdata_db.query("update entitlement.outbox_events set status = 'PENDING', published_at = null")  # a mark that was lost
        eventually(lambda: live(refdata_db) == 0)
        assert [event["version"] for _, _, event in published(refdata_db)] == [1, 2, 3]
        engines.nats.kill()
        for number in range(4, 9):
            assert (grant if number % 2 else revoke)(client).json()["version"] == number
        assert live(refdata_db) == 5
        assert client.get("/actuator/health").json()["roles"]["entitlement"]["status"] == "UP"
        engines.nats.start()
        eventually(lambda: live(refdata_db) == 0)
    assert agree(refdata_db) == 8
    assert refdata_db.value("select max(attempt_count - coalesce(outage_count, 0)) from entitlement.outbox_events") == 0
