-- Hydration: what all processes together know of entities that are others' (seed 001, H2–H4). Every row is a tenant's; names are
-- compared bytewise. `subject` is whose an answer is: '' everybody's, else one caller's alone.
--
-- Copies and absences are followers: an event older than what is known changes nothing, and what nobody told of ages out. Time is
-- the database's. Who writes an entity's rows holds its advisory lock, then its flights, then the rest; who claims holds one
-- flight, and looks again behind its lock.
create schema if not exists hydration;

-- Copies. mode: 0 existence, 1 partial (these fields, sorted), 2 full. `data` is the owner's bytes: jsonb would write 1.50 its own
-- way. Past `until` it serves nobody by itself any more; kept for a while, since a change told of makes it good again.
create table hydration.copies (
    tenant_id     text        not null collate "C",
    entity_type   text        not null collate "C",
    entity_id     text        not null collate "C",
    subject       text        not null collate "C",
    version       bigint      not null, -- 0: its owner has none
    mode          smallint    not null,
    fields        text[]      not null,
    source_module text        not null,
    data          text        not null,
    heard_at      timestamptz not null,
    until         timestamptz not null,
    primary key (tenant_id, entity_type, entity_id, subject)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
create index copies_until on hydration.copies (until);

-- The negative cache. `until` is when it stops to serve; `kept_until` when it may go, not before the window of the flight that
-- brought it, behind whose last question it is all there is to say. Unlogged: after a crash the owner is asked again.
create unlogged table hydration.absences (
    tenant_id     text        not null collate "C",
    entity_type   text        not null collate "C",
    entity_id     text        not null collate "C",
    subject       text        not null collate "C",
    version       bigint      not null, -- 0: nobody ever saw it
    reason        smallint    not null, -- 0 deleted_or_never_existed, 1 inaccessible
    source_module text        not null,
    heard_at      timestamptz not null,
    until         timestamptz not null,
    kept_until    timestamptz not null,
    primary key (tenant_id, entity_type, entity_id, subject)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
create index absences_kept_until on hydration.absences (kept_until);

-- Questions under way (request collapse): one row for everybody, or one for each caller once an answer showed that the entity is
-- a matter of the caller (by_caller, on everybody's row). It stays behind its answer: it knows the versions heard of, so that a
-- late not-found cannot hide what no copy is kept of. Unlogged: a crash ends every wait anyway.
create unlogged table hydration.flights (
    tenant_id       text        not null collate "C",
    entity_type     text        not null collate "C",
    entity_id       text        not null collate "C",
    subject         text        not null collate "C",
    begun_at        timestamptz not null,
    window_until    timestamptz not null,
    asked           integer     not null, -- entity/unknowns in this window, retries included
    mode            smallint    not null, -- what was asked for first
    fields          text[]      not null,
    full_from       integer,              -- from this one of correlation_ids on all was asked for
    correlation_ids text[]      not null,
    answered        boolean     not null default false, -- what was asked for last
    by_caller       boolean     not null default false,
    heard_updated   bigint, -- the highest versions that events told of, and when the last did
    heard_gone      bigint,
    heard_at        timestamptz,
    negative_ttl_ms bigint      not null, -- of the consumer that asked
    copy_ttl_ms     bigint      not null,
    primary key (tenant_id, entity_type, entity_id, subject)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
create index flights_window_until on hydration.flights (window_until);

-- Does so much of an entity include so much?
create function hydration.includes(p_wide_mode integer, p_wide_fields text[], p_mode integer, p_fields text[]) returns boolean
language sql immutable parallel safe
as $$ select p_mode = 0 or p_wide_mode = 2 or (p_wide_mode = 1 and p_mode = 1 and p_fields operator(pg_catalog.<@) p_wide_fields) $$;

-- ---- asking ----

create type hydration.claimed as (
    verdict       text, -- copy, absent, ask, join
    subject       text,
    data          text, -- of ask and join: a copy too old or too narrow, if there is one
    source_module text,
    mode          integer,
    fields        text[],
    reason        integer,
    version       bigint,
    ttl_ms        bigint
);

create function hydration.milliseconds(p_interval interval) returns bigint
language sql immutable parallel safe
as $$ select pg_catalog.ceil(extract(epoch from p_interval) * 1000)::bigint $$;

-- What is known: a copy or an absence that is good still, or was heard of since then. Verdict null: neither.
create function hydration.look(p_tenant_id text, p_entity_type text, p_entity_id text, p_subject text, p_mode integer,
                               p_fields text[], p_since timestamptz) returns hydration.claimed
language plpgsql
as $$
declare
    v_now    timestamptz := pg_catalog.clock_timestamp();
    v_found  hydration.claimed;
    v_copy   record;
    v_absent record;
begin
    select c.*, hydration.includes(c.mode, c.fields, p_mode, p_fields) and (c.until > v_now or c.heard_at >= p_since) as serves
      into v_copy
      from hydration.copies c
     where c.tenant_id = p_tenant_id and c.entity_type = p_entity_type and c.entity_id = p_entity_id
       and c.subject = any (array['', p_subject])
     order by serves desc, c.version desc limit 1;
    if found then
        v_found := row(case when v_copy.serves then 'copy' end, v_copy.subject, v_copy.data, v_copy.source_module, v_copy.mode,
                       v_copy.fields, null, v_copy.version, hydration.milliseconds(v_copy.until - v_now));
    end if;
    if v_found.verdict is not null then
        return v_found;
    end if;
    select a.* into v_absent
      from hydration.absences a
     where a.tenant_id = p_tenant_id and a.entity_type = p_entity_type and a.entity_id = p_entity_id
       and a.subject = any (array['', p_subject]) and (a.until > v_now or a.heard_at >= p_since)
     order by a.version desc limit 1;
    if found then
        v_found := row('absent', v_absent.subject, null, v_absent.source_module, null, null, v_absent.reason, v_absent.version,
                       hydration.milliseconds(v_absent.until - v_now));
    end if;
    return v_found;
end $$;

-- Whose flight: everybody's, unless something showed that each caller is answered differently. plpgsql, as everything that is
-- called often: its plans are kept, those of a function in SQL are made anew for every call from outside.
create function hydration.flight_of(p_tenant_id text, p_entity_type text, p_entity_id text, p_subject text) returns text
language plpgsql
as $$
begin
    perform from hydration.flights f
      where f.tenant_id = p_tenant_id and f.entity_type = p_entity_type and f.entity_id = p_entity_id and f.subject = ''
        and f.by_caller;
    if found then
        return p_subject;
    end if;
    perform from hydration.copies c
      where c.tenant_id = p_tenant_id and c.entity_type = p_entity_type and c.entity_id = p_entity_id and c.subject > '' limit 1;
    if found then
        return p_subject;
    end if;
    perform from hydration.absences a
      where a.tenant_id = p_tenant_id and a.entity_type = p_entity_type and a.entity_id = p_entity_id and a.subject > '' limit 1;
    return case when found then p_subject else '' end;
end $$;

-- Looks, and if nothing is known decides who asks the owner: of any number at once one. Without a correlation id it only looks.
create function hydration.claim(p_tenant_id text, p_entity_type text, p_entity_id text, p_subject text, p_mode integer,
                                p_fields text[], p_correlation_id text, p_window_ms bigint, p_max_retries integer,
                                p_negative_ttl_ms bigint, p_copy_ttl_ms bigint) returns hydration.claimed
language plpgsql
as $$
declare
    v_known  hydration.claimed;
    v_flight hydration.flights;
    v_of     text;
    v_now    timestamptz;
    v_wide   boolean;
begin
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    v_known := hydration.look(p_tenant_id, p_entity_type, p_entity_id, p_subject, p_mode, p_fields, null);
    if v_known.verdict is not null then
        return v_known;
    end if;
    v_known.verdict := 'join';
    if p_correlation_id = '' then
        return v_known;
    end if;
    v_of := hydration.flight_of(p_tenant_id, p_entity_type, p_entity_id, p_subject);
    loop
        -- Most who come find it under way and need no lock: an answer that is being written meanwhile reaches them by the bus.
        select f.* into v_flight from hydration.flights f
         where f.tenant_id = p_tenant_id and f.entity_type = p_entity_type and f.entity_id = p_entity_id and f.subject = v_of;
        exit when found;
        v_now := pg_catalog.clock_timestamp();
        insert into hydration.flights (tenant_id, entity_type, entity_id, subject, begun_at, window_until, asked, mode, fields,
                                       correlation_ids, negative_ttl_ms, copy_ttl_ms)
        values (p_tenant_id, p_entity_type, p_entity_id, v_of, v_now, v_now + p_window_ms * interval '1 ms', 1, p_mode, p_fields,
                array[p_correlation_id], p_negative_ttl_ms, p_copy_ttl_ms)
        on conflict (tenant_id, entity_type, entity_id, subject) do nothing;
        if found then
            v_known.verdict := 'ask';
            v_known.mode := p_mode;
            v_known.fields := p_fields;
            v_known.ttl_ms := p_window_ms;
            return v_known;
        end if;
    end loop;
    v_now := pg_catalog.clock_timestamp();
    v_wide := v_flight.full_from is not null or hydration.includes(v_flight.mode, v_flight.fields, p_mode, p_fields);
    if v_flight.window_until > v_now and not v_flight.answered and v_wide then
        v_known.ttl_ms := hydration.milliseconds(v_flight.window_until - v_now);
        return v_known;
    end if;

    select f.* into v_flight from hydration.flights f
     where f.tenant_id = p_tenant_id and f.entity_type = p_entity_type and f.entity_id = p_entity_id and f.subject = v_of
       for update;
    if not found then -- cleaned up in this moment
        return hydration.claim(p_tenant_id, p_entity_type, p_entity_id, p_subject, p_mode, p_fields, p_correlation_id, p_window_ms,
                               p_max_retries, p_negative_ttl_ms, p_copy_ttl_ms);
    end if;
    v_known := hydration.look(p_tenant_id, p_entity_type, p_entity_id, p_subject, p_mode, p_fields, null);
    if v_known.verdict is not null then
        return v_known;
    end if;
    return hydration.claim_again(v_flight, v_known, p_subject, p_mode, p_fields, p_correlation_id, p_window_ms, p_max_retries,
                                 p_negative_ttl_ms, p_copy_ttl_ms);
end $$;

-- The same where there is a flight, locked, and nothing known: a new window; or once more within this one, since something else
-- is needed than was asked for (then all of it, so that whoever comes next can join), or the answer did not last; or nothing,
-- since that has been done too often.
create function hydration.claim_again(p_flight hydration.flights, p_known hydration.claimed, p_subject text, p_mode integer,
                                      p_fields text[], p_correlation_id text, p_window_ms bigint, p_max_retries integer,
                                      p_negative_ttl_ms bigint, p_copy_ttl_ms bigint) returns hydration.claimed
language plpgsql
as $$
declare
    v_now   timestamptz := pg_catalog.clock_timestamp();
    v_wide  boolean := p_flight.full_from is not null or hydration.includes(p_flight.mode, p_flight.fields, p_mode, p_fields);
    v_same  boolean := p_flight.full_from is null and p_flight.mode = p_mode and p_flight.fields = p_fields;
    v_last  hydration.claimed;
begin
    p_known.verdict := 'join';
    p_known.ttl_ms := hydration.milliseconds(p_flight.window_until - v_now);
    if p_flight.window_until <= v_now then
        -- What was heard of outlives the window, but not longer than an event can be late: versions may begin anew. Without a
        -- version it does not: this question comes behind it, and whatever answers that is newer.
        update hydration.flights f
           set begun_at = v_now, window_until = v_now + p_window_ms * interval '1 ms', asked = 1, mode = p_mode,
               fields = p_fields, full_from = null, correlation_ids = array[p_correlation_id], answered = false,
               heard_updated = case when f.heard_at > v_now - interval '60 s' then nullif(f.heard_updated, 0) end,
               heard_gone = case when f.heard_at > v_now - interval '60 s' then f.heard_gone end,
               negative_ttl_ms = p_negative_ttl_ms, copy_ttl_ms = p_copy_ttl_ms
         where f.tenant_id = p_flight.tenant_id and f.entity_type = p_flight.entity_type
           and f.entity_id = p_flight.entity_id and f.subject = p_flight.subject;
        p_known.verdict := 'ask';
        p_known.mode := p_mode;
        p_known.fields := p_fields;
        p_known.ttl_ms := p_window_ms;
    elsif not p_flight.answered and v_wide then
        null;
    elsif p_flight.asked <= p_max_retries then
        update hydration.flights f
           set asked = f.asked + 1, answered = false, correlation_ids = f.correlation_ids || p_correlation_id,
               full_from = case when not v_same
                                then coalesce(f.full_from, pg_catalog.cardinality(f.correlation_ids) + 1) end
         where f.tenant_id = p_flight.tenant_id and f.entity_type = p_flight.entity_type
           and f.entity_id = p_flight.entity_id and f.subject = p_flight.subject;
        p_known.verdict := 'ask';
        p_known.mode := case when v_same then p_mode else 2 end;
        p_known.fields := case when v_same then p_fields else '{}' end;
    elsif p_flight.answered then
        v_last := hydration.look(p_flight.tenant_id, p_flight.entity_type, p_flight.entity_id, p_subject, p_mode, p_fields,
                                 p_flight.begun_at);
        if v_last.verdict is not null then
            v_last.ttl_ms := p_known.ttl_ms;
            return v_last;
        end if;
    end if;
    return p_known;
end $$;

-- May the one that asked under this correlation id ask once more?
create function hydration.retry(p_tenant_id text, p_entity_type text, p_entity_id text, p_subject text, p_correlation_id text,
                                p_max_retries integer) returns boolean
language plpgsql
as $$
begin
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    update hydration.flights f
       set asked = f.asked + 1
     where f.tenant_id = p_tenant_id and f.entity_type = p_entity_type and f.entity_id = p_entity_id
       and f.subject = any (array['', p_subject]) and p_correlation_id = any (f.correlation_ids)
       and f.window_until > pg_catalog.clock_timestamp() and not f.answered and f.asked <= p_max_retries;
    return found;
end $$;

-- ---- hearing ----

-- An event as it was heard. kind: updated, absent, inaccessible. mode null: how much it is was not said; keys: the members of data.
create type hydration.heard as (
    tenant_id      text,
    entity_type    text,
    entity_id      text,
    subject        text, -- of a private one; '' otherwise, and where its owner could not name them
    kind           text,
    is_private     boolean,
    version        bigint,
    mode           integer,
    fields         text[],
    keys           text[],
    correlation_id text,
    source_module  text,
    data           text
);

-- Is it older than what is known? At the same version updated wins over not-found, and else the later one. A not-found that is
-- one caller's is no word about others' copies of the same version, and one without a version none about others at all.
create function hydration.is_stale(e hydration.heard, p_now timestamptz) returns boolean
language plpgsql
as $$
declare
    v_copy bigint; v_own_copy bigint; v_gone bigint;
    v_heard bigint; v_own_heard bigint; v_heard_gone bigint;
begin
    select max(c.version), max(c.version) filter (where c.subject = any (array['', e.subject]))
      into v_copy, v_own_copy
      from hydration.copies c
     where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id and c.until > p_now;
    select max(a.version) into v_gone
      from hydration.absences a
     where a.tenant_id = e.tenant_id and a.entity_type = e.entity_type and a.entity_id = e.entity_id and a.until > p_now;
    select max(f.heard_updated), max(f.heard_gone), max(f.heard_updated) filter (where f.subject = e.subject and e.subject > '')
      into v_heard, v_heard_gone, v_own_heard
      from hydration.flights f
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id;
    if e.kind = 'updated' then
        return coalesce(e.version < greatest(v_copy, v_gone, v_heard, v_heard_gone), false);
    elsif e.is_private then
        return coalesce(e.version <= greatest(v_own_copy, v_own_heard), false)
            or coalesce(e.version > 0 and e.version < greatest(v_copy, v_gone, v_heard, v_heard_gone), false);
    else
        return coalesce(e.version <= greatest(v_copy, v_heard), false)
            or coalesce(e.version < greatest(v_gone, v_heard_gone), false);
    end if;
end $$;

-- A private answer: from now on each caller has a flight of their own, and this one's goes on as what it was asked under.
create function hydration.part_flights(e hydration.heard) returns void
language plpgsql
as $$
begin
    if e.subject > '' then
        insert into hydration.flights (tenant_id, entity_type, entity_id, subject, begun_at, window_until, asked, mode, fields,
                                       full_from, correlation_ids, answered, negative_ttl_ms, copy_ttl_ms)
        select f.tenant_id, f.entity_type, f.entity_id, e.subject, f.begun_at, f.window_until, f.asked, f.mode, f.fields,
               f.full_from, f.correlation_ids, f.answered, f.negative_ttl_ms, f.copy_ttl_ms
          from hydration.flights f
         where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id and f.subject = ''
           and e.correlation_id = any (f.correlation_ids)
        on conflict (tenant_id, entity_type, entity_id, subject) do update -- an earlier window's
           set begun_at = excluded.begun_at, window_until = excluded.window_until, asked = excluded.asked, mode = excluded.mode,
               fields = excluded.fields, full_from = excluded.full_from, correlation_ids = excluded.correlation_ids,
               answered = excluded.answered, negative_ttl_ms = excluded.negative_ttl_ms, copy_ttl_ms = excluded.copy_ttl_ms
         where flights.begun_at < excluded.begun_at;
    end if;
    update hydration.flights f set by_caller = true
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id and f.subject = ''
       and not f.by_caller;
end $$;

-- One object of two, each member once, the second's if both have it; their values as they were written.
create function hydration.merged(p_old text, p_new text) returns text
language sql immutable
as $$
    select '{' || pg_catalog.string_agg(pg_catalog.to_json(m.key)::text || ':' || m.value::text, ',' order by m.key collate "C")
               || '}'
      from (select distinct on (b.key) b.key, b.value
              from (select n.key, n.value, 0 as place from pg_catalog.json_each(p_new::json) n
                    union all
                    select o.key, o.value, 1 from pg_catalog.json_each(p_old::json) o) b
             order by b.key, b.place) m
$$;

-- A copy, laid over the one there is: the same version's together know what both did; another version's takes its place.
create function hydration.put_copy(e hydration.heard, p_mode integer, p_fields text[], p_ttl interval, p_now timestamptz)
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
                                       heard_at, until)
    values (e.tenant_id, e.entity_type, e.entity_id, e.subject, e.version, v_mode, v_fields, e.source_module, v_data,
            p_now, p_now + coalesce(p_ttl, v_old.until - v_old.heard_at))
    on conflict (tenant_id, entity_type, entity_id, subject) do update
       set version = excluded.version, mode = excluded.mode, fields = excluded.fields, source_module = excluded.source_module,
           data = excluded.data, heard_at = excluded.heard_at, until = excluded.until;
end $$;

-- What updated tells: everybody, the one caller it is for, or (private, of nobody) only that all that is known is old.
create function hydration.take_updated(e hydration.heard, p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_mode   integer := e.mode;
    v_fields text[] := e.fields;
    v_ttl    interval;
    v_asked  record;
begin
    if e.is_private then
        perform hydration.part_flights(e);
    end if;
    if v_mode is null then
        select f.mode, f.fields, f.full_from <= pg_catalog.array_position(f.correlation_ids, e.correlation_id) as is_full
          into v_asked
          from hydration.flights f
         where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
           and e.correlation_id = any (f.correlation_ids)
         limit 1;
        if not found then
            v_mode := case when e.keys = '{}' then 0 else 1 end;
            v_fields := e.keys;
        else
            v_mode := case when v_asked.is_full then 2 else v_asked.mode end;
            v_fields := case when v_asked.is_full then '{}' else v_asked.fields end;
        end if;
    end if;
    select f.copy_ttl_ms * interval '1 ms' into v_ttl
      from hydration.flights f
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id and f.window_until > p_now
       and (not e.is_private or f.subject = any (array['', e.subject]))
     order by f.subject limit 1;

    update hydration.flights f
       set heard_updated = greatest(f.heard_updated, e.version), heard_at = p_now, by_caller = e.is_private and f.by_caller,
           answered = f.answered or (e.subject > '' or not e.is_private) and (
               e.correlation_id = f.correlation_ids[pg_catalog.cardinality(f.correlation_ids)]
               or hydration.includes(v_mode, v_fields, case when f.full_from is null then f.mode else 2 end, f.fields))
     where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
       and (not e.is_private or e.subject = '' or f.subject = e.subject);
    delete from hydration.absences a
     where a.tenant_id = e.tenant_id and a.entity_type = e.entity_type and a.entity_id = e.entity_id
       and (not e.is_private or a.subject = any (array['', e.subject]) or a.version < e.version or e.subject = '');
    delete from hydration.copies c
     where c.tenant_id = e.tenant_id and c.entity_type = e.entity_type and c.entity_id = e.entity_id
       and (c.subject <> e.subject or (e.is_private and e.subject = ''))
       and (not e.is_private or c.subject = '' or c.version < e.version or e.version = 0 and e.subject = '');
    if e.subject > '' or not e.is_private then
        perform hydration.put_copy(e, v_mode, v_fields, v_ttl, p_now);
    end if;
end $$;

-- What not-found tells: everybody, or the one caller it is for. Written down only while somebody asks; a late answer to an earlier
-- question that has no version says nothing about now.
create function hydration.take_not_found(e hydration.heard, p_now timestamptz) returns void
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
                                        kept_until)
        values (e.tenant_id, e.entity_type, e.entity_id, e.subject, e.version, case e.kind when 'absent' then 0 else 1 end,
                e.source_module, p_now, p_now + v_flight.ttl, greatest(p_now + v_flight.ttl, v_flight.window_until))
        on conflict (tenant_id, entity_type, entity_id, subject) do update
           set version = excluded.version, reason = excluded.reason, source_module = excluded.source_module,
               heard_at = excluded.heard_at, until = excluded.until, kept_until = excluded.kept_until;
    end if;
end $$;

-- Events in the order they came, in the caller's transaction; heard again they change nothing. Entity by entity in one order, so
-- that two who write the same ones wait for each other and never around a corner.
create function hydration.write(p_tenant_ids text[], p_entity_types text[], p_entity_ids text[], p_subjects text[],
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
        perform from hydration.flights f
          where f.tenant_id = e.tenant_id and f.entity_type = e.entity_type and f.entity_id = e.entity_id
          order by f.subject for update;
        v_now := pg_catalog.clock_timestamp();
        if hydration.is_stale(e, v_now) then
            continue;
        elsif e.kind = 'updated' then
            perform hydration.take_updated(e, v_now);
        else
            perform hydration.take_not_found(e, v_now);
        end if;
    end loop;
end $$;
