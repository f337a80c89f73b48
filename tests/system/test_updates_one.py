"""refdata.apply_one(): one update of one item in one statement, where the pair is as the process left it (R8, R10, R12, ADR 16)."""
import uuid

import psycopg2
import pytest

from lib.apply import items_of, outbox_of, version_of
from lib.refdata import TENANT, make_table, module_refdata_db, pod, refdata_db  # noqa: F401  pylint: disable=unused-import
from lib.wait import eventually
from lib.writers import commit, delta, status_path, updates_path

CALL = ("select refdata.apply_one(%(tenant)s, %(code)s, %(version)s, %(event)s, %(revision)s, %(new_revision)s, %(new_event)s,"
        " 'REST', %(hash)s, 'me', %(trace)s, %(key)s, %(payload)s::jsonb, %(partition)s)")
NOT_EXPECTED = "FB002"


class Pair:
    """A dictionary of its own in its expected state, and calls of the function."""

    def __init__(self, database, partition=None):
        self.database, self.code, self.partition = database, f"D{uuid.uuid4().hex[:8]}", partition
        self.version, self.event, self.revision = 3, str(uuid.uuid4()), None
        database.query("insert into refdata.dictionary_meta (tenant_id, dict_code, version, last_event_id) values (%s, %s, 3, %s)",
                       (TENANT, self.code, self.event))

    def arguments(self, key="a", payload='{"n": 1}', **more):
        return {"tenant": TENANT, "code": self.code, "version": self.version, "event": self.event, "revision": self.revision,
                "new_revision": self.revision, "new_event": str(uuid.uuid4()), "hash": "h", "trace": None, "key": key,
                "payload": payload, "partition": self.partition, **more}

    def apply(self, key="a", payload='{"n": 1}', connection=None, **more):
        """Is the version published? After it the next call expects what this one left."""
        arguments = self.arguments(key, payload, **more)
        if connection:
            with connection.cursor() as cursor:
                cursor.execute(CALL, arguments)
                (is_published,) = cursor.fetchone()
        else:
            is_published = self.database.value(CALL, arguments)
        self.version, self.event, self.revision = arguments["version"] + 1, arguments["new_event"], arguments["new_revision"]
        return is_published

    def refuses(self, **more):
        """The SQLSTATE; and nothing was written."""
        def state():
            return self.database.query(
                "select (select array_agg(m.*::text) from refdata.dictionary_meta m where dict_code = %(code)s),"
                " (select count(*) from refdata.processed_event), (select count(*) from refdata.outbox_event),"
                " (select count(*) from refdata.update_request), (select count(*) from refdata.dictionary_item)",
                {"code": self.code})
        before = state()
        with pytest.raises(psycopg2.Error) as refused:
            self.database.query(CALL, self.arguments(**more))
        assert state() == before
        return refused.value.pgcode

    def row(self, columns, table, event=None):
        where = "event_id = %s" if event else "dict_code = %s"
        return self.database.query(f"select {columns} from refdata.{table} where {where}", (event or self.code,))[-1]


@pytest.fixture
def pair(module_refdata_db):  # noqa: F811
    return Pair(module_refdata_db)


@pytest.fixture
def published(module_refdata_db):  # noqa: F811
    """One whose versions may be published in the commit."""
    module_refdata_db.query("insert into platform.bus_partition (topic, partition, next_offset) values ('refdata.invalidations', 0, 7)"
                            " on conflict do nothing")
    return Pair(module_refdata_db, partition=0)


def messages(pair):
    return pair.database.query("select message_offset, convert_from(key, 'UTF8'), headers, convert_from(payload, 'UTF8')::jsonb"
                               " from platform.bus_message where key = convert_to(%s, 'UTF8') order by message_offset",
                               (f"{TENANT}:{pair.code}",))


def test_all_that_an_update_writes(pair):
    before = pair.event
    assert pair.apply(trace="00-ab", new_revision=9) is False
    assert pair.row("version, last_event_id::text, last_source_revision", "dictionary_meta") == (4, pair.event, 9)
    assert pair.row("item_key, payload, deleted", "dictionary_item") == ("a", {"n": 1}, False)
    assert pair.row("source", "processed_event", pair.event) == ("REST",)
    assert pair.row("status, committed_version, dict_code, source, content_hash, requested_by, snapshot_id", "update_request",
                    pair.event) == ("COMMITTED", 4, pair.code, "REST", "h", "me", None)
    row = pair.row("version, keys, traceparent, previous_event_id::text, published, published_at, payload", "outbox_event")
    assert row[:6] == (4, ["a"], "00-ab", before, False, None)
    assert {**row[6], "committedAt": ""} == {"eventId": pair.event, "tenantId": TENANT, "dictCode": pair.code, "version": 4,
                                             "committedAt": ""}


