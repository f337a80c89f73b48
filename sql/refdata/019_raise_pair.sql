-- The first statement of a batch whose decisions are made (apply/expected.c): as refdata.expect_pair(), which older programs call, and
-- raises the version in the update that locks the row.
--
-- Each statement of a volatile function has a snapshot of its own: the second one sees what was committed while the first one waited
-- for the lock.
create function refdata.raise_pair(
    of_tenant text, of_dict text, expected_version bigint, expected_event uuid, expected_revision bigint,
    new_version bigint, new_event uuid, new_revision bigint, events uuid[], sent_by text)
returns void
language plpgsql as $$
declare
    entered integer;
    ignored text;
begin
    ignored := set_config('lock_timeout', '300', true);
    update refdata.dictionary_meta m
       set version = new_version, last_event_id = new_event, last_source_revision = new_revision,
           updated_at = case when new_version = expected_version then m.updated_at else clock_timestamp() end
     where m.tenant_id = of_tenant and m.dict_code = of_dict and m.version = expected_version
       and m.last_event_id = expected_event and m.last_source_revision is not distinct from expected_revision
       and (m.hydrated_until > clock_timestamp()) is not true;
    if not found then
        raise exception 'another process has changed this dictionary'
            using errcode = 'FB002', hint = 'Nothing to do: it is tried again with more care.';
    end if;
    insert into refdata.processed_event (tenant_id, event_id, source)
    select of_tenant, e, sent_by from unnest(events) as e
     where not exists (select from refdata.snapshot s
                        where s.tenant_id = of_tenant and s.dict_code = of_dict and s.status = 'PENDING')
     order by e on conflict do nothing;
    get diagnostics entered = row_count;
    if entered <> cardinality(events) then
        raise exception 'an update of this batch is not new, or a snapshot is in assembly'
            using errcode = 'FB002', hint = 'Nothing to do: it is tried again with more care.';
    end if;
end
$$;

-- PostgreSQL reads the text of a table's CHECK constraints again for every statement that writes to it (entitlement/005_checks.sql). The
-- states are written by apply and refdata.accept_updates() alone.
alter table refdata.update_request drop constraint update_request_status_check;
