"""R17, R18: which dictionaries a pod holds, and what is diagnosed about them."""
import contextlib
import time

import pytest

from lib.refdata import (item_path, make_table, path, pod, refdata_db, set_version, slow_dictionary,  # noqa: F401
                         sql_dictionary, write_builtin)
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")


def ask_all(server, token, targets):
    """Sends every request on a connection of its own before reading any answer."""
    connections = []
    for target in targets:
        connection = server.raw()
        connection.send(request_bytes("GET", target, {"Authorization": f"Bearer {token}"}))
        connections.append(connection)
    return [connection.read_response() for connection in connections]


def test_preloads_are_in_memory_before_the_pod_is_ready(serve, refdata_db):
    """R17: preload by name, and by a star for every tenant that has a version."""
    for tenant in ["one", "two"]:
        write_builtin(refdata_db, "D", {"a": tenant}, version=1, tenant=tenant)
    write_builtin(refdata_db, "E", {"a": 1}, version=1, tenant="one")
    server = serve(refdata_db, pod("D", "E", "F", cache={"preload": ["*/D", "one/E", "never/F"]}))
    loaded = {(line["tenantId"], line["dictCode"]) for line in server.logs(event="dictionary_loaded")}
    assert loaded == {("one", "D"), ("two", "D"), ("one", "E"), ("never", "F")}


def test_a_star_finds_tenants_that_come_later(serve, refdata_db):
    """R17: the sweep looks for them."""
    server = serve(refdata_db, pod("D", cache={"preload": ["*/D"]}))
    write_builtin(refdata_db, "D", {"a": 1}, version=1, tenant="late")
    eventually(lambda: server.logs(event="dictionary_loaded", tenantId="late"))
    assert server.is_ready()


@pytest.mark.parametrize("rows", ["('demo', null, '1')", "('demo', '', '1')"])
def test_a_preload_that_can_never_be_loaded_does_not_keep_the_others_from_being_served(serve, refdata_db, token, rows):
    """R15, C8: one bad row of one dictionary is no reason to serve nothing."""
    refdata_db.query(f"create table bad (tenant_id text, k text, v jsonb); insert into bad values {rows}")
    write_builtin(refdata_db, "GOOD", {"a": 1}, version=1)
    server = serve(refdata_db, pod(sql_dictionary("BAD"), "GOOD", cache={"preload": ["demo/BAD", "demo/GOOD"]}))
    client = server.client(token())
    assert client.get(item_path("GOOD", "a")).status == 200
    assert client.get(item_path("BAD", "a")).code == "DICTIONARY_UNAVAILABLE"
    refdata_db.query("delete from bad; insert into bad values ('demo', 'a', '1')")
    eventually(lambda: client.get(item_path("BAD", "a")).status == 200)


@pytest.mark.tsan
def test_a_hundred_first_reads_at_once_are_one_load(serve, refdata_db, token):
    """R17: single-flight; everybody who waited gets the same answer."""
    server = serve(refdata_db, pod(slow_dictionary("S", 0.5)))
    answers = ask_all(server, token(), [item_path("S", "k")] * 70 + [path("S", "/version")] * 30)
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 2
    assert len(server.logs(event="dictionary_loaded")) == 1
    assert server.metrics()['cache_reload_duration_count{dict_code="S",mode="full"}'] == 1


def test_a_first_read_that_waits_too_long_is_503_and_the_load_goes_on_without_it(serve, refdata_db, token):
    """R13, R17: a waiter's deadline is its own."""
    server = serve(refdata_db, pod(slow_dictionary("S", 1), cache={"firstReadTimeout": "50ms"}))
    answer = server.client(token()).get(item_path("S", "k"))
    assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE")
    assert int(answer.headers["retry-after"]) > 0
    eventually(lambda: server.logs(event="dictionary_loaded"))
    assert server.client(token()).get(item_path("S", "k")).status == 200
    assert len(server.logs(event="dictionary_loaded")) == 1


def test_a_client_that_leaves_while_waiting_harms_nobody(serve, refdata_db, token):
    """R17: its place is given up, the load goes on."""
    server = serve(refdata_db, pod(slow_dictionary("S", 0.5)))
    for _ in range(20):
        connection = server.raw()
        connection.send(request_bytes("GET", item_path("S", "k"), {"Authorization": f"Bearer {token()}"}))
        connection.close()
    assert server.client(token()).get(item_path("S", "k")).status == 200


