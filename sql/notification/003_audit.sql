-- The auditor of events: finds published events of entitlements that did not become a notification and that nothing carries any more,
-- and has them published again. Their rows are in entitlement.outbox_events until its retention, if that module keeps its tables here.
--
-- Where it stands, one row; whichever process moves due_at has the turn.
create table notification.audit (
    is_only   boolean     primary key default true check (is_only),
    due_at    timestamptz not null default '-infinity',
    position  timestamptz not null default '-infinity', -- published_at: older events have been looked at in this round
    oldest    timestamptz,                              -- published_at of the first that this round has left open
    whole_at  timestamptz not null default '-infinity'  -- when a round last began with the oldest row
);
insert into notification.audit default values;

-- Events published from `since` to `until` that have no row in processed_events and are no dead letter, and whether they are lost.
-- Of events created before `kept` nothing is known, whenever they were published: retention may have deleted their rows.
--
-- Embedded bus (`of_topic` is not null): a message that the group has not handled, or a dead letter that is not stored yet, carries
-- the event; without either it is lost. A group that has never handled anything has no process: nothing is lost to it.
-- NATS: only the engine knows its messages. But a stream is handled in order: an event is lost when another one that was created after this
-- one was published has been handled, `redelivery` has passed since then, and this one has not.
create function notification.unhandled(of_topic text, of_group text, since timestamptz, until timestamptz, kept timestamptz,
                                       redelivery interval)
returns table (tenant_id text, event_id uuid, aggregate_key text, published_at timestamptz, is_lost boolean)
language plpgsql stable as $$
#variable_conflict use_column
declare
    handled_until timestamptz; -- by NATS's order: events published before are handled or lost
begin
    if to_regclass('entitlement.outbox_events') is null then
        return;
    end if;
    if of_topic is not null and not exists (
        select from platform.bus_cursor c where c.group_name = of_group and c.topic = of_topic and c.position > 0) then
        return;
    end if;
    if of_topic is null then
        select max(e.created_at) into handled_until
          from (select p.tenant_id, p.event_id from notification.processed_events p
                 where p.processed_at < clock_timestamp() - redelivery order by p.processed_at desc limit 1000) p
          join entitlement.outbox_events e on e.event_id = p.event_id and e.tenant_id = p.tenant_id;
    end if;
    return query
    with unhandled as materialized (
        select e.tenant_id, e.event_id, e.aggregate_key, e.published_at from entitlement.outbox_events e
         where e.status = 'PUBLISHED' and e.published_at >= since and e.published_at <= until and e.created_at >= kept
           and e.last_error is null -- discarded by an operator
           and not exists (select from notification.processed_events p
                            where p.tenant_id = e.tenant_id and p.event_id = e.event_id)
           and not exists (select from notification.notification_nats_dlq d where d.event_id = e.event_id::text)),
    message as materialized (
        select m.headers[array_position(m.headers, 'event-id') + 1] as event_id
          from platform.bus_message m
          left join platform.bus_cursor c on c.group_name = of_group and c.topic = m.topic and c.partition = m.partition
         where exists (select from unhandled)
           and (m.topic = of_topic and m.message_offset >= coalesce(c.position, 0) or m.topic = of_topic || '.dlq'))
    select u.tenant_id, u.event_id, u.aggregate_key, u.published_at,
           case when of_topic is null then coalesce(u.published_at < handled_until, false)
                else not exists (select from message m where m.event_id = u.event_id::text) end
      from unhandled u;
end
$$;

-- One step of the auditor: events published longer than `after_ms` ago that are lost are published again, and of those that may still be in
-- NATS the `probes` oldest: what nothing newer has followed can only be found out by that. A redelivered event has no effect. Returns
-- the events; no rows while another process has the turn, which lasts `pause_ms`.
create function notification.audit_events(of_topic text, of_group text, after_ms bigint, pause_ms bigint, redelivery_ms bigint,
                                          keep_ms bigint, probes integer)
returns table (tenant_id text, event_id uuid, aggregate_key text, is_lost boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    page_rows  constant integer := 10000;
    until      constant timestamptz := clock_timestamp() - after_ms * interval '1 ms';
    kept       constant timestamptz := clock_timestamp() - keep_ms * interval '1 ms'; -- as long as processed_events
    redelivery constant interval := redelivery_ms * interval '1 ms';
    place      notification.audit;
    page       record;
    open_since timestamptz;
begin
    select * into place from notification.audit
     where due_at <= clock_timestamp() or due_at > clock_timestamp() + pause_ms * interval '1 ms' -- the clock was set back
       for update skip locked;
    if not found or to_regclass('entitlement.outbox_events') is null then
        return;
    end if;
    if place.whole_at < clock_timestamp() - interval '1 day' or place.position > clock_timestamp() then
        place.position := '-infinity';
        place.oldest := null;
        place.whole_at := clock_timestamp();
    end if;
    place.position := greatest(place.position, kept);
    for pages in 1 .. 20 loop
        select count(*) as rows, max(u.published_at) as last into page
          from (select e.published_at from entitlement.outbox_events e
                 where e.status = 'PUBLISHED' and e.published_at >= place.position and e.published_at < until
                 order by e.published_at limit page_rows) u;
        exit when page.rows = 0;
        select min(u.published_at) into open_since
          from notification.unhandled(of_topic, of_group, place.position, page.last, kept, redelivery) u;
        if open_since is not null then
            place.oldest := least(place.oldest, open_since);
            return query
            update entitlement.outbox_events e
               set status = 'PENDING', published_at = null, attempt_count = 0, claim_count = 0, next_retry_at = null,
                   lease_until = null, locked_by = null, locked_at = null, claim_id = null
              from (select u.*, row_number() over (partition by u.is_lost order by u.published_at) as number
                      from notification.unhandled(of_topic, of_group, place.position, page.last, kept, redelivery) u) o
             where e.event_id = o.event_id and e.status = 'PUBLISHED' and (o.is_lost or of_topic is null and o.number <= probes)
            returning e.tenant_id, e.event_id, e.aggregate_key, o.is_lost;
        end if;
        exit when page.rows < page_rows;
        place.position := greatest(page.last, place.position + interval '1 microsecond');
    end loop;
    if page.rows < page_rows then -- the round ends; what it left open is looked at again
        place.position := coalesce(place.oldest, page.last, place.position);
        place.oldest := null;
    end if;
    update notification.audit set due_at = clock_timestamp() + pause_ms * interval '1 ms', position = place.position,
                                  oldest = place.oldest, whole_at = place.whole_at;
end
$$;
