"""E4, O1–O3 on NATS: what is published twice is there once, and an outage is no event's fault."""
from lib.entitlement import ROLE, SCOPES, agree, grant, live, published, revoke
from lib.wait import eventually

FAST = {"entitlement": {"outbox": {"poll-interval": "50ms", "lease": "2s"}}}


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
    assert refdata_db.value("select max(attempt_count) from entitlement.outbox_events") == 0
