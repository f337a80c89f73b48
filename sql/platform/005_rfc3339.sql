-- A moment as every answer and event shows it: RFC 3339 in UTC, to the microsecond, whatever the session's time zone.
create function platform.rfc3339(p_at timestamptz) returns text
language sql stable strict parallel safe
as $$ select pg_catalog.to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;
