-- Chunks that were accepted: the same chunk with another content is refused when it is sent, not when it is applied.
-- Written in the transaction that accepts the chunk; kept for as long as its snapshot can be completed.
create table refdata.chunk_request (
    tenant_id    text        not null,
    dict_code    text        not null,
    snapshot_id  uuid        not null,
    chunk_index  integer     not null,
    content_hash text        not null,
    event_id     uuid        not null, -- of the first that brought it
    created_at   timestamptz not null default clock_timestamp(),
    primary key (tenant_id, dict_code, snapshot_id, chunk_index)
);
create index chunk_request_age on refdata.chunk_request (created_at);
