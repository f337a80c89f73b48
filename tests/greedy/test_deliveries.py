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
    """Answers greedy only when it is released."""
    made, made.released = Receiver(), threading.Event()
    made.behave = lambda call: made.released.wait(PATIENCE) and None if json.loads(call["body"])["tenant_id"] == GREEDY else None
    yield made
    made.released.set()
    made.close()


def test_a_receiver_that_is_slow_for_one_tenant_does_not_delay_the_others(serve, refdata_db, receiver):  # noqa: F811
    tried = lambda: refdata_db.value("select count(*) from notification.notifications where tenant_id = %s and attempt_count > 0",
                                     (GREEDY,))
    slow = {"notification": {"delivery": {"webhook": {"timeout": "1s", "parallel": 2}, "batch-size": BATCH, "backoff-base": "1h",
                                          "backoff-max": "1h"}}}
    serve(refdata_db, merge(webhook(receiver), slow), args=ROLE)
    leave(refdata_db, GREEDY, BATCH)
    eventually(lambda: tried() or receiver.calls)
    leave(refdata_db, MODEST, 1)
    eventually(lambda: sent(refdata_db, MODEST) == 1)
    assert tried() < BATCH / 2
