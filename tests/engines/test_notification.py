"""N1, N2 on NATS: a durable consumer with explicit acks, TERM, MaxDeliver, advisories; dead letters with payload, requeued."""
import pytest

from events import ADVISORIES
from lib import nats
from lib.config import base_config, merge, to_yaml
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.notification import FAST, ROLE, audit, break_sku, event, letters, mend_sku, message, publish, rows, statuses
from lib.wait import eventually

BOTH = ["--roles", "entitlement,notification"]


def settings(**more):
    return {**{name: value for name, value in FAST.items() if name != "bus"},
            "notification": {**FAST["notification"], "nats": {"ack-wait": "500ms", **ADVISORIES, **more}}}


@pytest.fixture
def dlq(refdata_db, jwks_path, tmp_path):
    config = tmp_path / "dlq.yaml"
    config.write_text(to_yaml(base_config(refdata_db, jwks_path)))
    return lambda *args: run("dlq", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password})


def test_n1_n2_events_repetitions_poison_and_what_keeps_failing(engines, serve, refdata_db, dlq):
    serve(refdata_db, settings(**{"max-deliver": 3}), args=ROLE)
    one = event("once")
    poison = (b"", {"event-id": "poison", "tenant_id": "demo"}, b"\xff\x00\xff")
    publish(refdata_db, one)
    publish(refdata_db, message(one, **{"event-id": one["event_id"] + "-requeue-0"}), poison, event("behind"))
    eventually(lambda: statuses(refdata_db, "once") == ["SENT"] and statuses(refdata_db, "behind") == ["SENT"])
    letter, = eventually(lambda: letters(refdata_db, kind="terminated"))
    assert (letter["payload"], letter["stream_seq"], letter["status"]) == ("ff00ff", 3, "DEAD")
    assert letter["stream"] == f"{refdata_db.name}_entitlement"
    with nats.Nats(engines.nats.address) as client:
        info = client.consumer(f"{refdata_db.name}_entitlement", "notification")
        assert info["config"]["max_deliver"] == 3 and info["config"]["ack_policy"] == "explicit"
        eventually(lambda: client.consumer(f"{refdata_db.name}_entitlement", "notification")["num_ack_pending"] == 0)

    break_sku(refdata_db, "broken")
    publish(refdata_db, event("victim", "broken"), event("beyond"))
    used_up, = eventually(lambda: letters(refdata_db, kind="max_deliver"))
    eventually(lambda: statuses(refdata_db, "beyond") == ["SENT"])
    assert rows(refdata_db, "victim") == [] and "no room for broken" in used_up["reason"]
    mend_sku(refdata_db, "broken")
    assert dlq("requeue", str(used_up["dlq_id"])).returncode == 0
    eventually(lambda: statuses(refdata_db, "victim") == ["SENT"])
    again, = [row for row in letters(refdata_db) if row["dlq_id"] == used_up["dlq_id"]]
    eventually(lambda: letters(refdata_db, dlq_id=used_up["dlq_id"])[0]["status"] == "REQUEUED")
    assert again["payload"] == used_up["payload"] and len(rows(refdata_db, "victim")) == 1
    assert [entry["dlq_id"] for entry in audit(refdata_db)] == [used_up["dlq_id"]]


def test_n2_a_process_that_dies_on_the_last_delivery_leaves_a_dead_letter(engines, serve, refdata_db):
    """Nobody could say a word: JetStream's advisory tells, and the stream that keeps it."""
    dying = serve.make(refdata_db, settings(**{"max-deliver": 1}), args=ROLE,
                       env={"FRESHET_FAILPOINTS": "notification.before_commit=kill#1"})
    dying.start()
    publish(refdata_db, event("killed"))
    eventually(lambda: dying.process.poll() is not None)
    serve(refdata_db, settings(**{"max-deliver": 1}), args=ROLE)
    letter, = eventually(lambda: letters(refdata_db, kind="max_deliver"))
    assert b"killed".hex() in letter["payload"] and letter["stream_seq"] == 1 and rows(refdata_db, "killed") == []
    publish(refdata_db, event("after"))
    eventually(lambda: statuses(refdata_db, "after") == ["SENT"])


def test_n1_while_nats_is_away_nothing_is_lost_and_health_says_so(engines, serve, refdata_db, token):
    server = serve(refdata_db, settings(), args=BOTH)
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        grant(client, "early")
        eventually(lambda: statuses(refdata_db, "early") == ["SENT"])
        engines.nats.kill()
        eventually(lambda: client.get("/actuator/health").json()["roles"]["notification"]["status"] == "DOWN")
        assert grant(client, "meanwhile").status == 200
        engines.nats.start()
        eventually(lambda: statuses(refdata_db, "meanwhile") == ["SENT"])
        eventually(lambda: client.get("/actuator/health").json()["roles"]["notification"]["status"] == "UP")


def test_n1_the_stream_that_is_read_is_the_one_that_is_written(engines, refdata_db, jwks_path, tmp_path):
    config = tmp_path / "wrong.yaml"
    config.write_text(to_yaml(merge(base_config(refdata_db, jwks_path), {"notification": {"nats": {"stream": "another"}}})))
    done = run("config", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password})
    assert done.returncode == 1 and "notification.nats.stream" in done.stderr and "another" in done.stderr
