"""R8: a snapshot in chunks, in any order, twice, never complete, with deltas in between."""
import contextlib
import random

import pytest

from lib.apply import (COUNTRY, COUNTRY_SQL, CURRENCY, CURRENCY_SQL, REFUSED, applier, chunks, countries, currencies,
                       decided, delta, empty, event_id, handled, items_of, outbox_of, publish, ready, refuse_payloads, snapshot, statuses,
                       version_of)
from lib.refdata import module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

ROLES = ("--roles", "apply")


@pytest.fixture(scope="module")
def applied(module_serve, module_refdata_db):
    module_refdata_db.query(COUNTRY_SQL + CURRENCY_SQL)
    refuse_payloads(module_refdata_db)
    module_serve(module_refdata_db, applier("D", COUNTRY, CURRENCY), args=ROLES)
    ready(module_refdata_db)
    return module_refdata_db


@pytest.fixture
def database(applied):
    empty(applied, "mdm_country, mdm_currency, staging")
    return applied


def staged_rows(database):
    return database.value("select (select count(*) from refdata.snapshot_chunk where keys is not null)"
                          " + (select count(*) from refdata.snapshot_delta)")


@pytest.mark.parametrize("together", [True, False])
def test_nothing_is_published_before_the_last_chunk(database, together):
    """R8: out of order; every event has the snapshot's status and version."""
    publish(database, [delta("D", {"old": 1})])
    handled(database)
    parts = chunks("D", [{"a": 1, "b": 1}, {"b": 2, "c": 1}, {"d": 1}])
    for part in [parts[2], parts[1]]:
        publish(database, [part])
    handled(database)
    assert items_of(database, "D") == {"old": 1} and version_of(database, "D") == 1
    assert statuses(database, parts[1:]) == [("PENDING", None)] * 2
    publish(database, [parts[0]] + ([delta("D", {"e": 1})] if together else []))
    assert decided(database, parts) == [("COMMITTED", 2)] * 3
    handled(database)
    assert items_of(database, "D") == {"a": 1, "b": 2, "c": 1, "d": 1, **({"e": 1} if together else {})}
    assert outbox_of(database, "D")[1] == (2, parts[0]["eventId"], None)
    assert staged_rows(database) == 0


def test_chunks_that_share_an_event(database):
    """R8"""
    parts = chunks("D", [{"a": 1}, {"b": 1}, {"c": 1}], event=event_id())
    publish(database, parts)
    assert decided(database, parts[:1]) == [("COMMITTED", 1)]
    assert items_of(database, "D") == {"a": 1, "b": 1, "c": 1}
    publish(database, parts)
    handled(database)
    assert version_of(database, "D") == 1, "chunks of a snapshot that is decided begin no other one"


def test_a_chunk_that_comes_again(database):
    """R8: the same content has no effect and the snapshot's status; other content is a conflict of its own."""
    parts = chunks("D", [{"a": 1}, {"b": 1}])
    again = {**parts[0], "eventId": event_id()}
    other = {**parts[0], "eventId": event_id(), "items": [{"key": "x", "payload": 1}]}
    total = {**parts[1], "eventId": event_id(), "chunksTotal": 3}
    within = {**parts[0], "items": [{"key": "y", "payload": 1}]}
    publish(database, [parts[0], again, other, total, within])
    assert decided(database, [other, total]) == [("FAILED", "CHUNK_CONFLICT")] * 2
    assert statuses(database, [parts[0], again]) == [("PENDING", None)] * 2
    publish(database, [parts[1]])
    assert decided(database, [*parts, again]) == [("COMMITTED", 1)] * 3
    late = [{**parts[1], "eventId": event_id()}, {**other, "eventId": event_id()}]
    publish(database, late)
    assert decided(database, late) == [("COMMITTED", 1), ("FAILED", "CHUNK_CONFLICT")]
    assert items_of(database, "D") == {"a": 1, "b": 1} and version_of(database, "D") == 1


def test_revisions_of_snapshots_and_of_deltas_in_between(database):
    """R10: a delta that came meanwhile does not make the snapshot it goes on top of stale; another snapshot does."""
    first, second = chunks("D", [{"a": 1}, {"b": 1}], sourceRevision=10)
    after = delta("D", {"a": 2}, sourceRevision=11)
    publish(database, [first, after, second])
    assert decided(database, [first, after, second]) == [("COMMITTED", 2), ("COMMITTED", 1), ("COMMITTED", 2)]
    assert items_of(database, "D") == {"a": 2, "b": 1}
    assert database.value("select last_source_revision from refdata.dictionary_meta") == 11
    stale = chunks("D", [{"c": 1}, {"d": 1}], sourceRevision=10)
    publish(database, stale)
    assert decided(database, stale) == [("FAILED", "STALE_SOURCE_REVISION")] * 2
    slow, newer = chunks("D", [{"e": 1}, {"f": 1}], sourceRevision=12), snapshot("D", {"g": 1}, sourceRevision=13)
    publish(database, [slow[0], newer, slow[1]])
    assert decided(database, [*slow, newer]) == [("FAILED", "STALE_SOURCE_REVISION")] * 2 + [("COMMITTED", 3)]
    assert items_of(database, "D") == {"g": 1} and staged_rows(database) == 0


