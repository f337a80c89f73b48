-- Snapshots that come in chunks (R8): what has come, until all of it has. All of it is written under the pair's
-- dictionary_meta lock, but for the end of a snapshot that is not completed in time.

-- One row per snapshot. Once decided it stays as long as updates do, without its data: a chunk that comes late gets its
-- status, and has no effect.
create table refdata.snapshot (
    tenant_id         text        not null,
    dict_code         text        not null,
    snapshot_id       uuid        not null,
    status            text        not null check (status in ('PENDING', 'COMMITTED', 'FAILED')),
    chunks_total      integer     not null,
    received          integer     not null,
    source_revision   bigint,               -- the highest of its chunks
    floor_revision    bigint,               -- of what it must not undo: lower is stale
    begun_version     bigint      not null, -- deltas committed since then are applied on top of it
    occurred_ms       bigint      not null,
    committed_version bigint,
    error_code        text,
    error_message     text,
    updated_at        timestamptz not null default clock_timestamp(), -- of its last chunk, or its decision
    primary key (tenant_id, dict_code, snapshot_id)
);
create index snapshot_pending on refdata.snapshot (tenant_id, dict_code) where status = 'PENDING';
create index snapshot_age on refdata.snapshot (updated_at);

-- Keys and raw JSON of a chunk, side by side; null once the snapshot is decided. They are read once and not worth
-- compressing.
create table refdata.snapshot_chunk (
    tenant_id    text    not null,
    dict_code    text    not null,
    snapshot_id  uuid    not null,
    chunk_index  integer not null,
    event_id     uuid    not null,
    content_hash text    not null,
    keys         text[],
    payloads     text[],
    primary key (tenant_id, dict_code, snapshot_id, chunk_index),
    foreign key (tenant_id, dict_code, snapshot_id) references refdata.snapshot on delete cascade
);
alter table refdata.snapshot_chunk alter column keys set storage external;
alter table refdata.snapshot_chunk alter column payloads set storage external;

-- Deltas committed while some snapshot of their pair was being assembled; a null payload is a deletion.
create table refdata.snapshot_delta (
    tenant_id   text   not null,
    dict_code   text   not null,
    version     bigint not null,
    occurred_ms bigint not null,
    keys        text[] not null,
    payloads    text[] not null,
    primary key (tenant_id, dict_code, version)
);

-- Deleted items are forgotten after a while.
create index dictionary_item_deleted on refdata.dictionary_item (updated_at) where deleted;

-- What a snapshot makes the items of a pair: the keys and payloads given, or those of its chunks, with the deltas after
-- version `begun` on top. Of a key that comes several times the last one stands. Sorted, so that an index grows at its end.
create function refdata.snapshot_items(
    of_tenant text, of_dict text, all_keys text[], all_payloads text[], snapshot uuid, begun bigint)
returns table (k text, p text)
language sql stable as $$
    select k, p from (
        select distinct on (k) k, p from (
            select u.k collate "C" as k, u.p, 0::bigint as version, 0 as part
              from unnest(all_keys, all_payloads) as u (k, p)
            union all
            select u.k, u.p, 0, c.chunk_index
              from refdata.snapshot_chunk c, unnest(c.keys, c.payloads) as u (k, p)
             where c.tenant_id = of_tenant and c.dict_code = of_dict and c.snapshot_id = snapshot
            union all
            select u.k, u.p, d.version, 0
              from refdata.snapshot_delta d, unnest(d.keys, d.payloads) as u (k, p)
             where d.tenant_id = of_tenant and d.dict_code = of_dict and d.version > begun) as parts
         order by k, version desc, part desc) as last
     where p is not null
$$;

-- Makes them its items in the built-in table. Rows that stay what they are are not written; the pair's dictionary_meta lock
-- keeps others away. Where there are none yet there is nothing to compare; otherwise three writes of different rows are
-- one statement, so that `fresh` is made once. Statistics know nothing of what is staged: without hash joins a plan for a
-- few rows would meet a million.
create function refdata.replace_items(
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
        update refdata.dictionary_item i set payload = f.p, deleted = false, updated_at = now()
          from fresh f
         where i.tenant_id = of_tenant and i.dict_code = of_dict and i.item_key = f.k
           and (i.deleted or i.payload is distinct from f.p))
    insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)
    select of_tenant, of_dict, f.k, f.p from fresh f
     where not exists (select from refdata.dictionary_item i
                        where i.tenant_id = of_tenant and i.dict_code = of_dict and i.item_key = f.k);
end
$$;