def test_past_the_memory_budget_what_was_read_longest_ago_goes_and_comes_back_when_asked(serve, refdata_db, token):
    """R17: a budget with eviction; preloads stay; nobody sees a difference."""
    refdata_db.query("create table big (tenant_id text, k text, v jsonb);"
                     "insert into big select 't' || t, 'k' || i, to_jsonb(t || repeat('x', 1000))"
                     " from generate_series(1, 8) t, generate_series(1, 1500) i")
    server = serve(refdata_db, pod(sql_dictionary("BIG"), cache={"memory": "8MiB", "preload": ["t1/BIG"]}))
    for _ in range(2):
        for tenant in range(1, 9):
            client = server.client(token(f"t{tenant}"))
            assert client.get(item_path("BIG", "k7", f"t{tenant}")).json()["payload"] == f"{tenant}" + "x" * 1000
    evicted = [line["tenantId"] for line in server.logs(event="dictionary_evicted")]
    assert len(evicted) >= 6 and "t1" not in evicted

    def within_the_budget():
        held = [value for name, value in server.metrics().items() if name.startswith("dict_memory_bytes{")]
        return 0 < sum(held) <= 8 * 2**20 and len(held) < 8

    eventually(within_the_budget)


def test_what_was_read_longest_ago_goes_first(serve, refdata_db, token):
    """R17: the order is that of reading, not of loading; times are kept by the second, so the test lets one pass."""
    server = serve(refdata_db, pod("D", cache={"entries": 3}))

    def read(tenant):
        with server.client(token(tenant)) as client:
            assert client.get(path("D", "/version", tenant)).status == 200

    for tenant in ["t1", "t2", "t3"]:
        read(tenant)
    time.sleep(1.1)
    read("t1")
    read("t3")
    read("t4")
    assert [line["tenantId"] for line in server.logs(event="dictionary_evicted")] == ["t2"]


def test_a_dictionary_larger_than_the_budget_is_refused_and_the_others_stay(serve, refdata_db, token):
    """R17: it can't push everything else out."""
    refdata_db.query("create table big (tenant_id text, k text, v jsonb);"
                     "insert into big select 'demo', i::text, to_jsonb(repeat('x', 1000)) from generate_series(1, 9000) i")
    write_builtin(refdata_db, "SMALL", {"a": 1}, version=1)
    server = serve(refdata_db, pod(sql_dictionary("BIG"), "SMALL", cache={"memory": "4MiB"}))
    client = server.client(token())
    assert client.get(item_path("SMALL", "a")).status == 200
    assert client.get(item_path("BIG", "1")).code == "DICTIONARY_UNAVAILABLE"
    assert not server.logs(event="dictionary_evicted")


def test_the_number_of_pairs_is_bounded_too(serve, refdata_db, token):
    """R17: tenants without data cost a place each, and places are given up like memory is."""
    server = serve(refdata_db, pod("D", cache={"entries": 5}))
    for number in range(30):
        with server.client(token(f"t{number}")) as client:
            assert client.get(path("D", "/version", f"t{number}")).json()["version"] == 0
    assert len([name for name in server.metrics() if name.startswith("dict_version{")]) <= 5
    assert server.logs(event="dictionary_evicted", reason="entries")


def last_queries(database):
    """Of all but the bus, which looks for messages now and then."""
    return database.query("select pid, backend_start, query_start from pg_stat_activity"
                          " where datname = current_database() and pid <> pg_backend_pid()"
                          " and query !~ '(platform[.]|LISTEN)' order by pid")


def quiet_queries(database):
    """Those of a pod that has done all there is to do at its start."""
    first = last_queries(database)
    time.sleep(0.3)
    return first if first == last_queries(database) else None


