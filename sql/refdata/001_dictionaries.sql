-- Versions and the built-in table (seed 000 §9). The version is the only truth of the read barrier: whoever changes a
-- dictionary's data raises it in the same transaction.
create schema if not exists refdata;

create table refdata.dictionary_meta (
    tenant_id            text        not null,
    dict_code            text        not null,
    version              bigint      not null,
    last_source_revision bigint,
    updated_at           timestamptz not null default now(),
    primary key (tenant_id, dict_code)
);

create table refdata.dictionary_item (
    tenant_id  text        not null,
    dict_code  text        not null,
    item_key   text        not null collate "C",
    payload    jsonb       not null,
    deleted    boolean     not null default false,
    updated_at timestamptz not null default now(),
    primary key (tenant_id, dict_code, item_key)
);