def test_snapshots_by_templates(database):
    """R15: snapshotReplaceSql gets all chunks at once, snapshotStageSql one by one; deltas in between go on top."""
    country = chunks("COUNTRY", [{"RU": {"name": "Russia"}}, {"DE": {"name": "x"}}, {"DE": {"name": "Germany"}}])
    currency = chunks("CURRENCY", [{"EUR": {"digits": 2}}, {"JPY": {"digits": 0}}])
    publish(database, [country[2], currency[1], delta("COUNTRY", {"FR": {"name": "France"}, "RU": {"name": "Rus"}}),
                       delta("CURRENCY", {"USD": {"digits": 3}}), delta("CURRENCY", {}, ["EUR"]), country[0]])
    handled(database)
    assert countries(database) == {"FR": "France", "RU": "Rus"} and currencies(database) == {"USD": (3, 1)}
    assert database.value("select count(*) from staging") == 0
    publish(database, [country[1], currency[0]])
    assert decided(database, country + currency) == [("COMMITTED", 2)] * 3 + [("COMMITTED", 3)] * 2
    assert countries(database) == {"FR": "France", "RU": "Rus", "DE": "Germany"}
    assert currencies(database) == {"JPY": (0, 3), "USD": (3, 3)}


@pytest.mark.parametrize("code, poison", [("D", REFUSED), ("COUNTRY", {"name": None})])
def test_a_snapshot_that_cannot_be_written_fails_whole(database, code, poison):
    """R10: all its events fail, its staging goes, nothing changed, what is behind it goes on."""
    good = {"a": {"name": "a"}}
    before, after = delta(code, good), delta(code, {"z": {"name": "z"}})
    parts = chunks(code, [{"b": {"name": "b"}}, {"c": poison}, {"d": {"name": "d"}}])
    publish(database, [before, *parts, after])
    found = decided(database, [before, *parts, after])
    assert found == [("COMMITTED", 1), *[("FAILED", "UPDATE_REFUSED")] * 3, ("COMMITTED", 2)]
    keys = set(items_of(database, code) if code == "D" else countries(database))
    assert keys == {"a", "z"} and staged_rows(database) == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_key_that_returns_while_its_deleted_row_is_removed_is_kept(database, chunked):
    """R8: upkeep removes rows of keys deleted a day ago; a snapshot that has such a key again has it afterwards."""
    for sent in (delta("D", {"stays": 1, "returns": 1}), delta("D", deletes=["returns"])):
        publish(database, [sent])
        handled(database)
    full = {"stays": 1, "returns": 2, "new": 3}
    sent = chunks("D", [full, {}]) if chunked else [snapshot("D", full)]
    with contextlib.closing(database.connect()) as upkeep, upkeep.cursor() as cursor:
        cursor.execute("begin; delete from refdata.dictionary_item where deleted")
        assert cursor.rowcount == 1
        publish(database, sent)
        eventually(lambda: database.value("select count(*) from pg_locks where not granted and pid <> pg_backend_pid()"
                                          " and locktype in ('transactionid', 'tuple')") > 0)
        cursor.execute("commit")
    assert decided(database, sent) == [("COMMITTED", 3)] * len(sent)
    assert items_of(database, "D") == full


def test_an_incomplete_snapshot_expires(serve, refdata_db):
    """R8: after its time since its last chunk, with two processes that look after it."""
    for _ in range(2):
        serve(refdata_db, applier("D", updates={"snapshotExpiry": "400ms"}), args=ROLES)
    ready(refdata_db)
    parts = chunks("D", [{"a": 1}, {"b": 1}, {"c": 1}])
    between = delta("D", {"x": 1})
    publish(refdata_db, [parts[0], between, parts[2]])
    assert decided(refdata_db, [parts[0], parts[2]]) == [("FAILED", "SNAPSHOT_INCOMPLETE")] * 2
    assert refdata_db.value("select error_message from refdata.update_request where status = 'FAILED' limit 1") == \
        "only 2 of 3 chunks came in time"
    eventually(lambda: refdata_db.value("select (select count(*) from refdata.snapshot_chunk)"
                                        " + (select count(*) from refdata.snapshot_delta)") == 0)
    publish(refdata_db, [parts[1]])
    assert decided(refdata_db, [parts[1], between]) == [("FAILED", "SNAPSHOT_INCOMPLETE"), ("COMMITTED", 1)]
    assert items_of(refdata_db, "D") == {"x": 1} and version_of(refdata_db, "D") == 1


