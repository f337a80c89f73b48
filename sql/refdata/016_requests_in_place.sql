-- A queued update changes its row once, from PENDING to its decision. With room for that in the row's own page no index is written.
-- Pages that are there stay as they are.
alter table refdata.update_request set (fillfactor = 55);

-- As in 014, and limits how long this transaction waits for locks: the caller then needs no statement for that.
create or replace function refdata.expect_pair(
    of_tenant text, of_dict text, expected_version bigint, expected_event uuid, expected_revision bigint,
    events uuid[], sent_by text)
returns void
language plpgsql as $$
declare
    entered integer;
begin
    perform set_config('lock_timeout', '300', true);
    perform from refdata.dictionary_meta m
      where m.tenant_id = of_tenant and m.dict_code = of_dict and m.version = expected_version
        and m.last_event_id = expected_event and m.last_source_revision is not distinct from expected_revision
        and not coalesce(m.hydrated_until > clock_timestamp(), false)
        for update;
    perform platform.expect(found, 'another process has changed this dictionary');
    insert into refdata.processed_event (tenant_id, event_id, source)
    select of_tenant, e, sent_by from unnest(events) as e
     where not exists (select from refdata.snapshot s
                        where s.tenant_id = of_tenant and s.dict_code = of_dict and s.status = 'PENDING')
     order by e on conflict do nothing;
    get diagnostics entered = row_count;
    perform platform.expect(entered = cardinality(events), 'an update of this batch is not new, or a snapshot is in assembly');
end
$$;