def test_a_deletion_and_a_payload_that_stays_what_it_is(pair):
    def stored():
        return pair.row("payload::text, deleted, xmin::text", "dictionary_item")
    pair.apply(payload='{"n": 1.0}')
    first = stored()
    pair.apply(payload='{"n": 1.0}')
    assert stored() == first
    pair.apply(payload='{"n": 1.00}')
    assert stored()[:2] == ('{"n": 1.00}', False)
    pair.apply(payload=None)
    deleted = stored()
    assert deleted[:2] == ('{"n": 1.00}', True)
    pair.apply(payload=None)
    assert stored() == deleted
    pair.apply(key="other", payload=None)  # it was never there
    assert items_of(pair.database, pair.code) == {}
    pair.apply(payload="null")
    assert stored()[:2] == ("null", False)
    assert [version for version, _, _ in outbox_of(pair.database, pair.code)] == list(range(4, 11))


def test_nothing_is_written_where_the_pair_is_not_as_expected(pair):
    for other in ({"version": 2}, {"event": str(uuid.uuid4())}, {"revision": 1}, {"code": "MISSING"}, {"tenant": "another"}):
        assert pair.refuses(**other) == NOT_EXPECTED
    pair.apply(new_revision=5)
    assert pair.refuses(revision=None) == pair.refuses(revision=4) == NOT_EXPECTED
    pair.apply(new_revision=6)


def test_nothing_is_written_where_the_update_is_known(pair):
    pair.apply()
    assert pair.refuses(new_event=pair.event) == NOT_EXPECTED
    accepted = str(uuid.uuid4())
    pair.database.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash)"
                        " values (%s, %s, %s, 'PENDING', 'h')", (TENANT, accepted, pair.code))
    assert pair.refuses(new_event=accepted) == "23505"
    pair.apply(new_event=accepted, hash=None)
    assert pair.row("status, committed_version", "update_request", accepted) == ("COMMITTED", 5)


def test_a_row_of_update_request_that_is_decided_stays_so(pair):
    refused = str(uuid.uuid4())
    pair.database.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, error_code, content_hash)"
                        " values (%s, %s, %s, 'FAILED', 'CODE', 'h')", (TENANT, refused, pair.code))
    pair.apply(new_event=refused, hash=None)
    assert pair.row("status, error_code", "update_request", refused) == ("FAILED", "CODE")


def test_nothing_is_written_while_hydration_or_a_snapshot_needs_more(pair):
    pair.database.query("update refdata.dictionary_meta set hydrated_until = clock_timestamp() + interval '1 h' where dict_code = %s",
                        (pair.code,))
    assert pair.refuses() == NOT_EXPECTED
    pair.database.query("update refdata.dictionary_meta set hydrated_until = clock_timestamp() - interval '1 s' where dict_code = %s",
                        (pair.code,))
    pair.apply()
    pair.database.query("insert into refdata.snapshot (tenant_id, dict_code, snapshot_id, chunks_total, received, status, begun_version, occurred_ms)"
                        " values (%s, %s, %s, 2, 1, 'PENDING', 4, 0)", (TENANT, pair.code, str(uuid.uuid4())))
    assert pair.refuses() == NOT_EXPECTED
    pair.database.query("update refdata.snapshot set status = 'COMMITTED' where dict_code = %s", (pair.code,))
    pair.apply()


def test_a_version_is_published_with_its_message(published):
    begun = published.database.value("select next_offset from platform.bus_partition where topic = 'refdata.invalidations'")
    assert published.apply(trace="00-cd") is True
    first = published.event
    assert published.apply(key="b") is True
    (offset, key, headers, payload), second = messages(published)
    assert (offset, key, headers) == (begun, f"{TENANT}:{published.code}", ["event-id", first, "traceparent", "00-cd"])
    assert second[0] == begun + 1 and second[2] == ["event-id", published.event]
    rows = published.database.query("select payload, published, published_at is not null from refdata.outbox_event where dict_code = %s"
                                    " order by id", (published.code,))
    assert rows == [(payload, True, True), (second[3], True, True)]


def test_r12_a_version_is_left_to_the_relay_behind_one_that_waits_for_it(published):
    published.apply(partition=None)
    assert published.apply() is False
    assert not messages(published)
    published.database.query("update refdata.outbox_event set published = true where dict_code = %s", (published.code,))
    assert published.apply() is True
    published.database.query("update refdata.outbox_event set published = false, failed_at = now() where dict_code = %s", (published.code,))
    assert published.apply() is True  # the relay has given the others up


def test_a_version_is_left_to_the_relay_where_another_commit_has_the_partition(published):
    other = published.database.connect()
    other.autocommit = False
    try:
        with other.cursor() as cursor:
            cursor.execute("select from platform.bus_partition where topic = 'refdata.invalidations' and partition = 0 for update")
        assert published.apply() is False
    finally:
        other.rollback()  # a connection that is closed keeps its locks for a moment
        other.close()
    published.database.query("update refdata.outbox_event set published = true where dict_code = %s", (published.code,))
    assert published.apply() is True


