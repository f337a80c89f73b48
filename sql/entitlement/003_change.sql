-- Grants or revokes: entitlement, audit and event in the caller's transaction, and the answer's status and body (E1–E3).
--
-- The first statement of each branch takes the entitlement's lock: a grant by inserting the row, where two first grants meet
-- at the key, or by updating it. Both look at the row as it is once they have the lock, so versions have no hole and no
-- double. A refusal writes nothing.
create function entitlement.change(
    p_tenant_id text, p_user_id text, p_sku text, p_status text, p_reason text, p_purchase_id text, p_actor text,
    p_event_id uuid, p_aggregate_key text, p_traceparent text,
    out answer_status integer, out answer_body text)
language plpgsql
as $$
declare
    v_granting constant boolean := p_status = 'ACTIVE';
    v_version  bigint;
    v_at       timestamptz;
    v_found    text;
begin
    if v_granting then
        insert into entitlement.entitlements as e
            (tenant_id, user_id, stock_keeping_unit, status, version, created_at, updated_at)
        select p_tenant_id, p_user_id, p_sku, 'ACTIVE', 1, n.at, n.at from pg_catalog.clock_timestamp() as n (at)
        on conflict (tenant_id, user_id, stock_keeping_unit) do update
            set status = 'ACTIVE', version = e.version + 1, updated_at = pg_catalog.clock_timestamp()
            where e.status = 'REVOKED'
        returning e.version, e.updated_at into v_version, v_at;
        v_found := 'ACTIVE';
    else
        loop
            update entitlement.entitlements e
            set status = 'REVOKED', version = e.version + 1, updated_at = pg_catalog.clock_timestamp()
            where e.tenant_id = p_tenant_id and e.user_id = p_user_id and e.stock_keeping_unit = p_sku
                and e.status = 'ACTIVE'
            returning e.version, e.updated_at into v_version, v_at;
            exit when found;
            select e.status into v_found from entitlement.entitlements e
            where e.tenant_id = p_tenant_id and e.user_id = p_user_id and e.stock_keeping_unit = p_sku;
            exit when v_found is distinct from 'ACTIVE'; -- else it was granted between the two
        end loop;
    end if;

    if v_version is null then
        answer_status := 409;
        answer_body := pg_catalog.format('{"code":"ENTITLEMENT_STATE_CONFLICT","message":"%s"}',
                                         coalesce('already ' || v_found, 'never granted'));
        return;
    end if;

    insert into entitlement.entitlement_audit
        (tenant_id, user_id, stock_keeping_unit, version, action, actor, event_id, detail, created_at)
    values (p_tenant_id, p_user_id, p_sku, v_version, case when v_granting then 'GRANT' else 'REVOKE' end, p_actor, p_event_id,
            pg_catalog.jsonb_build_object('reason', p_reason, 'purchase_id', p_purchase_id), v_at);

    insert into entitlement.outbox_events
        (event_id, tenant_id, aggregate_key, sequence, event_type, payload, traceparent, created_at)
    select p_event_id, p_tenant_id, p_aggregate_key, v_version, t.name,
           pg_catalog.format('{"event_id":"%s","event_type":"%s","occurred_at":"%s","user_id":%s,"stock_keeping_unit":%s,'
                             '"source":%s,"source_id":%s,"version":%s,"tenant_id":%s}',
                             p_event_id, t.name, platform.rfc3339(v_at), pg_catalog.to_json(p_user_id),
                             pg_catalog.to_json(p_sku), pg_catalog.to_json(p_reason), pg_catalog.to_json(p_purchase_id),
                             v_version, pg_catalog.to_json(p_tenant_id)),
           p_traceparent, v_at
    from (select case when v_granting then 'EntitlementGranted' else 'EntitlementRevoked' end) as t (name);

    answer_status := 200;
    answer_body := pg_catalog.format('{"user_id":%s,"stock_keeping_unit":%s,"status":"%s","version":%s,"updated_at":"%s"}',
                                     pg_catalog.to_json(p_user_id), pg_catalog.to_json(p_sku), p_status, v_version,
                                     platform.rfc3339(v_at));
end $$;
