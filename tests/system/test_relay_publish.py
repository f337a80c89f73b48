"""R12 and O1–O6 on the embedded bus: what apply committed is told to everybody, in order, at least once."""
import uuid

import pytest

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.outbox import leave, live, told, versions
from lib.refdata import TENANT, pod, refdata_db  # noqa: F401
from lib.wait import eventually

RELAY = ("--roles", "relay")
FAST = {"poll-interval": "20ms", "backoff-base": "1ms", "backoff-max": "10ms"}


@pytest.fixture
def relay(serve, refdata_db):  # noqa: F811
    """relay(**settings) starts one more relay on the test's database."""
    def start(**outbox):
        settings = pod("D")
        settings["refdata"]["outbox"] = {**FAST, **{name.replace("_", "-"): value for name, value in outbox.items()}}
        return serve(refdata_db, settings, args=RELAY)
    return start


@pytest.mark.tsan
def test_events_are_told_in_order_with_key_and_headers(relay, refdata_db):
    """R12, seed §8.2. Told twice only where the relay says that it could not know whether the server had crashed."""
    leave(refdata_db, "D", 1, 120)
    leave(refdata_db, "E", 1, 60, tenant="other")
    server = relay()
    eventually(lambda: live(refdata_db) == 0)
    found, others = versions(refdata_db, "D"), versions(refdata_db, "E", "other")
    assert list(dict.fromkeys(found)) == list(range(1, 121)) and list(dict.fromkeys(others)) == list(range(1, 61))
    assert len(found) + len(others) == 180 or server.logs(event="outbox_published_again")
    key, headers, body = told(refdata_db, "D")[6]
    assert key == "demo:D"
    assert headers == {"event-id": body["eventId"], "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert uuid.UUID(body.pop("eventId"))
    assert body == {"tenantId": "demo", "dictCode": "D", "version": 7, "committedAt": "2026-02-27T12:00:01Z"}
    assert refdata_db.value("select count(*) from refdata.outbox_event where published and published_at is not null"
                            " and claim_id is null") == 180
    labels = '{module="refdata",event_type="invalidation"}'
    metrics = server.metrics()
    assert metrics["outbox_publish_success_total" + labels] == 180
    assert metrics["outbox_publish_latency_ms_count" + labels] == 180


def test_several_relays_share_the_work_and_keep_the_order(relay, refdata_db):
    """O3: with no lease lost, nothing is told twice, unless a relay says that it could not know whether the server had crashed."""
    relays = [relay() for _ in range(3)]
    for first in range(1, 401, 40):
        for code in ("A", "B", "C"):
            leave(refdata_db, code, first, first + 39)
    eventually(lambda: live(refdata_db) == 0)
    for code in ("A", "B", "C"):
        found = versions(refdata_db, code)
        assert list(dict.fromkeys(found)) == list(range(1, 401))
        assert len(found) == 400 or any(server.logs(event="outbox_published_again") for server in relays)


def test_a_payload_that_is_no_invalidation_fails_at_once_and_alerts(relay, refdata_db):
    """O4: and what stands behind it goes on."""
    leave(refdata_db, "D", 1, 1, payload='{"version": "one"}')
    leave(refdata_db, "D", 2, 3)
    server = relay()
    eventually(lambda: live(refdata_db) == 0)
    assert versions(refdata_db, "D") == [2, 3]
    assert refdata_db.query("select version, attempt_count, last_error from refdata.outbox_event where failed_at is not null") == [
        (1, 1, "the payload is not an invalidation")]
    line, = server.logs(event="outbox_event_dead_lettered", module="refdata")
    event_id = refdata_db.value("select event_id::text from refdata.outbox_event where failed_at is not null")
    assert (line["eventId"], line["tenantId"], line["dictCode"], line["version"]) == (event_id, TENANT, "D", 1)  # C9
    assert server.metrics()['outbox_dead_lettered_total{module="refdata",event_type="invalidation"}'] == 1


def test_what_waits_is_counted_and_dated(relay, refdata_db):
    """O5."""
    leave(refdata_db, "D", 1, 3)
    refdata_db.query("update refdata.outbox_event set next_attempt_at = now() + interval '1 hour',"
                     " created_at = now() - interval '100 seconds'")
    server = relay()
    labels = '{module="refdata",event_type="invalidation"}'
    eventually(lambda: server.metrics().get("outbox_pending_count" + labels) == 3)
    assert server.metrics()["outbox_oldest_pending_age_seconds" + labels] >= 100
    assert versions(refdata_db, "D") == []


def hold_settling(database):
    """From now on whoever marks an event as published waits for this connection's end."""
    database.query("create function hold() returns trigger language plpgsql as"
                   " 'begin perform pg_advisory_xact_lock(42); return new; end'")
    database.query("create trigger hold before update on refdata.outbox_event for each row when (new.published) execute function hold()")
    connection = database.connect()
    connection.cursor().execute("select pg_advisory_lock(42)")
    return connection


def test_published_events_that_were_not_marked_are_published_again_after_a_kill(relay, refdata_db):
    """O1: kill -9 between publish and finalize. On a loaded machine the results may be recorded by a connection that was opened after
    the publication; then they are published once more."""
    holder = hold_settling(refdata_db)
    leave(refdata_db, "D", 1, 3)
    first = relay()
    eventually(lambda: versions(refdata_db, "D") == [1, 2, 3])
    waiting = "from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    eventually(lambda: refdata_db.value(f"select count(*) {waiting}") > 0)  # the statement that marks them has arrived
    first.kill()
    refdata_db.query(f"select pg_terminate_backend(pid) {waiting}")
    eventually(lambda: refdata_db.value(f"select count(*) {waiting}") == 0)
    holder.close()
    assert live(refdata_db) == 3
    refdata_db.query("update refdata.outbox_event set locked_until = now()")  # as if it had been dead for that long
    relay()
    eventually(lambda: live(refdata_db) == 0)
    published = versions(refdata_db, "D")
    assert len(published) >= 6 and published == [1, 2, 3] * (len(published) // 3)


def test_settings_have_the_seeds_names(refdata_db, jwks_path, tmp_path):
    """O2: durations like 1s, decimals for the jitter; whatever is wrong is named."""
    config = tmp_path / "outbox.yaml"
    plain = to_yaml(merge(base_config(refdata_db, jwks_path), {"refdata": {"outbox": {"NAME": 7}}}))
    for name, value, wrong in (("backoff-jitter-min", "0.5", None), ("backoff-jitter-max", "1.5s", "a number such as 0.5"),
                               ("lease", "forever", "a duration"), ("max-attempt", "0", "1 to 1000"), ("poll-interval", "1s", None)):
        config.write_text(plain.replace('NAME: 7', f"{name}: {value}"))
        done = run("config", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password})
        assert (done.returncode == 0) == (wrong is None), done.stderr
        assert wrong is None or (wrong in done.stderr and name in done.stderr), done.stderr
