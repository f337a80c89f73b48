"""`outbox`: claim, publish (nothing), finalize by the engine, beside the bare statements of seed 004 on the same server.

Tables as entitlement.outbox_events and notification.notifications are: 1,000,000 published rows, and 100,000 pending ones,
put in anew for every run. Both sides take 200 at a time in one connection, and neither waits for the disk. The bare side has
a table of its own, with the one index that its claim needs.
"""
import json
import statistics
import subprocess

from .report import table
from .write import in_turn, spread

BATCH = 200
PENDING = 100_000
DRAINED = 60_000
PUBLISHED = 1_000_000

TABLE = """
create table bench.{name} (
    event_id uuid not null primary key, tenant_id text not null collate "C", aggregate_key text not null collate "C",
    sequence bigint not null, event_type text not null, payload text not null, traceparent text,
    status text not null default 'PENDING', attempt_count integer not null default 0, next_retry_at timestamptz,
    lease_until timestamptz, locked_by text, locked_at timestamptz, claim_id uuid, claim_count integer not null default 0,
    last_error text, created_at timestamptz not null default now(), published_at timestamptz
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
create index on bench.{name} ({claimed}) where status in ('PENDING', 'IN_FLIGHT');
create index on bench.{name} (published_at) where status = 'PUBLISHED';
"""
FILL = """
insert into bench.{name} (event_id, tenant_id, aggregate_key, sequence, event_type, payload, status, published_at)
select gen_random_uuid(), 'demo', 'demo/u' || i % {aggregates} || '/sku', {first} + i, 'EntitlementGranted',
       json_build_object('user_id', 'u' || i % {aggregates}, 'stock_keeping_unit', 'sku', 'source', 'purchase',
                         'source_id', 'p' || i, 'version', i, 'occurred_at', now()), {status}
from generate_series(1, {rows}) i;
"""
CLAIMED = {"events": "aggregate_key, sequence", "deliveries": "(coalesce(greatest(next_retry_at, lease_until), created_at))",
           "bare": "created_at"}
# What is measured: whose table, and over how many aggregates the pending rows are spread.
SIDES = {"bare": ("bare", 50_000), "many": ("events", 50_000), "some": ("events", 1_000), "one": ("events", 1),
         "deliveries": ("deliveries", 50_000)}
WORDS = {"bare": "bare statements", "many": "engine, 50,000 aggregates", "some": "engine, 1,000 aggregates",
         "one": "engine, one long aggregate", "deliveries": "engine, deliveries without order"}


def run(bench, report):
    with bench.database() as database:
        database.run("create schema bench")
        for name, claimed in CLAIMED.items():
            database.run(TABLE.format(name=name, claimed=claimed))
            _fill(database, name, 100_000, 0, PUBLISHED, "'PUBLISHED', now() - interval '1 hour'")
            database.run(f"vacuum analyze bench.{name}")
        rounds = in_turn(bench, "outbox", {side: lambda side=side: _drain(bench, database, side) for side in SIDES})
    report.add("outbox", rounds)
    ratios = {side: [each[side]["rate"] / each["bare"]["rate"] for each in rounds] for side in SIDES}
    table(f"{DRAINED:,} of {PENDING:,} pending events, {BATCH} at a time", ["", "a second", "× bare", "spread"],
          [[WORDS[side], f"{statistics.median(each[side]['rate'] for each in rounds):,.0f}", *spread(ratios[side])]
           for side in SIDES])
    for side in list(SIDES)[1:]:
        report.verdict_at_least(f"{WORDS[side]}, × bare", statistics.median(ratios[side]), 0.6)


def _fill(database, name, aggregates, first, rows, status):
    database.run(FILL.format(name=name, aggregates=aggregates, first=first, rows=rows, status=status))


def _drain(bench, database, side):
    name, aggregates = SIDES[side]
    database.run(f"delete from bench.{name} where status <> 'PUBLISHED'")
    _fill(database, name, aggregates, PUBLISHED, PENDING, "'PENDING', null")
    # Not analyzed: the statistics are those of a quiet table, as they are when a backlog comes.
    database.run(f"vacuum bench.{name}")
    database.run("checkpoint")
    how = ["bare", "bench.bare"] if name == "bare" else [name]
    command = [bench.binary("outbox"), database.url, *how, str(BATCH), str(DRAINED)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
