-- Notifications (seed 004): what an event of entitlements becomes, and what became of it.
create schema if not exists notification;

-- The events that were handled, so that one that comes again changes nothing. Written in the transaction that writes the
-- notification. What is older than the bus could bring again goes by retention.
create table notification.processed_events (
    tenant_id    text        not null collate "C",
    event_id     uuid        not null,
    processed_at timestamptz not null default now(),
    primary key (tenant_id, event_id)
);
create index processed_events_age on notification.processed_events (processed_at);

-- One a row, delivered by claim and lease. notification_id is made of tenant and event: a receiver that is told twice is
-- told under one key, also where processed_events has forgotten.
create table notification.notifications (
    notification_id    uuid        primary key,
    tenant_id          text        not null collate "C",
    event_id           uuid        not null,
    event_type         text        not null,
    user_id            text        not null collate "C",
    stock_keeping_unit text        not null,
    payload_json       jsonb       not null,
    traceparent        text,
    status             text        not null default 'PENDING'
                       check (status in ('PENDING', 'PROCESSING', 'SENT', 'FAILED')),
    attempt_count      integer     not null default 0, -- failures
    claim_count        integer     not null default 0,
    claim_id           uuid,                           -- new with every claim: the fence
    next_retry_at      timestamptz,
    locked_by          text,
    locked_at          timestamptz,
    lease_until        timestamptz,
    last_error         text,
    created_at         timestamptz not null default now(),
    sent_at            timestamptz,
    sequence           bigint      generated always as identity -- pages of an inbox
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- What is due is one range of it (src/outbox): a claim.
create index notifications_due on notification.notifications ((coalesce(greatest(next_retry_at, lease_until), created_at)))
    where status in ('PENDING', 'PROCESSING');
create index notifications_inbox on notification.notifications (tenant_id, user_id, sequence desc);
create index notifications_age on notification.notifications (created_at) where status in ('SENT', 'FAILED');
-- Those that are old and still not told: an error (N4).
create index notifications_open on notification.notifications (created_at) where status in ('PENDING', 'PROCESSING');

-- Deliveries that failed for good, with all that is needed to try again, also when retention took the notification.
-- DEAD: waits for somebody to decide.
create table notification.notification_dlq (
    notification_id    uuid        primary key,
    tenant_id          text        not null collate "C",
    event_id           uuid        not null,
    event_type         text        not null,
    user_id            text        not null,
    stock_keeping_unit text        not null,
    payload_json       jsonb       not null,
    traceparent        text,
    attempt_count      integer     not null,
    last_error         text,
    status             text        not null default 'DEAD' check (status in ('DEAD', 'REQUEUED', 'DISCARDED')),
    created_at         timestamptz not null default now(),
    decided_at         timestamptz
);
create index notification_dlq_dead on notification.notification_dlq (created_at) where status = 'DEAD';
create index notification_dlq_decided on notification.notification_dlq (decided_at)
    where status in ('REQUEUED', 'DISCARDED');

-- Whoever makes a notification FAILED makes its dead letter, in the same transaction. One that is there already stays as it
-- is; one that was requeued, and failed again, is dead again.
create function notification.bury() returns trigger
language plpgsql as $$
begin
    insert into notification.notification_dlq as d (notification_id, tenant_id, event_id, event_type, user_id,
        stock_keeping_unit, payload_json, traceparent, attempt_count, last_error)
    values (new.notification_id, new.tenant_id, new.event_id, new.event_type, new.user_id,
        new.stock_keeping_unit, new.payload_json, new.traceparent, new.attempt_count, new.last_error)
    on conflict (notification_id) do update
        set status = 'DEAD', attempt_count = excluded.attempt_count, last_error = excluded.last_error,
            created_at = now(), decided_at = null
        where d.status <> 'DEAD';
    return null;
end
$$;
create trigger notifications_bury after update of status on notification.notifications
    for each row when (new.status = 'FAILED' and old.status <> 'FAILED') execute function notification.bury();

-- Messages of the bus that nobody could handle, as they came: terminated (they make no sense) or out of deliveries. A
-- message is named by where it stood; a stream that was lost and made anew counts from the beginning, so what it said is
-- part of the name.
--
--   DEAD ── requeue ──▶ REQUEUE ── published to its topic again ──▶ REQUEUED
--     │ ◀──────────────── the bus refuses it ──┘ (PUBLISHING while a worker has it)
--     └──── discard ──▶ DISCARDED
create table notification.notification_nats_dlq (
    dlq_id         bigint      generated always as identity primary key,
    stream         text        not null, -- JetStream's; the topic where PostgreSQL is the bus
    topic          text        not null, -- where it goes back to
    partition      integer     not null,
    stream_seq     bigint      not null,
    payload_digest text        not null generated always as (md5(payload)) stored,
    group_name     text        not null,
    kind           text        not null check (kind in ('terminated', 'max_deliver')),
    deliveries     integer     not null,
    reason         text        not null,
    tenant_id      text,                 -- as its headers say, if they do
    event_id       text,
    event_type     text,
    message_key    bytea,
    headers        jsonb       not null,
    payload        bytea       not null,
    status         text        not null default 'DEAD'
                   check (status in ('DEAD', 'REQUEUE', 'PUBLISHING', 'REQUEUED', 'DISCARDED')),
    created_at     timestamptz not null default now(),
    decided_at     timestamptz,
    requeue_id     bigint,               -- of dlq_audit: makes the new event-id header
    requeued_at    timestamptz,
    attempt_count  integer     not null default 0, -- of publishing it again
    claim_count    integer     not null default 0,
    claim_id       uuid,
    next_retry_at  timestamptz,
    locked_by      text,
    locked_at      timestamptz,
    lease_until    timestamptz,
    last_error     text,
    unique (stream, partition, stream_seq, payload_digest)
);
alter table notification.notification_nats_dlq alter column payload set storage external;
create index notification_nats_dlq_dead on notification.notification_nats_dlq (created_at) where status = 'DEAD';
create index notification_nats_dlq_decided on notification.notification_nats_dlq (decided_at)
    where status in ('REQUEUED', 'DISCARDED');
create index notification_nats_dlq_due on notification.notification_nats_dlq
    ((coalesce(greatest(next_retry_at, lease_until), created_at))) where status in ('REQUEUE', 'PUBLISHING');

-- Who decided what about which dead letter, and why it was one. Kept for ever.
create table notification.dlq_audit (
    audit_id        bigint      generated always as identity primary key,
    at              timestamptz not null default now(),
    actor           text        not null,
    action          text        not null check (action in ('requeue', 'discard')),
    dlq_id          bigint, -- of notification_nats_dlq …
    notification_id uuid,   -- … or of notification_dlq
    tenant_id       text,
    reason          text,   -- of its death
    note            text,   -- of the decision
    check ((dlq_id is null) <> (notification_id is null))
);
