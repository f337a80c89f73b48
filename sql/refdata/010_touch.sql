-- For those who change a dictionary's data by SQL: raises the version in the caller's transaction.

-- Creates the row of dictionary_meta when it is missing. Returns the new version.
create function refdata.touch(of_tenant text, of_dict text) returns bigint
language plpgsql as $$
declare
    raised bigint;
begin
    if of_tenant !~ '^[A-Za-z0-9._-]{1,64}$' is not false or of_dict !~ '^[A-Za-z0-9._-]{1,64}$' is not false then
        raise exception 'refdata.touch: tenant and dictionary are 1 to 64 of A-Z a-z 0-9 . _ -'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into refdata.dictionary_meta as m (tenant_id, dict_code, version, updated_at)
    values (of_tenant, of_dict, 1, clock_timestamp())
    on conflict (tenant_id, dict_code) do update set version = m.version + 1, updated_at = excluded.updated_at
    returning m.version into raised;
    return raised;
end
$$;

-- A statement trigger's function: touch_changed(dictionary, tenant column) touches every tenant whose rows were changed, and
-- needs the changed rows as old_rows and new_rows. touch_changed(dictionary), and any TRUNCATE, touches every tenant that has
-- a version of the dictionary. Tenants are taken in one order, so that two statements do not wait for each other.
create function refdata.touch_changed() returns trigger
language plpgsql as $$
declare
    changed text;
begin
    if tg_nargs not in (1, 2) then
        raise exception 'refdata.touch_changed takes a dictionary and the name of a tenant column';
    end if;
    if tg_nargs = 1 or tg_op = 'TRUNCATE' then
        changed := 'select tenant_id as t from refdata.dictionary_meta where dict_code = $1';
    else
        changed := case tg_op
            when 'INSERT' then format('select %1$I::text as t from new_rows', tg_argv[1])
            when 'DELETE' then format('select %1$I::text as t from old_rows', tg_argv[1])
            else format('select %1$I::text as t from new_rows union select %1$I::text from old_rows', tg_argv[1])
        end;
    end if;
    execute format('select refdata.touch(t, $1) from (select distinct t collate "C" as t from (%s) c where t is not null'
                   ' order by 1) as tenants', changed) using tg_argv[0];
    return null;
end
$$;
