-- Idempotency-Key (I1–I7): the steps around a module's effect, in the effect's own transaction. The stored answers are in
-- the module's table (src/idempotency/idempotency.h has its columns); these functions know none of them, so that
-- the statements that do are plain ones, planned once per connection.
--
--     begin; lock; look; effect and answer; commit                           (one round trip)
--
-- There is no row for "being processed": the lock is it, and it goes with its connection. SQLSTATEs of class FR end the
-- pipeline before the effect. They are answers, not failures:
--     FR001  somebody is at it          FR002  was answered before: replay          FR003  came with another body

-- The lock of one (scope, key). Without a wait it is tried, and looking goes on without it: who has it may be at the effect,
-- or only reading what is stored. With a wait it is waited for, and past that is 55P03.
create function platform.idempotency_lock(lock_key bigint, wait_ms integer) returns void
language plpgsql as $$
declare
    usual text;
begin
    if pg_catalog.pg_try_advisory_xact_lock(lock_key) then
        return;
    end if;
    if wait_ms <= 0 then
        perform pg_catalog.set_config('freshet.key_is_busy', 'yes', true);
        return;
    end if;
    usual := pg_catalog.current_setting('lock_timeout');
    perform pg_catalog.set_config('lock_timeout', wait_ms::text, true);
    perform pg_catalog.pg_advisory_xact_lock(lock_key);
    perform pg_catalog.set_config('lock_timeout', usual, true);
end
$$;

-- What looking found: is a stored answer that has not expired that of the same body? NULL: there is none. Returns only where
-- the effect is the caller's to have.
create function platform.idempotency_found(same_body boolean) returns void
language plpgsql as $$
begin
    if same_body then
        raise exception using errcode = 'FR002', message = 'this key was answered before';
    elsif not same_body then
        raise exception using errcode = 'FR003', message = 'this key came with another body';
    elsif pg_catalog.current_setting('freshet.key_is_busy', true) = 'yes' then
        raise exception using errcode = 'FR001', message = 'a request with this key is being processed';
    end if;
end
$$;

-- May a row that is in the way be overwritten? Only an expired one: under the lock, and after looking, there is no other.
create function platform.idempotency_overwrite(has_expired boolean) returns boolean
language plpgsql as $$
begin
    if has_expired then
        return true;
    end if;
    raise exception using errcode = 'internal_error', message = 'a stored answer appeared although its key was locked';
end
$$;
