-- Snapshots that come in chunks (R8): what has come, until all of it has. All of it is written under the pair's
-- dictionary_meta lock, but for the end of a snapshot that is not completed in time.

-- One row per snapshot. Once decided it stays as long as updates do, without its data: a chunk that comes late gets its
-- status, and has no effect.
create table refdata.snapshot (
    tenant_id         text        not null,
    dict_code         text        not null,
    snapshot_id       uuid        not null,
    status            text        not null check (status in ('PENDING', 'COMMITTED', 'FAILED')),
    chunks_total      integer     not null,
    received          integer     not null,
    source_revision   bigint,               -- the highest of its chunks
    floor_revision    bigint,               -- of what it must not undo: lower is stale
    begun_version     bigint      not null, -- deltas committed since then are applied on top of it
    occurred_ms       bigint      not null,
    committed_version bigint,
    error_code        text,
    error_message     text,
    updated_at        timestamptz not null default clock_timestamp(), -- of its last chunk, or its decision
    primary key (tenant_id, dict_code, snapshot_id)
);
create index snapshot_pending on refdata.snapshot (tenant_id, dict_code) where status = 'PENDING';
create index snapshot_age on refdata.snapshot (updated_at);

-- Keys and raw JSON of a chunk, side by side; null once the snapshot is decided. They are read once and not worth
-- compressing.
create table refdata.snapshot_chunk (
    tenant_id    text    not null,
    dict_code    text    not null,
    snapshot_id  uuid    not null,
    chunk_index  integer not null,
    event_id     uuid    not null,
    content_hash text    not null,
    keys         text[],
    payloads     text[],
    primary key (tenant_id, dict_code, snapshot_id, chunk_index),
    foreign key (tenant_id, dict_code, snapshot_id) references refdata.snapshot on delete cascade
);
alter table refdata.snapshot_chunk alter column keys set storage external;
alter table refdata.snapshot_chunk alter column payloads set storage external;

-- Deltas committed while some snapshot of their pair was being assembled; a null payload is a deletion.
create table refdata.snapshot_delta (
    tenant_id   text   not null,
    dict_code   text   not null,
    version     bigint not null,
    occurred_ms bigint not null,
    keys        text[] not null,
    payloads    text[] not null,
    primary key (tenant_id, dict_code, version)
);

-- Deleted items are forgotten after a while.
create index dictionary_item_deleted on refdata.dictionary_item (updated_at) where deleted;
