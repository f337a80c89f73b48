-- Which dictionaries are hydrated, and the changes of their items that hydration still has to publish (H4).
--
-- A source that answers for an item first sets `hydrated_until`, under the row's lock. Apply reads it with the lock that it takes
-- anyway: an update that is committed after the answer was read sees the mark, and one that was committed before is in the answer.
-- An update of a dictionary without the mark writes nothing for hydration.
alter table refdata.dictionary_meta add column hydrated_until timestamptz;

-- One row for each update of a hydrated dictionary, deleted when its changes are published. `keys` null: perhaps all.
create table refdata.item_change (
    id            bigserial   primary key,
    tenant_id     text        not null,
    dict_code     text        not null,
    keys          text[],
    created_at    timestamptz not null default clock_timestamp(),
    claimed_until timestamptz -- a process publishes it; after that moment another one may
);
