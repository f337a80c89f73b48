-- Makes a snapshot the items of a pair in the built-in table, as before (003_snapshots.sql), but:
--
-- A key whose row is deleted is written by an upsert. Upkeep removes such rows without the pair's dictionary_meta lock, so a
-- row that the statement's snapshot shows may be gone when it is written: an update would skip it, and the key would be lost.
--
-- Payloads are compared by their bytes (*<>), as they are printed: for = and <> of jsonb 1.0 and 1.00 are one number.
create or replace function refdata.replace_items(
    of_tenant text, of_dict text, all_keys text[], all_payloads text[], snapshot uuid, begun bigint)
returns void
language plpgsql set enable_nestloop = off set jit = off set work_mem = '64MB' as $$
begin
    if not exists (select from refdata.dictionary_item where tenant_id = of_tenant and dict_code = of_dict) then
        insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)
        select of_tenant, of_dict, k, p::jsonb
          from refdata.snapshot_items(of_tenant, of_dict, all_keys, all_payloads, snapshot, begun);
        return;
    end if;
    with fresh as materialized (
        select k, p::jsonb as p
          from refdata.snapshot_items(of_tenant, of_dict, all_keys, all_payloads, snapshot, begun)),
    gone as (
        update refdata.dictionary_item i set deleted = true, updated_at = now()
         where i.tenant_id = of_tenant and i.dict_code = of_dict and not i.deleted
           and not exists (select from fresh f where f.k = i.item_key)),
    changed as (
        update refdata.dictionary_item i set payload = f.p, updated_at = now()
          from fresh f
         where i.tenant_id = of_tenant and i.dict_code = of_dict and i.item_key = f.k and not i.deleted
           and row(i.payload)::record *<> row(f.p)::record)
    insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)
    select of_tenant, of_dict, f.k, f.p from fresh f
     where not exists (select from refdata.dictionary_item i
                        where i.tenant_id = of_tenant and i.dict_code = of_dict and i.item_key = f.k
                          and not i.deleted)
        on conflict (tenant_id, dict_code, item_key)
        do update set payload = excluded.payload, deleted = false, updated_at = now();
end
$$;
