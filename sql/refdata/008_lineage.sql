-- Lineage: a version number alone does not name a content. After a failover or a restore that lost the last versions, the
-- same number is reached again with other content. So every version also records which event made it, and readers
-- compare both.

-- All zeroes belong to version 0, which no event made.
alter table refdata.dictionary_meta
    add column last_event_id uuid not null default '00000000-0000-0000-0000-000000000000';

-- The event of the version before this one: a delta is applied only to the content it was made for. Null = not known.
alter table refdata.outbox_event add column previous_event_id uuid;

update refdata.dictionary_meta m
   set last_event_id = coalesce((select o.event_id from refdata.outbox_event o
                                  where o.tenant_id = m.tenant_id and o.dict_code = m.dict_code and o.version = m.version),
                                pg_catalog.gen_random_uuid())
 where m.version <> 0;

-- A version set by plain SQL has no event: it gets a random one. freshet names its event itself, so the conditions are
-- false and no function is called.
create function refdata.give_version_an_event() returns trigger
language plpgsql as $$
begin
    new.last_event_id := pg_catalog.gen_random_uuid();
    return new;
end
$$;

create trigger dictionary_meta_inserted before insert on refdata.dictionary_meta for each row
    when (new.version <> 0 and new.last_event_id = '00000000-0000-0000-0000-000000000000')
    execute function refdata.give_version_an_event();
create trigger dictionary_meta_updated before update on refdata.dictionary_meta for each row
    when (new.version <> old.version and new.last_event_id = old.last_event_id)
    execute function refdata.give_version_an_event();