def test_a_version_that_was_set_back_is_published_again(published):
    published.apply()
    published.apply()
    rows = outbox_of(published.database, published.code)
    published.database.query("update refdata.dictionary_meta set version = 4 where dict_code = %s", (published.code,))
    published.version = 4
    published.event = published.row("last_event_id::text", "dictionary_meta")[0]
    assert published.apply(key="again") is True
    first, second = outbox_of(published.database, published.code)
    assert first == rows[0] and second == (5, published.event, ["again"])


def test_it_waits_for_a_locked_pair_only_for_a_moment_and_sees_what_changed(pair):
    """The statement after the lock sees what was committed while it waited."""
    other = pair.database.connect()
    other.autocommit = False
    try:
        with other.cursor() as cursor:
            cursor.execute("select from refdata.dictionary_meta where dict_code = %s for update", (pair.code,))
        assert pair.refuses() == "55P03"
    finally:
        other.close()
    pair.apply()


# ---- as the program calls it ----

ROLES = {"one": ["command,apply,relay,query"], "two": ["command", "apply,relay,query"]}


@pytest.fixture(params=ROLES)
def servers(request, serve, refdata_db):  # noqa: F811
    refdata_db.query("create table called (key text, payload jsonb, hash text)")
    refdata_db.query("alter function refdata.apply_one rename to apply_one_itself")
    names = [f"${number}" for number in range(1, 15)]
    refdata_db.query(
        "create function refdata.apply_one(text, text, bigint, uuid, bigint, bigint, uuid, text, text, text, text, text, jsonb, integer)"
        " returns boolean language plpgsql as $body$ begin insert into public.called values ($12, $13, $9);"
        f" return refdata.apply_one_itself({', '.join(names)}); end $body$")
    return [serve(refdata_db, pod("B", "C"), args=("--roles", roles)) for roles in ROLES[request.param]]


def calls(database):
    """Committed ones since the last look."""
    found = database.query("select key, payload from called")
    database.query("truncate called")
    return found


def is_expected(client, database, code="B"):
    """Three in a row that nobody disturbs."""
    for number in range(3):
        assert commit(client, delta(code, {"quiet": number})).status == 200
    return calls(database)[-1:] == [("quiet", 2)]


def test_it_writes_what_is_expected_and_only_that(servers, refdata_db, token):  # noqa: F811
    client = servers[0].client(token(TENANT))
    eventually(lambda: is_expected(client, refdata_db))
    answer = commit(client, delta("B", {"a": 1}))
    assert answer.status == 200 and calls(refdata_db) == [("a", 1)]
    assert commit(client, delta("B", {"a": None})).status == 200 and calls(refdata_db) == [("a", None)]
    assert items_of(refdata_db, "B") == {"quiet": 2}
    for several in (delta("B", {"a": 1, "b": 2}), delta("B", {})):
        assert commit(client, several).status == 200 and not calls(refdata_db)
    keyed = delta("B", {"c": 3})
    for _ in range(2):
        answer = client.post(updates_path("WAIT_COMMIT"), keyed, Idempotency_Key="a-key")
        assert answer.status == 200
    assert calls(refdata_db) == [("c", 3)]
    assert client.get(status_path(keyed["eventId"])).json()["committedVersion"] == version_of(refdata_db, "B")
    eventually(lambda: is_expected(client, refdata_db))  # the replay was tried, and rolled back
    new, old = delta("B", {"d": 1}, sourceRevision=9), delta("B", {"d": 2}, sourceRevision=8)
    assert commit(client, new).status == 200 and calls(refdata_db) == [("d", 1)]
    assert commit(client, old).code == "STALE_SOURCE_REVISION" and not calls(refdata_db)
    assert commit(client, new).status == 200 and not calls(refdata_db)  # known
    assert items_of(refdata_db, "B") == {"quiet": 2, "a": 1, "b": 2, "c": 3, "d": 1}
    eventually(lambda: refdata_db.value("select count(*) from refdata.outbox_event where not published") == 0)


def test_a_dictionary_with_sql_of_its_own_is_never_expected(serve, refdata_db, token):  # noqa: F811
    """Its batches are read first, and then with a limit to the time that they wait for locks."""
    make_table(refdata_db, "t")
    patient = {"code": "SQL", "loadSql": "select k, v from t where tenant_id = :tenantId",
               "apply": {"upsertSql": "insert into t values (:tenantId, :key, to_jsonb(current_setting('lock_timeout')))"
                                      " on conflict (tenant_id, k) do update set v = excluded.v, k = :payload->>'k'"}}
    client = serve(refdata_db, pod(patient), args=("--roles", "command,apply,relay")).client(token(TENANT))

    def limit():
        assert commit(client, delta("SQL", {"a": {"k": "a"}})).status == 200
        return refdata_db.value("select v from t")

    for _ in range(3):
        limit()  # now nobody has disturbed it
    eventually(lambda: limit() == "300ms")
