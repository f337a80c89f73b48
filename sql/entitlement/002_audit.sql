-- What was done, by whom and why: one small row a change. Monthly partitions, made ahead of time (E3), so that old ones go by
-- dropping them. Rows that no month takes (a clock that jumped, a job that did not run) land in the default partition and
-- move out of it when their month is made: an audit never fails a grant.
create table entitlement.entitlement_audit (
    tenant_id          text        not null collate "C",
    user_id            text        not null collate "C",
    stock_keeping_unit text        not null collate "C",
    version            bigint      not null,
    action             text        not null, -- GRANT, REVOKE
    actor              text        not null, -- the token's sub
    event_id           uuid        not null,
    detail             jsonb       not null, -- {"reason","purchase_id"} and nothing that grows
    created_at         timestamptz not null
) partition by range (created_at);
create index entitlement_audit_of on entitlement.entitlement_audit (tenant_id, user_id, stock_keeping_unit, version);
create table entitlement.entitlement_audit_default partition of entitlement.entitlement_audit default;

-- Makes this month's partition and the next p_ahead, where they are missing. Safe side by side. A partition is filled with
-- what the default one holds of its month, then attached, which does not keep grants waiting. Only a month that has begun
-- does, for a moment: else a grant already on its way into the default partition would be refused there.
create function entitlement.audit_make(p_ahead integer) returns integer
language plpgsql
set lock_timeout = '500ms'
set timezone = 'UTC'
as $$
declare
    v_month timestamptz;
    v_next  timestamptz;
    v_name  text;
    v_made  integer := 0;
begin
    perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('entitlement.audit', 0));
    for i in 0 .. p_ahead loop
        v_month := pg_catalog.date_trunc('month', pg_catalog.now()) + pg_catalog.make_interval(months => i);
        v_next := v_month + interval '1 month';
        v_name := 'entitlement_audit_' || pg_catalog.to_char(v_month, 'YYYY_MM');
        continue when pg_catalog.to_regclass('entitlement.' || v_name) is not null;
        if v_month <= pg_catalog.now() then
            lock table entitlement.entitlement_audit in share row exclusive mode;
        end if;
        lock table entitlement.entitlement_audit_default in access exclusive mode;
        execute pg_catalog.format('create table entitlement.%I'
            ' (like entitlement.entitlement_audit including defaults including indexes)', v_name);
        execute pg_catalog.format('with late as (delete from entitlement.entitlement_audit_default'
            ' where created_at >= %L and created_at < %L returning *) insert into entitlement.%I select * from late',
            v_month, v_next, v_name);
        execute pg_catalog.format('alter table entitlement.entitlement_audit attach partition entitlement.%I'
            ' for values from (%L) to (%L)', v_name, v_month, v_next);
        v_made := v_made + 1;
    end loop;
    return v_made;
end $$;

-- Drops months that ended before the last p_keep whole ones. Whoever reads an old month for longer than the lock_timeout
-- is left alone, and so are grants: the next run tries again.
create function entitlement.audit_drop(p_keep integer) returns integer
language plpgsql
set lock_timeout = '500ms'
set timezone = 'UTC'
as $$
declare
    v_first   timestamptz := pg_catalog.date_trunc('month', pg_catalog.now()) - pg_catalog.make_interval(months => p_keep);
    v_name    text;
    v_dropped integer := 0;
begin
    perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('entitlement.audit', 0));
    for v_name in
        select c.relname from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'entitlement.entitlement_audit'::regclass
          and c.relname ~ '^entitlement_audit_[0-9]{4}_[0-9]{2}$'
          and c.relname < 'entitlement_audit_' || pg_catalog.to_char(v_first, 'YYYY_MM')
        order by 1
    loop
        execute pg_catalog.format('drop table entitlement.%I', v_name);
        v_dropped := v_dropped + 1;
    end loop;
    delete from entitlement.entitlement_audit_default where created_at < v_first;
    return v_dropped;
end $$;

select entitlement.audit_make(1);
