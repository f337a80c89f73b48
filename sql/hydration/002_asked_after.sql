-- An answer to a question that was asked after everything known of its entity had arrived is newer than all of it, whatever its version:
-- the owner looked after it had published that. If its version is lower, the owner's history has lost its tail (a failover, a
-- restore), and what is known is of commits that do not exist any more. Before, such an answer was ignored for a minute.
--
-- asked_at: when the question began that the row answers; null: it was a change. Processes compare it with what they hold in memory.
alter table hydration.copies add column asked_at timestamptz;
alter table hydration.absences add column asked_at timestamptz;

-- When the question of an answer began; a question that was asked again counts from its first time.
create function hydration.asked_at(e hydration.heard) returns timestamptz
language plpgsql
as $$
begin
    return (select min(f.begun_at)
              from hydration.flights f
             where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
               and e.correlation_id > '' and e.correlation_id = any (f.correlation_ids));
end $$;

create function hydration.is_asked_after_all(e hydration.heard) returns boolean
language plpgsql
as $$
declare
    v_asked timestamptz := hydration.asked_at(e);
    v_heard timestamptz;
begin
    select max(h.heard_at) into v_heard
      from (select c.heard_at from hydration.copies c
             where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id
            union all
            select a.heard_at from hydration.absences a
             where a.tenant_id = e.tenant_id and a.entity_type = e.entity_type and a.entity_id = e.entity_id
            union all
            select f.heard_at from hydration.flights f
             where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id) h;
    return coalesce(v_asked > v_heard, false);
end $$;

-- What was known of it is of a history that was lost.
create function hydration.forget(e hydration.heard) returns void
language plpgsql
as $$
begin
    delete from hydration.copies c
     where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id;
    delete from hydration.absences a
     where a.tenant_id = e.tenant_id and a.entity_type = e.entity_type and a.entity_id = e.entity_id;
    update hydration.flights f set heard_updated = null, heard_gone = null
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
       and (f.heard_updated is not null or f.heard_gone is not null);
end $$;

-- ---- as in 001, with asked_at ----

