"""Tenants take turns in the outboxes whose events keep an order: a backlog of one tenant delays no other (O2, O3)."""
import pytest

from blocked import TENANTS
from lib.entitlement import ROLE
from lib.items import INTAKE
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually

GREEDY, MODEST = TENANTS
BATCH, CLAIMS = 50, 4
RELAY = ["--roles", "relay"]

# What a writer leaves in a table: %(tenant)s, and %(count)s events of as many aggregates.
EVENTS = {
    "intake.event_outbox": (INTAKE, {}, """
        insert into intake.event_outbox (event_id, tenant_id, sku, event_type, payload, created_at)
        select id, %(tenant)s, 'sku' || n, 'item_created', jsonb_build_object('event_id', id, 'item', '{}'::jsonb)::text, now()
        from (select gen_random_uuid() id, n from generate_series(1, %(count)s) n) e"""),
    "entitlement.outbox_events": (ROLE, {}, """
        insert into entitlement.outbox_events (event_id, tenant_id, aggregate_key, sequence, event_type, payload, created_at)
        select id, %(tenant)s, %(tenant)s || '/u' || n || '/item1', 1, 'EntitlementGranted', jsonb_build_object('event_id', id,
            'event_type', 'EntitlementGranted', 'occurred_at', '2026-02-27T12:00:01Z', 'user_id', 'u' || n, 'stock_keeping_unit', 'item1',
            'source', 'purchase', 'source_id', 'p', 'version', 1, 'tenant_id', %(tenant)s)::text, now()
        from (select gen_random_uuid() id, n from generate_series(1, %(count)s) n) e"""),
    "refdata.outbox_event": (RELAY, pod("D"), """
        insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload)
        select %(tenant)s, id, 'D' || n, 1, jsonb_build_object('eventId', id, 'tenantId', %(tenant)s, 'dictCode', 'D' || n,
            'version', 1, 'committedAt', '2026-02-27T12:00:01Z')
        from (select gen_random_uuid() id, n from generate_series(1, %(count)s) n) e"""),
}


@pytest.mark.parametrize("table", EVENTS)
def test_a_backlog_of_one_tenant_does_not_delay_the_events_of_others(serve, refdata_db, whole, table):  # noqa: F811
    role, settings, insert = EVENTS[table]
    serve(refdata_db, settings, args=role).stop()
    refdata_db.query(insert, {"tenant": GREEDY, "count": 100_000 if whole else 20_000})
    refdata_db.query(insert, {"tenant": MODEST, "count": 1})
    assert GREEDY < MODEST  # it comes after them all in the index
    serve(refdata_db, settings, args=role)
    published = f"select published_at from {table} where tenant_id = %s and published_at is not null"
    (at,), = eventually(lambda: refdata_db.query(published, (MODEST,)))
    assert refdata_db.value(f"select count(*) from {table} where tenant_id = %s and published_at <= %s", (GREEDY, at)) <= CLAIMS * BATCH