def test_a_snapshot_whose_chunks_were_accepted_in_time_does_not_expire(serve, refdata_db):
    """R8: a chunk may wait in a long queue; the time counts from the last one that was accepted, not only applied. When it is
    over, what was kept of the chunks goes."""
    serve(refdata_db, applier("D", "E", updates={"snapshotExpiry": "200ms"}), args=ROLES)
    ready(refdata_db)
    kept, lost = chunks("D", [{"a": 1}, {"b": 1}]), chunks("E", [{"a": 1}, {"b": 1}])
    refdata_db.query("insert into refdata.chunk_request select 'demo', 'D', %s, i, '', %s, now() + interval '1 hour'"
                     " from generate_series(1, 2) i", (kept[0]["snapshotId"], kept[0]["eventId"]))
    publish(refdata_db, [kept[0]])
    handled(refdata_db)
    publish(refdata_db, [lost[0]])
    assert decided(refdata_db, [lost[0]]) == [("FAILED", "SNAPSHOT_INCOMPLETE")]
    assert statuses(refdata_db, [kept[0]]) == [("PENDING", None)]
    refdata_db.query("update refdata.chunk_request set created_at = now() - interval '1 hour'")
    assert decided(refdata_db, [kept[0]]) == [("FAILED", "SNAPSHOT_INCOMPLETE")]
    eventually(lambda: refdata_db.value("select (select count(*) from refdata.snapshot_chunk)"
                                        " + (select count(*) from refdata.chunk_request)") == 0)


class Model:
    """One pair by the rules, one command after another."""

    def __init__(self):
        self.items, self.version, self.pending = {}, 0, {}

    @staticmethod
    def change(items, sent):
        for item in sent["items"]:
            if item.get("op") == "DELETE":
                items.pop(item["key"], None)
            else:
                items[item["key"]] = item["payload"]

    def apply(self, sent):
        if sent["eventType"] == "DELTA":
            self.change(self.items, sent)
            self.version += 1
            for assembly in self.pending.values():
                assembly["deltas"].append(sent)
        elif "snapshotId" not in sent:
            self.items = {}
            self.change(self.items, sent)
            self.version += 1
        else:
            self.chunk(sent)

    def chunk(self, sent):
        assembly = self.pending.setdefault(sent["snapshotId"], {"chunks": {}, "deltas": []})
        assembly["chunks"].setdefault(sent["chunkIndex"], sent)
        if len(assembly["chunks"]) < sent["chunksTotal"]:
            return
        del self.pending[sent["snapshotId"]]
        self.items = {}
        for _, part in sorted(assembly["chunks"].items()):
            self.change(self.items, part)
        for later in assembly["deltas"]:
            self.change(self.items, later)
        self.version += 1


def story(random_, code, tenant):
    """Two snapshots' chunks shuffled among deltas and whole snapshots, some of the chunks twice while they assemble."""

    def some(count):
        return {f"k{random_.randrange(12)}": random_.randrange(1000) for _ in range(count)}

    def one():
        if random_.random() < 0.15:
            return snapshot(code, some(4), tenant=tenant)
        return delta(code, some(3), [f"k{random_.randrange(12)}"], tenant=tenant)

    parts = []
    for _ in range(2):
        own = chunks(code, [some(3) for _ in range(random_.randrange(2, 5))], tenant=tenant)
        random_.shuffle(own)
        twice = {**own[0], "eventId": event_id()}
        own.insert(random_.randrange(1, len(own)), twice)
        parts.append(own)
    merged = []
    while any(parts):
        merged.append(random_.choice([part for part in parts if part]).pop(0))
        merged += [one() for _ in range(random_.randrange(3))]
    return merged


@pytest.mark.parametrize("seed", range(4))
def test_any_order_equals_the_model(database, seed):
    """R8, R10: chunks in random orders, deltas in between, two tenants, batches of any size."""
    random_ = random.Random(seed)
    stories = {tenant: story(random_, "D", tenant) for tenant in ("demo", "other")}
    models = {tenant: Model() for tenant in stories}
    rest = {tenant: list(commands) for tenant, commands in stories.items()}
    while any(rest.values()):
        batch = []
        for _ in range(random_.randrange(1, 12)):
            tenant = random_.choice([name for name, left in rest.items() if left] or [None])
            if tenant:
                batch.append(rest[tenant].pop(0))
        publish(database, batch)
    for tenant, commands in stories.items():
        for sent in commands:
            models[tenant].apply(sent)
        decided(database, commands)
    handled(database)
    for tenant, model in models.items():
        assert items_of(database, "D", tenant) == model.items, f"seed {seed}"
        assert version_of(database, "D", tenant) == model.version
        assert [version for version, _, _ in outbox_of(database, "D", tenant)] == list(range(1, model.version + 1))
    assert staged_rows(database) == 0
