"""R7: a reader who demands version N gets N or later, or is told that N is not committed. Never less."""
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.refdata import item_path, make_table, module_refdata_db, own_refdata_db, path, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

TENANT = "t1"
ROUTES = ["/items/a", "/items?keys=a,b", "/all", "/version"]
# Nothing but the barrier brings a pod up to date in these tests.
STILL = {"sweepInterval": "1h", "driftCheckInterval": "1h"}


def demand(client, where, version):
    return client.request("GET", where, headers={"X-Min-Version": str(version)})


def barrier_pod(serve, database, *dictionaries, **settings):
    configuration = pod(*dictionaries)
    refdata = configuration.setdefault("refdata", {})
    refdata["cache"] = {**refdata.get("cache", {}), **STILL}
    refdata["barrier"] = settings
    return serve(database, configuration)


@pytest.fixture
def client(serve, refdata_db, token):
    write_builtin(refdata_db, "B", {"a": 1, "b": 1}, version=1, tenant=TENANT)
    server = barrier_pod(serve, refdata_db, "B")
    reader = server.client(token(TENANT))
    assert reader.get(path("B", "/all", TENANT)).status == 200
    reader.server, reader.bearer = server, token(TENANT)
    return reader


@pytest.fixture(scope="module")
def quiet(module_serve, module_refdata_db, token):
    """A pod whose dictionary stays at version 1."""
    write_builtin(module_refdata_db, "B", {"a": 1, "b": 1}, version=1, tenant=TENANT)
    reader = barrier_pod(module_serve, module_refdata_db, "B").client(token(TENANT))
    assert reader.get(path("B", "/all", TENANT)).status == 200
    return reader


@pytest.mark.parametrize("rest", ROUTES)
def test_what_is_here_is_answered_from_memory(quiet, rest):
    for version in (0, 1):
        answer = demand(quiet, path("B", rest, TENANT), version)
        assert (answer.status, answer.headers["x-data-source"], answer.headers["x-dict-version"]) == (200, "memory", "1")


@pytest.mark.parametrize("value", ["-1", "", "x", "1.0", "1 2", "0x1", "9223372036854775808", "+1"])
@pytest.mark.parametrize("rest", ROUTES)
def test_a_bad_value_is_400_and_names_the_header(quiet, rest, value):
    answer = demand(quiet, path("B", rest, TENANT), value)
    assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", "X-Min-Version")


@pytest.mark.parametrize("rest", ROUTES)
def test_a_version_that_is_not_committed_is_409_without_data(quiet, rest):
    answer = demand(quiet, path("B", rest, TENANT), 7)
    body = answer.json()
    assert (answer.status, answer.code) == (409, "VERSION_NOT_COMMITTED")
    assert (body["requestedVersion"], body["committedVersion"]) == (7, 1)
    assert "items" not in body and "payload" not in body
    assert quiet.get(path("B", rest, TENANT)).status == 200  # and others go on


@pytest.mark.tsan
@pytest.mark.parametrize("rest", ROUTES)
def test_a_demand_itself_brings_the_committed_version_in(client, refdata_db, rest):
    write_builtin(refdata_db, "B", {"a": 2, "b": 2}, version=2, tenant=TENANT)
    answer = demand(client, path("B", rest, TENANT), 2)
    assert (answer.status, answer.headers["x-dict-version"]) == (200, "2")
    if "items/a" in rest:
        assert answer.json()["payload"] == 2
    # answered by the primary or from memory, which then has it soon
    eventually(lambda: client.get(path("B", rest, TENANT)).headers["x-dict-version"] == "2")


def test_a_demand_on_a_dictionary_not_in_memory_yet_waits_for_it(serve, refdata_db, token):
    write_builtin(refdata_db, "B", {"a": 5}, version=5, tenant=TENANT)
    reader = barrier_pod(serve, refdata_db, "B").client(token(TENANT))
    assert demand(reader, item_path("B", "a", TENANT), 5).json()["payload"] == 5
    assert demand(reader, item_path("B", "a", TENANT), 6).status == 409


def slow_dictionary(code, keys_sql):
    """loadSql takes as long as table `slow` says; keys_sql is loadKeysSql, or None for a condition around loadSql."""
    load = ("select t.k, t.v from t cross join (select pg_sleep(coalesce(max(seconds), 0)) from slow) as pause"
            " where t.tenant_id = :tenantId")
    definition = {"code": code, "loadSql": load}
    if keys_sql:
        definition["loadKeysSql"] = keys_sql
    return definition


