-- Updates: what was asked for, what became of it, and what others must be told (seed 000 §9).
create table refdata.update_request (
    tenant_id         text        not null,
    event_id          uuid        not null,
    dict_code         text        not null,
    status            text        not null check (status in ('PENDING', 'COMMITTED', 'FAILED')),
    committed_version bigint,
    error_code        text,
    error_message     text,
    source            text        not null default 'REST',
    content_hash      text        not null, -- of what was sent: the same event_id with another one is a conflict
    snapshot_id       uuid,                 -- of a chunk: its status is the snapshot's
    created_at        timestamptz not null default clock_timestamp(),
    updated_at        timestamptz not null default clock_timestamp(),
    primary key (tenant_id, event_id)
) with (fillfactor = 80);
create index update_request_snapshot on refdata.update_request (tenant_id, snapshot_id) where snapshot_id is not null;
-- Not by what a decision changes: its update then stays in the row's own page.
create index update_request_age on refdata.update_request (created_at);

-- Every event that has had its effect, or was refused: it has none again.
create table refdata.processed_event (
    tenant_id    text        not null,
    event_id     uuid        not null,
    source       text        not null,
    processed_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, event_id)
);
create index processed_event_age on refdata.processed_event (processed_at);

-- Idempotency-Key of POST /updates: which event a key stands for.
create table refdata.update_key (
    tenant_id       text        not null,
    subject         text        not null,
    idempotency_key text        not null,
    body_hash       text        not null,
    event_id        uuid        not null,
    created_at      timestamptz not null default clock_timestamp(),
    primary key (tenant_id, subject, idempotency_key)
);
create index update_key_age on refdata.update_key (created_at);

-- One row per version: the intent to tell others, committed with the change. Its sequence is taken under the pair's
-- dictionary_meta lock, so within a pair id and version ascend together. `keys` are those that changed, null = perhaps
-- all (a snapshot): a pod reloads them alone (R16), a watcher is told them (R22).
create table refdata.outbox_event (
    id              bigserial   primary key,
    tenant_id       text        not null,
    event_id        uuid        not null,
    dict_code       text        not null,
    version         bigint      not null,
    payload         jsonb       not null, -- seed §8.2
    keys            text[],
    traceparent     text,
    created_at      timestamptz not null default clock_timestamp(),
    published       boolean     not null default false,
    published_at    timestamptz,
    failed_at       timestamptz,          -- given up: no longer blocks its pair
    attempt_count   integer     not null default 0,
    claim_count     integer     not null default 0,
    claim_id        uuid,
    locked_by       text,
    locked_until    timestamptz,
    next_attempt_at timestamptz,
    last_error      text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create unique index outbox_event_version on refdata.outbox_event (tenant_id, dict_code, version);
create index outbox_event_live on refdata.outbox_event (tenant_id, dict_code, id) where not published and failed_at is null;
create index outbox_event_age on refdata.outbox_event (published_at) where published;
