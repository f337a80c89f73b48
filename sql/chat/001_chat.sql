-- Chat: messages, and what others must be told of them (seed 003, M1–M4). Sessions and events are their tenant's own.
create schema if not exists chat;

-- A session, whose row lock is the order of everything in it: sequence and times are taken under it. It belongs to the user
-- who wrote first.
create table chat.chat_sessions (
    tenant_id             text        not null collate "C",
    session_id            uuid        not null,
    project_id            uuid        not null,
    user_id               uuid        not null,
    agent                 text,                          -- who answered last
    last_sequence         bigint      not null default 0, -- of its events; some of them are messages
    last_message_sequence bigint      not null default 0,
    forgotten_sequence    bigint      not null default 0, -- up to here event_log has been cleaned up
    last_at               timestamptz not null,           -- created_at of its last message
    created_at            timestamptz not null,
    primary key (tenant_id, session_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- The canonical history. A message has the sequence of the event that tells of it, so that history and stream are in one
-- order; created_at ascends with it.
create table chat.messages (
    message_id    uuid        not null primary key,
    tenant_id     text        not null collate "C",
    project_id    uuid        not null,
    session_id    uuid        not null,
    user_id       uuid        not null,
    sequence      bigint      not null,
    role          text        not null check (role in ('user', 'assistant', 'system')),
    content       text        not null,
    agent         text,
    routing_score numeric,
    created_at    timestamptz not null,
    unique (tenant_id, session_id, sequence)
);

-- Events on their way out (O1–O6), committed with what they tell of. The seed's columns and words, and what the engine needs.
create table chat.event_outbox (
    id             uuid         not null primary key,
    aggregate_type varchar(50)  not null,
    aggregate_id   uuid         not null, -- the session
    project_id     uuid         not null,
    user_id        uuid         not null,
    event_type     varchar(100) not null,
    payload        jsonb        not null,
    status         varchar(20)  not null default 'pending' check (status in ('pending', 'in_flight', 'published', 'failed')),
    retry_count    integer      not null default 0,
    next_retry_at  timestamptz,
    created_at     timestamptz  not null,
    published_at   timestamptz,
    last_error     text,
    tenant_id      text         not null collate "C",
    sequence       bigint       not null, -- the session's, taken under its row lock
    traceparent    text,
    claim_id       uuid,
    claim_count    integer      not null default 0,
    locked_by      text,
    locked_at      timestamptz,
    lease_until    timestamptz
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- The seed's four.
create index event_outbox_status on chat.event_outbox (status, next_retry_at, created_at);
create index event_outbox_aggregate on chat.event_outbox (aggregate_id, created_at);
create index event_outbox_project on chat.event_outbox (project_id, created_at);
create index event_outbox_user on chat.event_outbox (user_id, created_at);
-- What is claimed, and what is cleaned up.
create index event_outbox_live on chat.event_outbox (tenant_id, aggregate_id, sequence) where status in ('pending', 'in_flight');
create index event_outbox_age on chat.event_outbox (published_at) where status = 'published';

-- What was published: the read model of streams that catch up, and of whoever asks what happened. A row is written by the
-- publisher before anybody is told of the event, in the order of the session, so that what a reader finds has no holes but
-- those of failed events.
create table chat.event_log (
    event_id   uuid         not null primary key,
    tenant_id  text         not null collate "C",
    project_id uuid         not null,
    user_id    uuid         not null,
    session_id uuid         not null,
    sequence   bigint       not null,
    event_type varchar(100) not null,
    payload    jsonb        not null,
    created_at timestamptz  not null,
    logged_at  timestamptz  not null default now(),
    unique (tenant_id, session_id, sequence)
) with (autovacuum_vacuum_scale_factor = 0.05);
-- By whom it is asked for, and what is cleaned up.
create index event_log_user on chat.event_log (tenant_id, project_id, user_id, created_at, event_id);
create index event_log_age on chat.event_log (created_at);

-- Answers by Idempotency-Key (I1–I6): committed with what they answer. The subject is the user's and the session's.
select platform.idempotency_table_make('chat');

-- An event as everybody sees it (M3), on one line; null when its payload is no event's.
create function chat.event_json(p_id uuid, p_type text, p_sequence bigint, p_session_id uuid, p_at timestamptz, p_payload jsonb)
returns text
language sql stable strict parallel safe
as $$
    select case when pg_catalog.jsonb_typeof(p_payload) = 'object' and p_payload ->> 'event_id' = p_id::text then
        '{"event_id":"' || p_id || '","event_type":' || pg_catalog.to_json(p_type)::text || ',"sequence":' || p_sequence
            || ',"session_id":"' || p_session_id || '","created_at":"' || platform.rfc3339(p_at) || '","payload":' || p_payload::text
            || '}' end
$$;

-- Who cleans up event_log leaves behind up to where, so that a reader who comes back with less is told (410).
create function chat.note_forgotten() returns trigger
language plpgsql
as $$
begin
    perform 1 from chat.chat_sessions s
    where (s.tenant_id, s.session_id) in (select g.tenant_id, g.session_id from gone g)
    order by s.tenant_id, s.session_id for update; -- in one order, whoever else cleans up
    update chat.chat_sessions s set forgotten_sequence = greatest(s.forgotten_sequence, g.sequence)
    from (select tenant_id, session_id, max(sequence) as sequence from gone group by tenant_id, session_id) g
    where s.tenant_id = g.tenant_id and s.session_id = g.session_id;
    return null;
end $$;
create trigger event_log_forgotten after delete on chat.event_log
    referencing old table as gone for each statement execute function chat.note_forgotten();
