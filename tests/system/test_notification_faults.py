"""N1, N2, N4: the database away, a handler that keeps failing, several processes, and what goes when it is old."""
import pytest

from lib.notification import FAST, ROLE, break_sku, event, letters, publish, rows, statuses
from lib.refdata import module_refdata_db, own_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

PATIENT = {**FAST, "notification": {**FAST["notification"], "nats": {"max-deliver": 3}}}


def test_n2_deliveries_used_up_are_a_dead_letter_and_the_rest_goes_on(serve, refdata_db):  # noqa: F811
    server = serve(refdata_db, PATIENT, args=ROLE)
    break_sku(refdata_db, "broken")
    publish(refdata_db, event("before"), event("victim", "broken"), event("behind"))
    row, = eventually(lambda: letters(refdata_db, kind="max_deliver"))
    eventually(lambda: statuses(refdata_db, "behind") == ["SENT"] and statuses(refdata_db, "before") == ["SENT"])
    assert rows(refdata_db, "victim") == [] and row["status"] == "DEAD" and row["deliveries"] == 3
    assert "no room for broken" in row["reason"] and row["tenant_id"] == "demo" and row["event_type"] == "EntitlementGranted"
    assert b"victim".hex() in row["payload"] and row["stream"] == "entitlement.events" and row["stream_seq"] == 1
    assert refdata_db.value("select count(*) from notification.processed_events where event_id = %s", (row["event_id"],)) == 0
    assert server.logs(event="notification_dead_letter", eventId=row["event_id"])
    eventually(lambda: server.metrics().get('notification_dlq{kind="max_deliver"}') == 1)


def test_n1_while_the_database_is_away_no_delivery_is_used_up(serve, own_refdata_db, own_postgres):  # noqa: F811
    """max-deliver is 1: a single counted failure would be a dead letter."""
    single = {**FAST, "notification": {"nats": {"max-deliver": 1},
                                       "delivery": {**FAST["notification"]["delivery"], "lease": "500ms"}}}
    server = serve(own_refdata_db, single, args=["--roles", "entitlement,notification"])
    publish(own_refdata_db, *[event("outage", f"sku{number}") for number in range(20)])
    eventually(lambda: len(rows(own_refdata_db, "outage")) >= 1)
    for mode in ("immediate", "fast"):
        publish(own_refdata_db, *[event("outage") for _ in range(40)])
        own_postgres.stop(mode)
        own_postgres.start()
    eventually(lambda: statuses(own_refdata_db, "outage") == ["SENT"] * 100)
    assert letters(own_refdata_db) == []
    eventually(server.is_ready)


def test_n1_two_processes_share_the_work_and_do_it_once(serve, refdata_db):  # noqa: F811
    pair = [serve(refdata_db, FAST, args=ROLE, env={"HOSTNAME": name}) for name in ("one", "two")]
    events = [event("shared") for _ in range(200)]
    for partition in range(4):
        publish(refdata_db, *events[partition * 50:(partition + 1) * 50], *events[:50], partition=partition)
    eventually(lambda: statuses(refdata_db, "shared") == ["SENT"] * 200)
    sent = [line["notificationId"] for server in pair for line in server.logs(event="notification_sent")]
    assert len(sent) == len(set(sent)) == 200


# ---- N4 ----

@pytest.fixture(scope="module")
def swept(module_serve, module_refdata_db):  # noqa: F811
    """30 days are kept, looked after every 50 ms."""
    database = module_refdata_db
    server = module_serve(database, {**FAST, "notification": {"retention": {"cleanup-interval": "50ms"}}}, args=ROLE)
    return database, server


def add(database, user, status, age):
    database.query("insert into notification.notifications (notification_id, tenant_id, event_id, event_type, user_id,"
                   " stock_keeping_unit, payload_json, status, created_at, next_retry_at) values (gen_random_uuid(), 'demo',"
                   " gen_random_uuid(), 'EntitlementGranted', %s, 'item1', '{}', %s, now() - %s::interval,"
                   " now() + interval '1 day')", (user, status, age))


