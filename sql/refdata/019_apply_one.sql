-- One update of one item, in one statement (apply/expected.c): a call writes what five to six statements of apply write otherwise.
-- In one function they are not parsed, bound and answered one by one, which was a quarter of the time of a WAIT_COMMIT.
--
-- The program has decided already, and expects the pair to be as it left it: the function decides nothing, it checks and writes. The
-- statement that raises the version is also the one that locks the pair; each statement after it has a snapshot of its own and sees
-- what was committed before the lock was granted. Where anything is not as expected the transaction ends with FB002, or with a unique
-- violation where the row of update_request exists already; the caller then reads the pair and writes with its other statements.
--
--     expected_*       the pair as the program left it            new_revision  as this update leaves it
--     new_payload      null = the item is deleted
--     hash             of update_request, whose row is inserted as COMMITTED; null = its row exists, and changes from PENDING
--     publish_at       the partition of refdata.invalidations; null = the version is left to a relay
--
-- Returns whether the version is published. As in apply/record.c it is left to a relay while an earlier version of the pair waits
-- for one, and where another commit has locked the partition (ADR 16). The partition is locked as late as possible, since the lock is
-- held until the commit is on disk.
create function refdata.apply_one(
    of_tenant text, of_dict text, expected_version bigint, expected_event uuid, expected_revision bigint,
    new_revision bigint, new_event uuid, sent_by text, hash text, requester text, trace text,
    changed_key text, new_payload jsonb, publish_at integer)
returns boolean
language plpgsql as $$
declare
    new_version bigint := expected_version + 1;
    new_offset  bigint;
    message     jsonb;
begin
    perform set_config('lock_timeout', '300', true);
    update refdata.dictionary_meta m
       set version = new_version, last_source_revision = new_revision, last_event_id = new_event,
           updated_at = clock_timestamp()
     where m.tenant_id = of_tenant and m.dict_code = of_dict and m.version = expected_version
       and m.last_event_id = expected_event and m.last_source_revision is not distinct from expected_revision
       and not coalesce(m.hydrated_until > clock_timestamp(), false);
    if not found then
        perform platform.expect(false, 'another process has changed this dictionary');
    end if;
    insert into refdata.processed_event (tenant_id, event_id, source)
    select of_tenant, new_event, sent_by
     where not exists (select from refdata.snapshot s
                        where s.tenant_id = of_tenant and s.dict_code = of_dict and s.status = 'PENDING')
        on conflict do nothing;
    if not found then
        perform platform.expect(false, 'this update is not new, or a snapshot is in assembly');
    end if;

    -- A row that would stay what it is is not written. Payloads are compared by their bytes: for = of jsonb 1.0 and 1.00 are one number.
    if new_payload is null then
        update refdata.dictionary_item i set deleted = true, updated_at = now()
         where i.tenant_id = of_tenant and i.dict_code = of_dict and i.item_key = changed_key and not i.deleted;
    else
        insert into refdata.dictionary_item as i (tenant_id, dict_code, item_key, payload)
        values (of_tenant, of_dict, changed_key, new_payload)
            on conflict (tenant_id, dict_code, item_key)
            do update set payload = excluded.payload, deleted = false, updated_at = now()
         where i.deleted or row(i.payload)::record *<> row(excluded.payload)::record;
    end if;

    if hash is null then
        update refdata.update_request r
           set status = 'COMMITTED', committed_version = new_version, updated_at = clock_timestamp()
         where r.tenant_id = of_tenant and r.event_id = new_event and r.status = 'PENDING';
    else
        insert into refdata.update_request
               (tenant_id, event_id, status, committed_version, dict_code, source, content_hash, requested_by)
        values (of_tenant, new_event, 'COMMITTED', new_version, of_dict, sent_by, hash, requester);
    end if;

    if publish_at is not null then
        perform from platform.bus_partition
          where topic = 'refdata.invalidations' and partition = publish_at
            and not exists (select from refdata.outbox_event
                             where tenant_id = of_tenant and dict_code = of_dict and not published and failed_at is null)
            for update skip locked;
        if found then
            update platform.bus_partition set next_offset = next_offset + 1
             where topic = 'refdata.invalidations' and partition = publish_at
            returning next_offset - 1 into new_offset;
        end if;
    end if;
    message := jsonb_build_object(
        'eventId', new_event, 'tenantId', of_tenant, 'dictCode', of_dict, 'version', new_version, 'committedAt',
        to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    -- A version that was set back is published again.
    insert into refdata.outbox_event
           (tenant_id, event_id, dict_code, version, payload, keys, traceparent, previous_event_id, published, published_at)
    values (of_tenant, new_event, of_dict, new_version, message, array[changed_key], trace, expected_event,
            new_offset is not null, case when new_offset is not null then now() end)
        on conflict (tenant_id, dict_code, version) do update
       set id = excluded.id, event_id = excluded.event_id, payload = excluded.payload, keys = excluded.keys,
           traceparent = excluded.traceparent, previous_event_id = excluded.previous_event_id,
           created_at = excluded.created_at, published = excluded.published, published_at = excluded.published_at,
           failed_at = null, attempt_count = 0, claim_count = 0, claim_id = null, locked_by = null,
           locked_until = null, next_attempt_at = null, last_error = null;
    if new_offset is not null then
        insert into platform.bus_message (topic, partition, message_offset, key, headers, payload)
        values ('refdata.invalidations', publish_at, new_offset, convert_to(of_tenant || ':' || of_dict, 'UTF8'),
                array['event-id', new_event::text]
                || case when coalesce(trace, '') = '' then '{}' else array['traceparent', trace] end,
                convert_to(message::text, 'UTF8'));
    end if;
    return new_offset is not null;
end
$$;