def test_a_storm_of_unknown_names_never_reaches_postgresql(serve, refdata_db, token):
    """R17: unknown dictionaries, keys, tenants and bad tokens are answered from memory alone."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = serve(refdata_db, pod("D", cache={"sweepInterval": "1h"}), args=("--roles", "query"))
    client = server.client(token())
    assert client.get(item_path("D", "a")).status == 200
    before = eventually(lambda: quiet_queries(refdata_db))
    connection = server.raw()
    auth = {"Authorization": f"Bearer {token()}"}
    for batch in range(20):
        targets = [path(f"NO{batch}.{i}", "/version") for i in range(40)] + [item_path("D", f"no{i}") for i in range(40)] \
            + [path("D", "/version", f"other{i}") for i in range(20)]
        connection.send(b"".join(request_bytes("GET", target, auth) for target in targets))
        assert {connection.read_response().status for _ in targets} == {403, 404}
    assert set(last_queries(refdata_db)) <= set(before)  # a connection may have been closed, or used by the bus


def test_a_pair_that_failed_is_not_tried_by_every_request(serve, refdata_db, token):
    """R17, R21: after a failure the next try waits; a storm of first reads in between never reaches PostgreSQL."""
    refdata_db.query("create table bad (tenant_id text, k text, v jsonb); insert into bad values ('demo', null, '1')")
    server = serve(refdata_db, pod(sql_dictionary("BAD"), cache={"retryMin": "1h", "retryMax": "1h", "sweepInterval": "1h"}))
    answers = ask_all(server, token(), [item_path("BAD", "a")] * 50)
    answers += [server.client(token()).get(item_path("BAD", "a")) for _ in range(50)]
    assert {(answer.status, answer.code) for answer in answers} == {(503, "DICTIONARY_UNAVAILABLE")}
    assert len(server.logs(event="dictionary_load_failed")) == 1


# ---- drift ----

def test_drift_is_a_metric_and_a_log_line_and_decides_nothing(serve, refdata_db, token):
    """R18: dict_drift_value; a line when it moved without the version."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 1)
    drift = sql_dictionary("T", driftCheckSql="select coalesce(sum((v #>> '{}')::int), 0)::bigint from t"
                                              " where tenant_id = :tenantId")
    server = serve(refdata_db, pod(drift, cache={"driftCheckInterval": "100ms"}))
    client = server.client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == 1
    series = 'dict_drift_value{tenant="demo",dict_code="T"}'
    eventually(lambda: server.metrics().get(series) == 1)
    refdata_db.query("update t set v = '5'")
    eventually(lambda: server.metrics().get(series) == 5)
    (line,) = server.logs(event="dictionary_drift")
    assert (line["dictCode"], line["tenantId"], line["version"], line["before"], line["now"]) == ("T", "demo", 1, 1, 5)
    assert client.get(item_path("T", "a")).json()["payload"] == 1
    assert len(server.logs(event="dictionary_loaded")) == 1


def test_data_that_moves_with_its_version_is_no_drift(serve, refdata_db, token):
    """R18."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 1)
    drift = sql_dictionary("T", driftCheckSql="select max((v #>> '{}')::int)::bigint from t where tenant_id = :tenantId")
    server = serve(refdata_db, pod(drift, cache={"driftCheckInterval": "100ms"}))
    client = server.client(token())
    client.get(item_path("T", "a"))
    series = 'dict_drift_value{tenant="demo",dict_code="T"}'
    for version in range(2, 6):
        refdata_db.query(f"begin; update t set v = '{version}';"
                         f" update refdata.dictionary_meta set version = {version}; commit")
        eventually(lambda: server.metrics().get(series) == version)
    assert not server.logs(event="dictionary_drift")


def test_a_drift_check_that_hangs_or_fails_does_not_hold_up_freshness(serve, refdata_db, token):
    """R18: diagnostic only: versions are compared on time whatever a drift check does."""
    tenants = [f"t{i}" for i in range(20)]
    make_table(refdata_db, "t")
    for tenant in tenants:
        refdata_db.query("insert into t values (%s, 'a', '1')", (tenant,))
    changes = pod(sql_dictionary("T", driftCheckSql="select 1::bigint from pg_sleep(3600)"),
                  sql_dictionary("U", "t", driftCheckSql="select (1 / 0)::bigint"), cache={"driftCheckInterval": "100ms"},
                  http={"stopTimeout": "0s"})
    server = serve(refdata_db, changes)
    for tenant in tenants:
        with server.client(token(tenant)) as client:
            assert client.get(item_path("T", "a", tenant)).status == 200
    assert server.client(token("t0")).get(item_path("U", "a", "t0")).status == 200
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(3600)%%'"
                                        " and pid <> pg_backend_pid()"))
    client = server.client(token("t0"))
    for version in range(1, 4):
        set_version(refdata_db, "T", version, "t0")
        eventually(lambda: client.get(item_path("T", "a", "t0")).headers["x-dict-version"] == str(version), timeout=20)


def test_readers_are_not_held_up_by_a_database_that_is_locked(serve, refdata_db, token):
    """R13: an exclusive lock on the table stops the load, not the reads."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 1)
    server = serve(refdata_db, pod(sql_dictionary("T")))
    client = server.client(token())
    assert client.get(item_path("T", "a")).status == 200
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("begin; lock table t in access exclusive mode")
        set_version(refdata_db, "T", 2)
        eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock'"))
        for _ in range(50):
            assert client.get(item_path("T", "a")).headers["x-dict-version"] == "1"
        cursor.execute("rollback")
    eventually(lambda: client.get(item_path("T", "a")).headers["x-dict-version"] == "2")
