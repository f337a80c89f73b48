-- What operators see of processes, and what operators did (docs/OPS.md).

-- One row for each process, which it writes every few seconds; `report` is what its modules have in memory. A process that has not
-- written for some time is gone. The table is not logged: a crash of PostgreSQL empties it, and every process writes its row again.
create unlogged table platform.pod (
    pod_id     text        not null collate "C" primary key,
    host       text        not null,
    pid        bigint      not null,
    address    text        not null,
    roles      text[]      not null,
    version    text        not null,
    commit     text,
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    stopped_at timestamptz,          -- it has ended in order
    ready      boolean     not null,
    report     jsonb       not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 100);
alter table platform.pod alter column report set storage external;

-- One row for each change by an operator, in the transaction of the change.
create table platform.ops_audit (
    id        bigint      generated always as identity primary key,
    at        timestamptz not null default clock_timestamp(),
    tenant_id text,                  -- null = rows of all tenants
    who       text        not null,
    action    text        not null,
    target    text        not null,
    ids       jsonb,
    filter    jsonb,
    matched   bigint      not null,
    changed   bigint      not null,
    reason    text        not null
);
create index ops_audit_age on platform.ops_audit (at, id);
create index ops_audit_tenant on platform.ops_audit (tenant_id, at, id);
