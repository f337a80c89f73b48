-- The demo's own tables, in two different shapes, as a team might have them already, and demo rows of tenant "demo".
-- Safe to run again: rows that are there stay as they are. `./dev run` runs it after the schema is migrated.
begin;

create table if not exists public.mdm_country (
    tenant_id        text    not null,
    code             text    not null,
    name             text    not null,
    updated_at_epoch bigint  not null,
    deleted          boolean not null default false,
    primary key (tenant_id, code)
);

create table if not exists public.mdm_currency (
    tenant_id text    not null,
    ccy       text    not null,
    name      text    not null,
    digits    int     not null,
    version   bigint  not null,
    deleted   boolean not null default false,
    primary key (tenant_id, ccy)
);

-- Whole replacement: what the snapshot lacks is deleted, the rest written, all in the caller's transaction.
create or replace function public.refdata_replace_country_snapshot(p_tenant text, p_snapshot jsonb) returns void
language sql as $$
    update public.mdm_country c
       set deleted = true, updated_at_epoch = (extract(epoch from now()) * 1000)::bigint
     where c.tenant_id = p_tenant
       and not c.deleted
       and not exists (select 1 from jsonb_array_elements(p_snapshot) s where s ->> 'key' = c.code);
    insert into public.mdm_country (tenant_id, code, name, updated_at_epoch, deleted)
    select p_tenant, s ->> 'key', s -> 'payload' ->> 'name', (extract(epoch from now()) * 1000)::bigint, false
      from jsonb_array_elements(p_snapshot) s
    on conflict (tenant_id, code) do update
       set name = excluded.name, updated_at_epoch = excluded.updated_at_epoch, deleted = false;
$$;

create or replace function public.refdata_replace_currency_snapshot(p_tenant text, p_snapshot jsonb) returns void
language sql as $$
    update public.mdm_currency c
       set deleted = true, version = c.version + 1
     where c.tenant_id = p_tenant
       and not c.deleted
       and not exists (select 1 from jsonb_array_elements(p_snapshot) s where s ->> 'key' = c.ccy);
    insert into public.mdm_currency (tenant_id, ccy, name, digits, version, deleted)
    select p_tenant, s ->> 'key', s -> 'payload' ->> 'name', (s -> 'payload' ->> 'digits')::int, 1, false
      from jsonb_array_elements(p_snapshot) s
    on conflict (tenant_id, ccy) do update
       set name = excluded.name, digits = excluded.digits, version = mdm_currency.version + 1, deleted = false;
$$;

insert into public.mdm_country (tenant_id, code, name, updated_at_epoch) values
    ('demo', 'BR', 'Brazil', 1767225600000), ('demo', 'CA', 'Canada', 1767225600000),
    ('demo', 'CH', 'Switzerland', 1767225600000), ('demo', 'DE', 'Germany', 1767225600000),
    ('demo', 'EE', 'Estonia', 1767225600000), ('demo', 'FR', 'France', 1767225600000),
    ('demo', 'IN', 'India', 1767225600000), ('demo', 'JP', 'Japan', 1767225600000),
    ('demo', 'KE', 'Kenya', 1767225600000), ('demo', 'RU', 'Russia', 1767225600000),
    ('demo', 'UA', 'Ukraine', 1767225600000), ('demo', 'US', 'United States', 1767225600000)
on conflict do nothing;

insert into public.mdm_currency (tenant_id, ccy, name, digits, version) values
    ('demo', 'BHD', 'Bahraini dinar', 3, 1), ('demo', 'CHF', 'Swiss franc', 2, 1), ('demo', 'EUR', 'Euro', 2, 1),
    ('demo', 'GBP', 'Pound sterling', 2, 1), ('demo', 'JPY', 'Yen', 0, 1), ('demo', 'USD', 'US dollar', 2, 1)
on conflict do nothing;

insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload) values
    ('demo', 'FEATURE', 'dark-mode', '{"enabled": true, "since": "2026-01-01"}'),
    ('demo', 'FEATURE', 'new-checkout', '{"enabled": false, "percent": 10}')
on conflict do nothing;

insert into refdata.dictionary_meta (tenant_id, dict_code, version, updated_at) values
    ('demo', 'COUNTRY', 1, now()), ('demo', 'CURRENCY', 1, now()), ('demo', 'FEATURE', 1, now())
on conflict do nothing;

commit;
