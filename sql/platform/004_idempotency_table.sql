-- A module's stored answers (I1–I6), the same in every schema: each module has its own, so that it can be dropped, moved and
-- cleaned up with whatever else is the module's. An answer is committed with what it answers, found by its key, and deleted
-- some time after expires_at.
create function platform.idempotency_table_make(schema_name text) returns void
language plpgsql as $$
begin
    execute pg_catalog.format('create table %I.idempotency_keys ('
        'tenant_id       text        not null collate "C",'
        'subject         text        not null collate "C",'
        'method          text        not null collate "C",'
        'route           text        not null collate "C",'
        'idempotency_key text        not null collate "C",'
        'request_hash    bytea       not null,' -- SHA-256 of the body
        'response_status integer     not null,'
        'response_body   text        not null,'
        'created_at      timestamptz not null,'
        'expires_at      timestamptz not null,'
        'primary key (tenant_id, subject, method, route, idempotency_key)'
        ') with (autovacuum_vacuum_scale_factor = 0.05)', schema_name);
    execute pg_catalog.format('create index idempotency_keys_expiry on %I.idempotency_keys (expires_at)', schema_name);
end
$$;
