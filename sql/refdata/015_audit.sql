-- The auditor of updates: finds accepted updates that nothing carries any more, so that each is decided in the end.
--
-- Where it stands, one row. It walks update_request in the order of created_at: an index on undecided rows would make every decision
-- write to it. Whichever process moves due_at walks until then.
create table refdata.audit (
    is_only   boolean     primary key default true check (is_only),
    due_at    timestamptz not null default '-infinity',
    position  timestamptz not null default '-infinity', -- created_at: older updates have been looked at in this round
    oldest    timestamptz,                              -- created_at of the first that this round has left undecided
    whole_at  timestamptz not null default '-infinity'  -- when a round last began with the oldest row
);
insert into refdata.audit default values;

-- Commands that could not be published. Costs nothing while there are none: failed_at is in another index's condition too.
create index command_outbox_failed on refdata.command_outbox (failed_at) where failed_at is not null;

-- Updates that are not decided, accepted from `since` to `until`, and what carries each:
--
--   carriers      messages of the embedded bus that the group has not handled, rows of command_outbox that wait to be published, and
--                 the snapshot that a chunk is a part of, which ends by its deadline. An update that is no chunk has exactly one.
--   outbox_id     of command_outbox: its row that was published, or given up or discarded (is_given_up). With a published one the message is
--                 the engine's, which alone knows whether it still has it.
--
-- An update moves from one carrier to the next, or to its decision, in one transaction: one snapshot of the database sees it in
-- one place.
create function refdata.undecided(of_topic text, of_group text, since timestamptz, until timestamptz)
returns table (tenant_id text, event_id uuid, dict_code text, snapshot_id uuid, created_at timestamptz, carriers bigint,
               outbox_id bigint, published_at timestamptz, is_given_up boolean, last_error text)
language sql stable as $$
    with pending as materialized (
        select r.tenant_id, r.event_id, r.dict_code, r.snapshot_id, r.created_at from refdata.update_request r
         where r.status = 'PENDING' and r.created_at >= since and r.created_at <= until),
    message as materialized (
        select m.key, m.headers[array_position(m.headers, 'event-id') + 1] as event_id, count(*) as messages
          from platform.bus_partition p
          left join platform.bus_cursor c on c.group_name = of_group and c.topic = p.topic and c.partition = p.partition
          join platform.bus_message m on m.topic = p.topic and m.partition = p.partition
           and m.message_offset >= coalesce(c.position, 0)
         where p.topic = of_topic and exists (select from pending)
         group by 1, 2),
    waiting as materialized (
        select o.tenant_id, o.event_id, count(*) as rows from refdata.command_outbox o
         where not o.published and o.failed_at is null and exists (select from pending)
         group by 1, 2),
    ended as materialized (
        select distinct on (e.tenant_id, e.event_id) e.* from (
            select o.tenant_id, o.event_id, o.id, o.published_at, o.failed_at is not null as is_given_up, o.last_error
              from refdata.command_outbox o
             where o.published and o.published_at >= (select min(p.created_at) from pending p)
            union all
            select o.tenant_id, o.event_id, o.id, o.published_at, true, o.last_error
              from refdata.command_outbox o
             where o.failed_at is not null and exists (select from pending)) e
         order by e.tenant_id, e.event_id, e.id desc)
    select p.tenant_id, p.event_id, p.dict_code, p.snapshot_id, p.created_at,
           coalesce(m.messages, 0) + coalesce(w.rows, 0)
               + (p.snapshot_id is not null and exists (
                     select from refdata.snapshot s
                      where s.tenant_id = p.tenant_id and s.dict_code = p.dict_code and s.snapshot_id = p.snapshot_id
                        and s.status = 'PENDING'))::integer,
           e.id, e.published_at, e.is_given_up, e.last_error
      from pending p
      left join message m on m.key = convert_to(p.tenant_id || ':' || p.dict_code, 'UTF8') and m.event_id = p.event_id::text
      left join waiting w on w.tenant_id = p.tenant_id and w.event_id = p.event_id
      left join ended e on e.tenant_id = p.tenant_id and e.event_id = p.event_id
$$;

-- One step of the auditor: the updates older than `after_ms` that have no carrier in this database. Returns no rows while another process
-- has the turn, which lasts `pause_ms`. Once a day a round begins with the oldest row: a transaction that stayed open for longer
-- than `after_ms` may have committed an update behind the position.
create function refdata.audit_updates(of_topic text, of_group text, after_ms bigint, pause_ms bigint)
returns table (tenant_id text, event_id uuid, dict_code text, snapshot_id uuid, created_at timestamptz, carriers bigint,
               outbox_id bigint, published_at timestamptz, is_given_up boolean, last_error text)
language plpgsql as $$
#variable_conflict use_column
declare
    page_rows constant integer := 10000;
    until     constant timestamptz := clock_timestamp() - after_ms * interval '1 ms';
    place     refdata.audit;
    page      record;
    lost      boolean := false;
begin
    select * into place from refdata.audit
     where due_at <= clock_timestamp() or due_at > clock_timestamp() + pause_ms * interval '1 ms' -- the clock was set back
       for update skip locked;
    if not found then
        return;
    end if;
    if place.whole_at < clock_timestamp() - interval '1 day' or place.position > clock_timestamp() then
        place.position := '-infinity';
        place.oldest := null;
        place.whole_at := clock_timestamp();
    end if;
    for pages in 1 .. 20 loop
        select count(*) as rows, max(u.created_at) as last, min(u.created_at) filter (where u.status = 'PENDING') as pending
          into page
          from (select r.created_at, r.status from refdata.update_request r
                 where r.created_at >= place.position and r.created_at < until
                 order by r.created_at limit page_rows) u;
        if page.pending is not null then
            place.oldest := least(place.oldest, page.pending);
            return query
            select u.* from refdata.undecided(of_topic, of_group, page.pending, page.last) u where u.carriers = 0;
            lost := found;
        end if;
        if page.rows < page_rows then -- the round ends; what it left undecided is looked at again
            place.position := coalesce(place.oldest, page.last, place.position);
            place.oldest := null;
            exit;
        end if;
        place.position := greatest(page.last, place.position + interval '1 microsecond');
        exit when lost;
    end loop;
    update refdata.audit set due_at = clock_timestamp() + pause_ms * interval '1 ms', position = place.position,
                             oldest = place.oldest, whole_at = place.whole_at;
end
$$;

-- Decides updates that nothing carries: FAILED. processed_event is written first, as apply does: a transaction that applies one of
-- them after all either has committed before the second statement looks, or finds the event processed. Returns those it decided.
create function refdata.fail_updates(tenants text[], event_ids uuid[], of_code text, reasons text[])
returns table (tenant_id text, event_id uuid, dict_code text, reason text)
language plpgsql as $$
#variable_conflict use_column
begin
    insert into refdata.processed_event (tenant_id, event_id, source)
    select t, e, 'AUDIT' from unnest(tenants, event_ids) as u (t, e) order by t collate "C", e
        on conflict do nothing;
    return query
    update refdata.update_request r
       set status = 'FAILED', error_code = of_code, error_message = u.why, updated_at = clock_timestamp()
      from unnest(tenants, event_ids, reasons) as u (t, e, why)
     where r.tenant_id = u.t and r.event_id = u.e and r.status = 'PENDING'
       and not exists (select from refdata.snapshot s
                        where s.tenant_id = r.tenant_id and s.dict_code = r.dict_code and s.snapshot_id = r.snapshot_id
                          and s.status = 'PENDING')
    returning r.tenant_id, r.event_id, r.dict_code, r.error_message;
end
$$;
