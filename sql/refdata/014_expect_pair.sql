-- The first statement of a batch that was decided before its pair was read (apply/expected.c): locks the pair, enters its events,
-- and ends the transaction where anything is not as expected (FB002).
--
-- Each statement of a volatile function has a snapshot of its own: the second one sees what was committed while the first one waited
-- for the lock.
create function refdata.expect_pair(
    of_tenant text, of_dict text, expected_version bigint, expected_event uuid, expected_revision bigint,
    events uuid[], sent_by text)
returns void
language plpgsql as $$
declare
    entered integer;
begin
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
