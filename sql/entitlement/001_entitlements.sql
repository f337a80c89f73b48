-- Entitlements: who has a right to what, what was done to it, and what others must be told (seed 004).
-- Names are compared bytewise: the order of a user's entitlements does not depend on the server's locale.
create schema if not exists entitlement;

-- The truth. One row per user and sku, never deleted: its version goes on where it was. Its lock is what all changes of one
-- entitlement meet at. No index beside the key, so that a change stays in the row's own page.
create table entitlement.entitlements (
    tenant_id          text        not null collate "C",
    user_id            text        not null collate "C",
    stock_keeping_unit text        not null collate "C",
    status             text        not null check (status in ('ACTIVE', 'REVOKED')),
    version            bigint      not null check (version > 0),
    created_at         timestamptz not null,
    updated_at         timestamptz not null,
    primary key (tenant_id, user_id, stock_keeping_unit)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- Events on their way to the bus (O1–O6), committed with the change they tell of. aggregate_key is tenant/user/sku, each
-- percent-encoded; sequence is the entitlement's version, taken under its lock, so that it ascends in the order of commits.
-- The payload is JSON; the publisher makes protobuf of it.
create table entitlement.outbox_events (
    event_id      uuid        not null primary key,
    tenant_id     text        not null collate "C",
    aggregate_key text        not null collate "C",
    sequence      bigint      not null,
    event_type    text        not null,
    payload       text        not null,
    traceparent   text,
    status        text        not null default 'PENDING' check (status in ('PENDING', 'IN_FLIGHT', 'PUBLISHED', 'FAILED')),
    attempt_count integer     not null default 0,
    next_retry_at timestamptz,
    lease_until   timestamptz,
    locked_by     text,
    locked_at     timestamptz,
    claim_id      uuid,
    claim_count   integer     not null default 0,
    last_error    text,
    created_at    timestamptz not null,
    published_at  timestamptz
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
alter table entitlement.outbox_events alter column payload set storage external;
-- What is claimed, what is cleaned up, and what somebody has to look at.
create index outbox_events_live on entitlement.outbox_events (aggregate_key, sequence)
    where status in ('PENDING', 'IN_FLIGHT');
create index outbox_events_age on entitlement.outbox_events (published_at) where status = 'PUBLISHED';
create index outbox_events_failed on entitlement.outbox_events (created_at) where status = 'FAILED';

-- Answers by Idempotency-Key (I1–I6): committed with what they answer.
select platform.idempotency_table_make('entitlement');
