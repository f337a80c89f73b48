-- Commands on their way to Kafka (R11): committed with the update_request they belong to, published at once by whoever
-- accepted them, or later by anybody. Not used where PostgreSQL carries the commands itself. The payload is the message,
-- byte for byte: text, since jsonb would write numbers and white space its own way. It is read once and not worth compressing.
create table refdata.command_outbox (
    id              bigserial   primary key,
    tenant_id       text        not null,
    dict_code       text        not null,
    event_id        uuid        not null,
    payload         text        not null, -- seed §8.1
    waited          boolean     not null, -- somebody waits for the commit
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
alter table refdata.command_outbox alter column payload set storage external;
create index command_outbox_live on refdata.command_outbox (tenant_id, dict_code, id) where not published and failed_at is null;
create index command_outbox_age on refdata.command_outbox (published_at) where published;
