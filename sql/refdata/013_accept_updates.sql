-- Accepts a batch of updates (R1, R9, R11): decides for each whether it is new, known or in conflict, and writes the rows that make
-- it happen once: update_key for an Idempotency-Key, chunk_request for a chunk of a snapshot, update_request for the event.
--
-- The arrays have an element for each update, in the order in which they came; `keys` and `chunk_hashes` are null where no update
-- has one. Returns a row for each update that is not plainly new, by its place in the arrays:
--
--     NEW      its key was used before by the same event, whose row is no longer kept
--     KNOWN    an update with the same content was accepted before: `event`, and its status. `chunk_is_new`: this chunk was not.
--     RETRY    retention deleted a row between two statements: run the transaction again
--     …        any other verdict is the error code of a refusal
--
-- The caller rolls back where an update is refused, and runs the function again without it: rows that it wrote for the refused
-- one are not deleted. With `all_new` the function raises FR004 instead of returning a row.
--
-- Each decision rests on a unique index: an insert waits for another transaction that has inserted the same row, and the statement
-- after it sees what that one has committed, since each statement of a volatile function has a snapshot of its own (READ COMMITTED).
-- Chunks are written before events, both in one order in every process, so that no two batches wait for each other. A key is not
-- waited for: its advisory lock tells that another process is at it (I3). Twins in one batch share the lock.
create function refdata.accept_updates(
    sent_by text, tenants text[], event_ids uuid[], dict_codes text[], content_hashes text[], requesters text[],
    snapshot_ids uuid[], chunk_indexes integer[], chunk_hashes text[],
    subjects text[], keys text[], body_hashes text[], key_locks bigint[], key_keep_ms bigint, all_new boolean)
returns table (place integer, verdict text, key_is_known boolean, chunk_is_new boolean, event text,
               status text, committed_version bigint, error_code text, error_message text)
language plpgsql as $$
#variable_conflict use_column
declare
    this           record;
    known          record;
    answers        uuid[]    := event_ids; -- whose status is the answer: the event's own, or that of the key
    refusals       text[]    := array_fill(null::text, array[cardinality(tenants)]);
    known_keys     boolean[] := array_fill(false, array[cardinality(tenants)]);
    new_chunks     boolean[] := known_keys;
    new_tenants    text[];
    new_events     uuid[];
begin
    if keys is not null then
        for this in
            select at::integer, tenant, subject, key, body_hash, event, lock
              from unnest(tenants, subjects, keys, body_hashes, event_ids, key_locks) with ordinality
                   as u (tenant, subject, key, body_hash, event, lock, at)
             where key is not null
        loop
            -- `key_keep_ms` after its first use a key is free again; replays do not extend that (I6)
            insert into refdata.update_key as k (tenant_id, subject, idempotency_key, body_hash, event_id)
            select this.tenant, this.subject, this.key, this.body_hash, this.event where pg_try_advisory_xact_lock(this.lock)
                on conflict (tenant_id, subject, idempotency_key) do update
               set body_hash = excluded.body_hash, event_id = excluded.event_id, created_at = clock_timestamp()
             where k.created_at < clock_timestamp() - key_keep_ms * interval '1 ms';
            continue when found;
            select k.body_hash, k.event_id into known
              from refdata.update_key k
             where k.tenant_id = this.tenant and k.subject = this.subject and k.idempotency_key = this.key
               and k.created_at >= clock_timestamp() - key_keep_ms * interval '1 ms';
            if not found then
                refusals[this.at] := 'IDEMPOTENCY_KEY_PROCESSING';
            elsif known.body_hash <> this.body_hash then
                refusals[this.at] := 'IDEMPOTENCY_KEY_CONFLICT';
            else
                known_keys[this.at] := true;
                answers[this.at] := known.event_id;
            end if;
        end loop;
    end if;

    if chunk_hashes is not null then
        for this in
            select at::integer, tenant, dict, snapshot, index, hash, event
              from unnest(tenants, dict_codes, snapshot_ids, chunk_indexes, chunk_hashes, event_ids,
                          refusals) with ordinality as u (tenant, dict, snapshot, index, hash, event, refusal, at)
             where hash is not null and refusal is null
             order by tenant collate "C", dict collate "C", snapshot, index, at
        loop
            insert into refdata.chunk_request (tenant_id, dict_code, snapshot_id, chunk_index, content_hash, event_id)
            values (this.tenant, this.dict, this.snapshot, this.index, this.hash, this.event)
                on conflict do nothing;
            new_chunks[this.at] := found;
            continue when found;
            select c.content_hash into known
              from refdata.chunk_request c
             where c.tenant_id = this.tenant and c.dict_code = this.dict and c.snapshot_id = this.snapshot
               and c.chunk_index = this.index;
            if not found then
                refusals[this.at] := 'RETRY';
            elsif known.content_hash <> this.hash then
                refusals[this.at] := 'CHUNK_CONFLICT';
            end if;
        end loop;
    end if;

    with written as (
        insert into refdata.update_request
               (tenant_id, event_id, dict_code, status, source, content_hash, snapshot_id, requested_by)
        select tenant, event, dict, 'PENDING', sent_by, hash, snapshot, requester
          from unnest(tenants, event_ids, dict_codes, content_hashes, snapshot_ids, requesters, answers, refusals)
               with ordinality as u (tenant, event, dict, hash, snapshot, requester, answer, refusal, at)
         where refusal is null and answer = event
         order by tenant collate "C", event, at
            on conflict do nothing
        returning tenant_id, event_id)
    select array_agg(tenant_id), array_agg(event_id) into new_tenants, new_events from written;
    if cardinality(new_events) = cardinality(tenants) and not true = any (known_keys) then
        return;
    end if;
    if all_new then
        raise exception using errcode = 'FR004', message = 'some of these updates are not new';
    end if;

    -- Of several updates of one event in this batch the first is the new one.
    return query
    select at::integer,
           case when refusal is not null then refusal
                when is_new then 'NEW'
                when r.event_id is null and answer = event then 'RETRY'
                when r.event_id is null then 'UNKNOWN_UPDATE'
                when answer = event and (r.content_hash <> hash or r.dict_code <> dict) then 'EVENT_ID_CONFLICT'
                else 'KNOWN'
           end,
           key_is_known, chunk_is_new, answer::text, r.status, r.committed_version, r.error_code, r.error_message
      from (select *,
                   is_asked and row_number() over (partition by tenant, event, is_asked order by at) = 1
                   and (tenant, event) in (select t, e from unnest(new_tenants, new_events) as n (t, e)) as is_new
              from (select *, refusal is null and answer = event as is_asked
                      from unnest(tenants, event_ids, dict_codes, content_hashes, answers, refusals, known_keys, new_chunks)
                           with ordinality
                           as a (tenant, event, dict, hash, answer, refusal, key_is_known, chunk_is_new, at)) as asked) as u
      left join refdata.update_request r on r.tenant_id = tenant and r.event_id = answer and not is_new
     where not is_new or key_is_known;
end
$$;