@pytest.mark.tsan
def test_a_reload_slower_than_the_wait_is_answered_from_the_primary(serve, refdata_db, token):
    """R7: ≥ N → from PostgreSQL, marked as such, and a reload is under way."""
    make_table(refdata_db, "t")
    refdata_db.query("create table slow(seconds float8)")
    refdata_db.query("insert into t values (%s, 'a', '1'), (%s, 'gone', '1')", (TENANT, TENANT))
    set_version(refdata_db, "T", 1, TENANT)
    keys = "select k, v from t where tenant_id = :tenantId and k = any(:keys)"
    server = barrier_pod(serve, refdata_db, slow_dictionary("T", keys), waitMs=50)
    reader = server.client(token(TENANT))
    assert reader.get(item_path("T", "a", TENANT)).json()["payload"] == 1
    refdata_db.query("insert into slow values (4)")
    refdata_db.query("update t set v = '2' where k = 'a'; delete from t where k = 'gone'")
    set_version(refdata_db, "T", 2, TENANT)

    item = demand(reader, item_path("T", "a", TENANT), 2)
    assert (item.status, item.json()["payload"]) == (200, 2)
    assert (item.headers["x-data-source"], item.headers["x-dict-version"]) == ("postgres_fallback", "2")
    missing = demand(reader, item_path("T", "gone", TENANT), 2)
    assert (missing.status, missing.code) == (404, "ITEM_NOT_FOUND")
    assert (missing.headers["x-data-source"], missing.headers["x-dict-version"]) == ("postgres_fallback", "2")
    several = demand(reader, path("T", "/items?keys=a,gone,none", TENANT), 2).json()
    assert (several["version"], [each["payload"] for each in several["items"]], several["missing"]) == (2, [2], ["gone", "none"])
    etag = item.headers["etag"]
    unchanged = reader.request("GET", item_path("T", "a", TENANT), headers={"X-Min-Version": "2", "If-None-Match": etag})
    assert (unchanged.status, unchanged.headers["x-data-source"]) == (304, "postgres_fallback")

    assert reader.get(item_path("T", "a", TENANT)).headers["x-dict-version"] == "1"  # without a demand: memory, at once
    whole = demand(reader, path("T", "/all", TENANT), 2)  # the whole waits for the reload, which is the primary's too
    assert (whole.status, whole.json()["version"], whole.headers["x-data-source"]) == (200, 2, "postgres_fallback")
    assert demand(reader, item_path("T", "a", TENANT), 2).headers["x-data-source"] == "memory"
    assert server.metrics()['postgres_fallback_reads{dict_code="T"}'] == 4


def test_without_load_keys_sql_a_condition_around_load_sql_serves(serve, refdata_db, token):
    """R7: one key out of a large dictionary needs no full load."""
    make_table(refdata_db, "t")
    refdata_db.query("create table slow(seconds float8)")
    refdata_db.query("insert into t values (%s, 'a', '1')", (TENANT,))
    set_version(refdata_db, "T", 1, TENANT)
    definition = slow_dictionary("T", None)
    definition["loadSql"] += " ;  "
    server = barrier_pod(serve, refdata_db, definition, waitMs=0)
    reader = server.client(token(TENANT))
    assert reader.get(item_path("T", "a", TENANT)).status == 200
    refdata_db.query("update t set v = '2'")
    set_version(refdata_db, "T", 2, TENANT)
    answer = demand(reader, item_path("T", "a", TENANT), 2)
    assert (answer.status, answer.json()["payload"], answer.headers["x-dict-version"]) == (200, 2, "2")


@pytest.mark.tsan
def test_a_storm_of_made_up_versions_shares_its_questions_to_the_primary(client, refdata_db):
    """R7: a made-up N must not become load on the primary."""
    before = refdata_db.query("select sum(xact_commit + xact_rollback) from pg_stat_database")[0][0]
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda n: demand(client.server.client(client.bearer), item_path("B", "a", TENANT), 100 + n).status,
                                   range(400)))
    assert set(answers) <= {409, 503} and 409 in answers
    assert client.get(item_path("B", "a", TENANT)).status == 200
    after = refdata_db.query("select sum(xact_commit + xact_rollback) from pg_stat_database")[0][0]
    assert after - before < 400


def test_past_the_rate_limit_a_demand_is_503_with_retry_after(serve, refdata_db, token):
    write_builtin(refdata_db, "B", {"a": 1}, version=1, tenant=TENANT)
    server = barrier_pod(serve, refdata_db, "B", waitMs=0, checksPerSecond=1)
    reader = server.client(token(TENANT))
    assert reader.get(item_path("B", "a", TENANT)).status == 200

    def refused():
        answer = demand(reader, item_path("B", "a", TENANT), 9)
        assert answer.status in (409, 503)
        return answer if answer.status == 503 else None

    assert eventually(refused).headers["retry-after"]


def test_with_postgresql_gone_only_what_is_not_here_is_refused(serve, own_postgres, own_refdata_db, token):
    """R21: a dead primary does not take reads from memory down."""
    write_builtin(own_refdata_db, "B", {"a": 1}, version=1, tenant=TENANT)
    server = barrier_pod(serve, own_refdata_db, "B", timeout="500ms")
    reader = server.client(token(TENANT))
    assert reader.get(item_path("B", "a", TENANT)).status == 200
    own_postgres.stop("immediate")
    assert demand(reader, item_path("B", "a", TENANT), 1).status == 200
    answer = demand(reader, item_path("B", "a", TENANT), 2)
    assert answer.status == 503 and answer.headers["retry-after"]
    assert reader.get(item_path("B", "a", TENANT)).status == 200


@pytest.mark.tsan
def test_no_reader_ever_sees_less_than_it_demands(serve, refdata_db, token):
    """R7: writers commit version and data together; readers demand what was committed before they asked."""
    write_builtin(refdata_db, "B", {"a": 1, "b": 1}, version=1, tenant=TENANT)
    server = barrier_pod(serve, refdata_db, "B", waitMs=20, checksPerSecond=100000)
    committed, problems, over = [1], [], threading.Event()

    def read():
        reader, seen = server.client(token(TENANT)), 0
        while not over.is_set():
            version = committed[0]
            answer = demand(reader, path("B", "/items?keys=a,b", TENANT), version)
            if answer.status == 503:
                continue
            body = answer.json() if answer.status == 200 else {}
            values = {each["payload"] for each in body.get("items", [])}
            if answer.status != 200 or body["version"] < version or values != {body["version"]}:
                problems.append((version, answer.status, body))
                return
            seen = max(seen, body["version"])

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for version in range(2, 120):
        write_builtin(refdata_db, "B", {"a": version, "b": version}, version=version, tenant=TENANT)
        committed[0] = version
    over.set()
    for reader in readers:
        reader.join()
    assert not problems, problems[:3]