create or replace function hydration.put_copy(e hydration.heard, p_mode integer, p_fields text[], p_ttl interval, p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_old    hydration.copies;
    v_mode   integer := p_mode;
    v_fields text[] := p_fields;
    v_data   text := e.data;
begin
    select c.* into v_old from hydration.copies c
     where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id and c.subject = e.subject
       for update;
    if not found and p_ttl is null then
        return; -- nobody asked for it
    elsif v_old.version = 0 and e.version = 0 and p_mode = 0 and v_old.until > p_now then
        return; -- that it is there is known, and of what it is nothing was said
    elsif v_old.version = e.version and e.version > 0 then
        if hydration.includes(v_old.mode, v_old.fields, p_mode, p_fields) then
            v_mode := v_old.mode;
            v_fields := v_old.fields;
            v_data := v_old.data;
        elsif not hydration.includes(p_mode, p_fields, v_old.mode, v_old.fields) then
            begin
                v_data := hydration.merged(v_old.data, e.data);
                v_fields := array(select f from pg_catalog.unnest(v_old.fields || p_fields) f group by f order by f collate "C");
            exception when data_exception then -- a member's name that PostgreSQL cannot hold
                v_data := null;
            end;
            if v_data is null or pg_catalog.octet_length(v_data) > 1048576 or pg_catalog.cardinality(v_fields) > 256 then
                v_data := e.data; -- the later one alone: no copy is larger than an event
                v_fields := p_fields;
            end if;
        end if;
    end if;
    insert into hydration.copies as c (tenant_id, entity_type, entity_id, subject, version, mode, fields, source_module, data,
                                       heard_at, until, asked_at)
    values (e.tenant_id, e.entity_type, e.entity_id, e.subject, e.version, v_mode, v_fields, e.source_module, v_data,
            p_now, p_now + coalesce(p_ttl, v_old.until - v_old.heard_at), hydration.asked_at(e))
    on conflict (tenant_id, entity_type, entity_id, subject) do update
       set version = excluded.version, mode = excluded.mode, fields = excluded.fields, source_module = excluded.source_module,
           data = excluded.data, heard_at = excluded.heard_at, until = excluded.until, asked_at = excluded.asked_at;
end $$;

create or replace function hydration.take_not_found(e hydration.heard, p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_flight record;
begin
    if e.is_private then
        perform hydration.part_flights(e);
    end if;
    select f.negative_ttl_ms * interval '1 ms' as ttl, f.window_until into v_flight
      from hydration.flights f
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id and f.window_until > p_now
       and (not e.is_private or f.subject = e.subject)
       and (e.correlation_id = any (f.correlation_ids) or e.correlation_id = '' or e.version > 0)
     order by f.subject limit 1;
    if not found and e.version = 0 and e.correlation_id > '' then
        return;
    end if;
    update hydration.flights f
       set heard_gone = greatest(f.heard_gone, e.version), heard_at = p_now, answered = true
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
       and (not e.is_private or f.subject = e.subject);
    delete from hydration.copies c
     where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id
       and (not e.is_private or c.subject = any (array['', e.subject])) and (c.version < e.version or c.until <= p_now);
    delete from hydration.absences a
     where a.tenant_id = e.tenant_id and a.entity_type = e.entity_type and a.entity_id = e.entity_id
       and a.subject <> e.subject and not e.is_private;
    if v_flight.ttl is not null and (e.subject > '' or not e.is_private) then
        insert into hydration.absences (tenant_id, entity_type, entity_id, subject, version, reason, source_module, heard_at, until,
                                        kept_until, asked_at)
        values (e.tenant_id, e.entity_type, e.entity_id, e.subject, e.version, case e.kind when 'absent' then 0 else 1 end,
                e.source_module, p_now, p_now + v_flight.ttl, greatest(p_now + v_flight.ttl, v_flight.window_until),
                hydration.asked_at(e))
        on conflict (tenant_id, entity_type, entity_id, subject) do update
           set version = excluded.version, reason = excluded.reason, source_module = excluded.source_module,
               heard_at = excluded.heard_at, until = excluded.until, kept_until = excluded.kept_until,
               asked_at = excluded.asked_at;
    end if;
end $$;

-- As in 001, with is_asked_after_all().
create or replace function hydration.write(p_tenant_ids text[], p_entity_types text[], p_entity_ids text[], p_subjects text[],
                                p_kinds text[], p_private text[], p_versions text[], p_modes text[], p_fields text[],
                                p_keys text[], p_correlation_ids text[], p_source_modules text[], p_datas text[]) returns void
language plpgsql
as $$
declare
    e     hydration.heard;
    v_now timestamptz;
begin
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    for e in
        select u.tenant_id, u.entity_type, u.entity_id, u.subject, u.kind, u.is_private::boolean, u.version::bigint,
               u.mode::integer, u.fields::text[], u.keys::text[], u.correlation_id, u.source_module, u.data
          from unnest(p_tenant_ids, p_entity_types, p_entity_ids, p_subjects, p_kinds, p_private, p_versions, p_modes, p_fields,
                      p_keys, p_correlation_ids, p_source_modules, p_datas) with ordinality
               as u (tenant_id, entity_type, entity_id, subject, kind, is_private, version, mode, fields, keys, correlation_id,
                     source_module, data, place)
         order by u.tenant_id collate "C", u.entity_type collate "C", u.entity_id collate "C", u.place
    loop
        perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(
            pg_catalog.concat_ws(E'\x1f', 'hydration', e.tenant_id, e.entity_type, e.entity_id), 0));
        -- Later than every question so far, also where the clock was set back.
        select greatest(pg_catalog.clock_timestamp(), max(l.begun_at)) into v_now
          from (select f.begun_at from hydration.flights f
                 where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
                 order by f.subject for update) l;
        if hydration.is_stale(e, v_now) then
            if not hydration.is_asked_after_all(e) then
                continue;
            end if;
            perform hydration.forget(e);
        end if;
        if e.kind = 'updated' then
            perform hydration.take_updated(e, v_now);
        else
            perform hydration.take_not_found(e, v_now);
        end if;
    end loop;
end $$;
