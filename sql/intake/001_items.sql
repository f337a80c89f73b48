-- Intake: items, and what others must be told of them (seed 002, I8). Names are compared bytewise.
create schema if not exists intake;

-- The truth. A sku is its tenant's own. `attributes` is what came beside sku and title, as the bytes it came as, each member
-- with a comma before it: text, since jsonb would write 1.50 its own way and refuse numbers it cannot hold.
create table intake.items (
    id         uuid        not null primary key,
    tenant_id  text        not null collate "C",
    sku        text        not null collate "C",
    title      text        not null,
    attributes text        not null, -- ,"size":1.50,"tags":["a"]
    created_by text        not null, -- the token's sub
    created_at timestamptz not null,
    unique (tenant_id, sku)
);

-- Events on their way to the bus (O1–O6), committed with the item they tell of. The sequence is taken behind the item's
-- insert, whose unique key all who write that sku meet at, so it ascends in the order of commits.
create table intake.event_outbox (
    event_id      uuid        not null primary key,
    tenant_id     text        not null collate "C",
    sku           text        not null collate "C",
    sequence      bigint      not null generated always as identity,
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
alter table intake.event_outbox alter column payload set storage external;
-- What is claimed, what is cleaned up, and what somebody has to look at.
create index event_outbox_live on intake.event_outbox (tenant_id, sku, sequence) where status in ('PENDING', 'IN_FLIGHT');
create index event_outbox_age on intake.event_outbox (published_at) where status = 'PUBLISHED';
create index event_outbox_failed on intake.event_outbox (created_at) where status = 'FAILED';

-- Answers by Idempotency-Key (I1–I6): committed with what they answer.
select platform.idempotency_table_make('intake');

-- An item as everybody sees it: the POST's answer, the GET's, and what the event holds, to the byte.
create function intake.item_json(p_id uuid, p_sku text, p_title text, p_created_at timestamptz, p_attributes text) returns text
language sql stable strict parallel safe
as $$
    select '{"id":"' || p_id || '","sku":' || pg_catalog.to_json(p_sku)::text || ',"title":' || pg_catalog.to_json(p_title)::text
        || ',"created_at":"' || platform.rfc3339(p_created_at) || '"' || p_attributes || '}'
$$;

-- Creates an item and its event in the caller's transaction (I8); the answer's status and body, and the event's id. One that
-- finds the sku taken writes nothing: two at once meet at the unique key, and the later one waits for the earlier to end.
create function intake.create_item(p_tenant_id text, p_subject text, p_sku text, p_title text, p_attributes text,
                                   p_traceparent text, out status integer, out body text, out event_id uuid)
language plpgsql
as $$
declare
    v_id uuid := pg_catalog.gen_random_uuid();
    v_at timestamptz := pg_catalog.clock_timestamp();
begin
    insert into intake.items (id, tenant_id, sku, title, attributes, created_by, created_at)
    values (v_id, p_tenant_id, p_sku, p_title, p_attributes, p_subject, v_at)
    on conflict (tenant_id, sku) do nothing;
    if not found then
        status := 409;
        body := '{"detail":"an item with this sku exists","error_code":"SKU_TAKEN","field":"sku"}';
        return;
    end if;
    status := 201;
    body := intake.item_json(v_id, p_sku, p_title, v_at, p_attributes);
    event_id := pg_catalog.gen_random_uuid();
    insert into intake.event_outbox (event_id, tenant_id, sku, event_type, payload, traceparent, created_at)
    values (event_id, p_tenant_id, p_sku, 'item_created',
            '{"event_id":"' || event_id || '","event_type":"item_created","occurred_at":"' || platform.rfc3339(v_at)
                || '","tenant_id":' || pg_catalog.to_json(p_tenant_id)::text || ',"item":' || body || '}',
            p_traceparent, v_at);
end $$;
