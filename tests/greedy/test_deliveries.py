"""Tenants take turns in the delivery of notifications: what is due for one, or a receiver that is slow for it, delays no other (N3)."""
import json
import threading

import pytest

from blocked import TENANTS
from lib.config import merge
from lib.notification import FAST, ROLE, Receiver, webhook
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import PATIENCE, eventually

GREEDY, MODEST = TENANTS
BATCH = 50


def leave(database, tenant, count):
    """Notifications that are due, in one commit."""
    database.query("insert into notification.notifications (notification_id, tenant_id, event_id, event_type, user_id,"
                   " stock_keeping_unit, payload_json) select gen_random_uuid(), %s, gen_random_uuid(), 'EntitlementGranted', 'u' || n,"
                   " 'item1', jsonb_build_object('tenant_id', %s::text) from generate_series(1, %s) n", (tenant, tenant, count))


def sent(database, tenant):
    return database.value("select count(*) from notification.notifications where tenant_id = %s and status = 'SENT'", (tenant,))


def test_a_backlog_of_one_tenant_does_not_delay_the_others(serve, refdata_db, whole):  # noqa: F811
    count = 100_000 if whole else 20_000
    server = serve(refdata_db, FAST, args=ROLE)
    server.stop()
    leave(refdata_db, GREEDY, count)
    leave(refdata_db, MODEST, 1)
    serve(refdata_db, FAST, args=ROLE)
    eventually(lambda: sent(refdata_db, MODEST) == 1)
    eventually(lambda: sent(refdata_db, GREEDY) == count, timeout=4 * PATIENCE)
    before = refdata_db.value("select count(*) from notification.notifications g, notification.notifications m"
                              " where g.tenant_id = %s and m.tenant_id = %s and g.sent_at <= m.sent_at", (GREEDY, MODEST))
    assert before < BATCH


@pytest.fixture
def receiver():
    """Answers the tenants whose name begins with greedy only when it is released."""
    made, made.released = Receiver(), threading.Event()
    made.behave = lambda call: (made.released.wait(4 * PATIENCE) and None
                                if json.loads(call["body"])["tenant_id"].startswith(GREEDY) else None)
    yield made
    made.released.set()
    made.close()


def tenants_called(receiver):
    return [json.loads(call["body"])["tenant_id"] for call in receiver.calls]


def hanging(receiver, parallel):
    """Calls hang for longer than the test: what they hold does not become free by itself."""
    return merge(webhook(receiver), {"notification": {"delivery": {
        "webhook": {"timeout": "30m", "connect-timeout": "30m", "parallel": parallel}, "batch-size": BATCH, "lease": "2s"}}})


def slow_max(parallel):
    """How many calls slow tenants have together: all but two eighths, rounded up, and at least one."""
    return max(1, parallel - 2 * -(-parallel // 8))


@pytest.mark.parametrize("parallel", [2, 4, 16])
def test_a_receiver_that_hangs_for_one_tenant_leaves_calls_to_the_others(serve, refdata_db, receiver, parallel):  # noqa: F811
    server = serve(refdata_db, hanging(receiver, parallel), args=ROLE)
    leave(refdata_db, GREEDY, 2 * BATCH)
    eventually(lambda: receiver.calls)
    for _ in range(3):
        leave(refdata_db, MODEST, 20)
        eventually(lambda: not refdata_db.value("select count(*) from notification.notifications"
                                                " where tenant_id = %s and status <> 'SENT'", (MODEST,)))
    called = tenants_called(receiver)
    assert called.count(MODEST) == 60  # each once: none was given up and called again
    assert called.count(GREEDY) <= slow_max(parallel)
    # What is under way keeps its lease, by which no other process takes it.
    held = ("select count(*) from notification.notifications where status = 'PROCESSING' and lease_until > now()"
            " and locked_at < now() - interval '3 s'")
    eventually(lambda: refdata_db.value(held) == called.count(GREEDY))
    # A stop gives everything back, uncounted (C7).
    server.stop()
    assert refdata_db.value("select count(*) from notification.notifications where tenant_id = %s and status = 'PENDING'"
                            " and attempt_count = 0 and claim_count = 0 and lease_until is null", (GREEDY,)) == 2 * BATCH


def test_any_number_of_tenants_that_hang_leave_calls_to_the_others_in_every_process(serve, refdata_db, receiver):  # noqa: F811
    processes, parallel = 2, 4
    for _ in range(processes):
        serve(refdata_db, hanging(receiver, parallel), args=ROLE)

    def deliver_to_modest():
        leave(refdata_db, MODEST, 20)
        eventually(lambda: not refdata_db.value("select count(*) from notification.notifications"
                                                " where tenant_id = %s and status <> 'SENT'", (MODEST,)))

    for _ in range(3):  # both processes have called it, most probably
        deliver_to_modest()
    for number in range(3 * parallel):
        leave(refdata_db, f"{GREEDY}{number}", BATCH)
        deliver_to_modest()
    hanging_calls = [tenant for tenant in tenants_called(receiver) if tenant != MODEST]
    assert processes <= len(hanging_calls) <= processes * (parallel - 1)
    assert tenants_called(receiver).count(MODEST) == 20 * (3 + 3 * parallel)
