-- The embedded bus. A partition is a row that hands out offsets and the messages that carry them.
--
-- A publisher updates the partition's row and keeps its lock to the end of the transaction, so the order of
-- offsets is the order of commits: whoever sees offset n sees all before it. There are no holes, a rollback
-- gives its offsets back. A consumer holds the row of its (group, topic, partition) FOR UPDATE SKIP LOCKED
-- while it handles a batch and moves it in the same transaction: its death frees the row, nothing has to
-- expire.
create table platform.bus_partition (
    topic       text    not null collate "C",
    partition   integer not null,
    next_offset bigint  not null default 0,
    primary key (topic, partition)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Pages are not given back when the table runs empty: plans made for an empty table would scan what comes
-- next.
create table platform.bus_message (
    topic          text        not null collate "C",
    partition      integer     not null,
    message_offset bigint      not null,
    key            bytea,
    headers        text[]      not null, -- name, value, name, value …
    payload        bytea       not null,
    created_at     timestamptz not null default clock_timestamp(), -- taken under the lock: ascends too
    primary key (topic, partition, message_offset)
) with (autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = false);

-- Large payloads are read once or twice and then deleted: compressing them would cost more than it saves.
alter table platform.bus_message alter column payload set storage external;

-- position: the next offset to handle. Up to careful_until messages come one by one, since a batch failed as
-- a whole.
create table platform.bus_cursor (
    group_name    text        not null collate "C",
    topic         text        not null collate "C",
    partition     integer     not null,
    position      bigint      not null,
    careful_until bigint      not null default 0,
    attempts      integer     not null default 0, -- of the message at position
    retry_at      timestamptz,
    last_error    text,
    primary key (group_name, topic, partition)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Appends keys[], headers[] (each a text[] literal) and payloads[]: the first counts[1] of them to partition
-- (topics[1], partitions[1]), and so on. The caller sorts partitions by (topic, partition), bytewise:
-- everybody locks in that order, so publishers do not deadlock. Answers each partition's first new offset.
create function platform.bus_publish(
    topics text[], partitions integer[], counts integer[], keys bytea[], headers text[], payloads bytea[])
returns setof bigint
language plpgsql as $$
declare
    base  bigint;
    first integer := 1;
    last  integer;
begin
    for i in 1 .. cardinality(topics) loop
        last := first + counts[i] - 1;
        update platform.bus_partition p
           set next_offset = p.next_offset + counts[i]
         where p.topic = topics[i] and p.partition = partitions[i]
        returning p.next_offset - counts[i] into base;
        if not found then
            raise exception 'topic % has no partition %', topics[i], partitions[i] using errcode = 'FB001';
        end if;
        insert into platform.bus_message (topic, partition, message_offset, key, headers, payload)
        select topics[i], partitions[i], base + m.at - 1, m.key, m.headers::text[], m.payload
          from unnest(keys[first:last], headers[first:last], payloads[first:last])
               with ordinality as m (key, headers, payload, at);
        return next base;
        first := last + 1;
    end loop;
end
$$;