def test_n4_what_was_told_goes_after_thirty_days_and_what_was_not_stays(swept):
    database, server = swept
    for status in ("SENT", "FAILED", "PENDING", "PROCESSING"):
        add(database, f"old-{status}", status, "30 days 1 second")
        add(database, f"young-{status}", status, "29 days 23 hours 59 minutes")
    eventually(lambda: rows(database, "old-SENT") == [] == rows(database, "old-FAILED"))
    eventually(lambda: server.logs(event="notifications_overdue"))
    line = server.logs(event="notifications_overdue")[-1]
    assert line["level"] == "error" and line["count"] in (1, 2) and line["oldestAgeMs"] >= 30 * 86400 * 1000
    for status in ("PENDING", "PROCESSING"):
        assert statuses(database, f"old-{status}") == [status]
    for status in ("SENT", "FAILED", "PENDING", "PROCESSING"):
        assert statuses(database, f"young-{status}") == [status]
    eventually(lambda: server.metrics()["notification_overdue"] == 2)


def test_n4_dead_letters_stay_until_somebody_decided(swept):
    database, _ = swept
    states = [(status, age) for status in ("DEAD", "REQUEUED", "DISCARDED") for age in (29, 31)]
    for number, (status, age) in enumerate(states):
        database.query("""insert into notification.notification_nats_dlq (stream, topic, partition, stream_seq, group_name, kind,
            deliveries, reason, headers, payload, status, created_at, decided_at) values ('kept', 'none', 0, %s, 'g', 'terminated',
            1, 'r', '{}', '', %s, now() - interval '40 days', now() - make_interval(days => %s))""", (number, status, age))
        database.query("""insert into notification.notification_dlq (notification_id, tenant_id, event_id, event_type, user_id,
            stock_keeping_unit, payload_json, attempt_count, status, created_at, decided_at) values (gen_random_uuid(), 'kept',
            gen_random_uuid(), 'e', 'u', 's', '{}', 1, %s, now() - interval '40 days', now() - make_interval(days => %s))""",
                       (status, age))
    for table, mine in (("notification_nats_dlq", "stream"), ("notification_dlq", "tenant_id")):
        left = f"select status, (now() - decided_at < interval '30 days') from notification.{table} where {mine} = 'kept'"
        eventually(lambda query=left: sorted(database.query(query)) == [
            ("DEAD", False), ("DEAD", True), ("DISCARDED", True), ("REQUEUED", True)])


def test_n4_processed_events_go_only_when_strictly_older(swept):
    """At the very threshold a row stays: the statement itself, at a moment that stands still."""
    database, _ = swept
    for age in ("30 days 1 second", "29 days 23 hours 59 minutes"):
        database.query("insert into notification.processed_events values ('edge', gen_random_uuid(), now() - %s::interval)", (age,))
    eventually(lambda: database.value("select count(*) from notification.processed_events where tenant_id = 'edge'") == 1)
    kept = database.query("""
        begin;
        insert into notification.processed_events values ('exact', gen_random_uuid(), now() - interval '2592000000 ms'),
            ('exact', gen_random_uuid(), now() - interval '2592000000 ms' - interval '1 microsecond');
        delete from notification.processed_events where ctid = any (array(select ctid from notification.processed_events
            where processed_at < now() - 2592000000 * interval '1 ms' order by processed_at limit 10 for update skip locked));
        select count(*) from notification.processed_events where tenant_id = 'exact'""")
    assert kept == [(1,)]


def test_n4_retention_can_be_off(serve, refdata_db):  # noqa: F811
    off = {**FAST, "notification": {"retention": {"enabled": False, "cleanup-interval": "10ms"}}}
    server = serve(refdata_db, off, args=ROLE)
    add(refdata_db, "kept", "SENT", "400 days")
    eventually(lambda: server.metrics().get('notification_dlq{kind="delivery"}') == 0)
    assert statuses(refdata_db, "kept") == ["SENT"]
    assert 'freshet_retention_deleted_total{table="notification.notifications"}' not in server.metrics()
