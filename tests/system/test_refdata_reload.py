"""R15: SIGHUP or a changed file reloads without dropping a request; a bad file changes nothing."""
import contextlib
import threading

import pytest

from lib.config import base_config, merge
from lib.refdata import (item_path, make_table, migrated, path, pod, refdata_db, set_version, slow_dictionary,  # noqa: F401
                         sql_dictionary, write_builtin)
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")


@pytest.fixture
def reconfigure(jwks_path):
    """reconfigure(server, database, changes) writes the file and sends SIGHUP, and waits until it was read."""

    def write(server, database, changes, signal=True):
        before = len(server.logs(event="config_reloaded"))
        server.write_config(changes if isinstance(changes, str) else merge(base_config(database, jwks_path), changes))
        if signal:
            server.sighup()
        eventually(lambda: len(server.logs(event="config_reloaded")) > before)

    return write


@contextlib.contextmanager
def asking(server, token, target):
    """Asks without a pause while the block runs, on a few kept connections; gives the statuses seen."""
    stop, seen, wrong = threading.Event(), set(), []

    def ask():
        try:
            with server.client(token) as client:
                while not stop.is_set():
                    seen.add(client.get(target).status)
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong


@pytest.mark.tsan
def test_dictionaries_are_added_changed_and_removed_without_dropping_a_request(serve, refdata_db, token, reconfigure):
    """R15: one that stays is served throughout."""
    make_table(refdata_db, "one", {"a": '"first"'})
    make_table(refdata_db, "two", {"a": '"second"'})
    write_builtin(refdata_db, "STAYS", {"a": 1}, version=1)
    server = serve(refdata_db, pod("STAYS", sql_dictionary("T", "one")))
    client = server.client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == "first"
    with asking(server, token(), item_path("STAYS", "a")) as stays:
        for _ in range(3):
            reconfigure(server, refdata_db, pod("STAYS", sql_dictionary("T", "two"), sql_dictionary("NEW", "one")))
            assert client.get(item_path("NEW", "a")).json()["payload"] == "first"
            eventually(lambda: client.get(item_path("T", "a")).json()["payload"] == "second")
            reconfigure(server, refdata_db, pod("STAYS", sql_dictionary("T", "one")))
            assert client.get(item_path("NEW", "a")).code == "UNKNOWN_DICTIONARY"
            eventually(lambda: client.get(item_path("T", "a")).json()["payload"] == "first")
    assert stays == {200}
    assert len(server.logs(event="dictionary_loaded", dictCode="STAYS")) == 1


def test_a_changed_dictionary_is_served_throughout(serve, refdata_db, token, reconfigure):
    """R15: the old data is served until the new definition's is there."""
    make_table(refdata_db, "one", {"a": '"first"'})
    server = serve(refdata_db, pod(sql_dictionary("T", "one")))
    assert server.client(token()).get(item_path("T", "a")).status == 200
    with asking(server, token(), item_path("T", "a")) as seen:
        for _ in range(3):
            slow = {"code": "T", "loadSql": "select 'a' as k, '2'::jsonb as v from pg_sleep(0.2)", "shared": True}
            reconfigure(server, refdata_db, pod(slow))
            reconfigure(server, refdata_db, pod(sql_dictionary("T", "one")))
    assert seen == {200}


def test_a_changed_file_is_noticed_without_a_signal(serve, refdata_db, token, reconfigure):
    """R15: the file is watched, by name: it may be replaced."""
    server = serve(refdata_db, pod("A"))
    client = server.client(token())
    assert client.get(path("B", "/version")).status == 404
    reconfigure(server, refdata_db, pod("A", "B"), signal=False)
    eventually(lambda: client.get(path("B", "/version")).status == 200)


@pytest.mark.parametrize("bad", [
    lambda good: good + "unknown: 1\n",
    lambda good: good.replace('"B"', '"A"'),
    lambda good: good.replace("jdbc:postgresql:", "jdbc:oracle:"),
    lambda good: good + "\t:",
    lambda good: "",
    lambda good: good.replace("50ms", "soon"),
], ids=["unknown", "twice", "url", "yaml", "empty", "type"])
def test_a_bad_file_is_refused_whole_and_the_old_one_stays(serve, refdata_db, token, bad):
    """R15: nothing changes, the log says why, and a good file is taken afterwards."""
    server = serve(refdata_db, pod("A"))
    client = server.client(token())
    good = server.config_path.read_text().replace('code: "A"', 'code: "A"\n    -\n      code: "B"')
    server.write_config(bad(good))
    server.sighup()
    eventually(lambda: server.logs(event="config_refused"))
    problems = [line for line in server.logs(event="config_refused") if "freshet.yaml:" in line.get("error", "")]
    assert problems or bad(good) == ""
    assert client.get(path("A", "/version")).status == 200
    assert client.get(path("B", "/version")).status == 404
    server.write_config(good)
    server.sighup()
    eventually(lambda: client.get(path("B", "/version")).status == 200)


def test_a_file_that_is_gone_changes_nothing(serve, refdata_db, token):
    """R15."""
    server = serve(refdata_db, pod("A"))
    server.config_path.unlink()
    server.sighup()
    eventually(lambda: server.logs(event="config_refused"))
    assert server.client(token()).get(path("A", "/version")).status == 200


def test_what_needs_a_restart_is_said_and_the_rest_taken(serve, refdata_db, token, reconfigure):
    """R15: a setting that cannot change at run time is named."""
    server = serve(refdata_db, pod("A"))
    reconfigure(server, refdata_db, pod("A", "B", http={"workers": 3}))
    assert [line["field"] for line in server.logs(event="config_needs_restart")] == ["http.workers"]
    assert server.client(token()).get(path("B", "/version")).status == 200


def test_a_definition_postgresql_refuses_is_not_served_from_what_an_earlier_one_loads(serve, refdata_db, token,
                                                                                      reconfigure):
    """R15: a load of the old definition that comes back late does not bring a disabled dictionary to life."""
    server = serve(refdata_db, pod(slow_dictionary("T", 1)))
    waiting = server.raw()
    waiting.send(f"GET {item_path('T', 'k')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n".encode())
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(1)%%'"
                                        " and state = 'active' and pid <> pg_backend_pid()"))
    reconfigure(server, refdata_db, pod(sql_dictionary("T", "nowhere")))
    eventually(lambda: server.logs(event="dictionary_disabled"))
    assert waiting.read_response().status == 503
    eventually(lambda: not refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(1)%%'"
                                            " and state = 'active' and pid <> pg_backend_pid()"))
    client = server.client(token())
    for _ in range(30):
        assert client.get(item_path("T", "k")).code == "DICTIONARY_UNAVAILABLE"
        eventually(lambda: True, interval=0.01)
    reconfigure(server, refdata_db, pod(slow_dictionary("T", 0)))
    eventually(lambda: client.get(item_path("T", "k")).status == 200)


def test_a_definition_postgresql_refuses_leaves_what_is_served_as_it_is(serve, refdata_db, token, reconfigure):
    """R15: in memory it is still there. Health and metrics say so, and a repaired definition is loaded by itself."""
    make_table(refdata_db, "one", {"a": "1"})
    set_version(refdata_db, "T", 1)
    server = serve(refdata_db, pod(sql_dictionary("T", "one")))
    client = server.client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == 1
    reconfigure(server, refdata_db, pod(sql_dictionary("T", "two")))
    eventually(lambda: server.logs(event="dictionary_disabled"))
    eventually(lambda: server.metrics()['dict_unavailable{dict_code="T"}'] == 1)  # once the catalog is in force
    health = client.get("/actuator/health").json()["components"]["dictionary:T"]
    assert health["status"] == "DOWN" and "served" in str(health)
    answer = client.get(item_path("T", "a"), X_Min_Version="1")
    assert (answer.status, answer.json()["payload"], answer.headers["x-dict-version"]) == (200, 1, "1")
    assert client.get(item_path("T", "a"), X_Min_Version="2").code == "DICTIONARY_UNAVAILABLE"  # it has no more
    assert client.get(path("T", "/all")).status == 200
    make_table(refdata_db, "two", {"a": "2"})
    reconfigure(server, refdata_db, pod({**sql_dictionary("T", "two"), "loadSql": "select k, v from two where tenant_id = :tenantId "}))
    eventually(lambda: client.get(item_path("T", "a")).json()["payload"] == 2)
    assert server.metrics()['dict_unavailable{dict_code="T"}'] == 0
    assert client.get("/actuator/health").json()["components"]["dictionary:T"]["status"] == "UP"


def test_a_pod_stays_ready_while_a_new_preload_is_loading(serve, refdata_db, token, reconfigure):
    """C8: a query pod with loaded caches is ready, whatever else it is about to hold."""
    write_builtin(refdata_db, "A", {"a": 1}, version=1)
    server = serve(refdata_db, pod("A", cache={"preload": ["demo/A"]}))
    with asking(server, token(), "/actuator/health/readiness") as seen:
        reconfigure(server, refdata_db, pod("A", slow_dictionary("S", 0.5), cache={"preload": ["demo/A", "demo/S"]}))
        eventually(lambda: server.logs(event="dictionary_loaded", dictCode="S"))
    assert seen == {200}


def test_reloading_a_hundred_times_leaks_and_loses_nothing(serve, refdata_db, token):
    """R15: SIGHUPs in a row, as a nervous operator sends them."""
    make_table(refdata_db, "one", {"a": "1"})
    server = serve(refdata_db, pod("A", sql_dictionary("T", "one")))
    text = server.config_path.read_text()
    with asking(server, token(), item_path("T", "a")) as seen:
        for number in range(100):
            server.write_config(text.replace("from one", f"from one /* {number} */"))
            server.sighup()
        eventually(lambda: server.logs(event="config_reloaded"))
        server.write_config(text)
        before = len(server.logs(event="config_reloaded"))
        server.sighup()
        eventually(lambda: len(server.logs(event="config_reloaded")) > before)
    assert seen == {200}


def test_a_smaller_memory_budget_takes_effect_at_once(serve, refdata_db, token, reconfigure):
    """R15, R17: the budget is reloadable."""
    for code in ["ONE", "TWO", "THREE"]:
        make_table(refdata_db, code.lower())
        refdata_db.query(f"insert into {code} select 'demo', i::text, to_jsonb(repeat('x', 1000))"
                         " from generate_series(1, 2000) i")
    dictionaries = [sql_dictionary(code) for code in ["ONE", "TWO", "THREE"]]
    server = serve(refdata_db, pod(*dictionaries))
    client = server.client(token())
    for code in ["ONE", "TWO", "THREE"]:
        assert client.get(item_path(code, "1")).status == 200
    reconfigure(server, refdata_db, pod(*dictionaries, cache={"memory": "6MiB"}))
    eventually(lambda: server.logs(event="dictionary_evicted"))
    assert client.get(item_path("ONE", "1")).status == 200


def test_a_row_that_is_too_large_is_named_and_not_tried_again_before_it_changes(serve, refdata_db, token):
    """C6, R13: what a dictionary's own SQL brings is bounded too; what is in memory is served meanwhile."""
    make_table(refdata_db, "big", {"a": "1", "huge": "1"})
    set_version(refdata_db, "BIG", 1)
    server = serve(refdata_db, pod(sql_dictionary("BIG")), args=("--roles", "query"))
    client = server.client(token("demo"))
    assert client.get(item_path("BIG", "huge")).json()["payload"] == 1
    refdata_db.query("update big set v = ('[' || repeat('1e131071,', 200) || '1]')::jsonb where k = 'huge'")
    set_version(refdata_db, "BIG", 2)
    (line,) = eventually(lambda: server.logs(event="dictionary_load_failed"))
    assert 'the payload of key "huge" has' in line["error"] and line["retryMs"] >= 60_000
    assert client.get(item_path("BIG", "huge")).json()["payload"] == 1
    refdata_db.query("update big set v = '2' where k = 'huge'")
    set_version(refdata_db, "BIG", 3)
    eventually(lambda: client.get(item_path("BIG", "huge")).json()["payload"] == 2)
    assert len(server.logs(event="dictionary_load_failed")) == 1


def test_a_corrected_definition_is_loaded_at_once_after_a_row_that_was_too_large(serve, refdata_db, token, reconfigure):
    """R17: the pause after such a row is the old definition's."""
    make_table(refdata_db, "big", {"a": "1"})
    refdata_db.query("""insert into big values ('demo', 'huge', ('[' || repeat('1e131071,', 200) || '1]')::jsonb)""")
    set_version(refdata_db, "BIG", 1)
    large = sql_dictionary("BIG")
    jitter = {"jitter": "100ms"}
    cut = {**large, "loadSql": f"select k, case k when 'huge' then '2' else v end as v from ({large['loadSql']}) b"}
    server = serve(refdata_db, pod(cut, cache=jitter), args=("--roles", "query"))
    client = server.client(token("demo"))
    assert client.get(item_path("BIG", "a")).json()["payload"] == 1
    reconfigure(server, refdata_db, pod(large, cache=jitter))
    eventually(lambda: server.logs(event="dictionary_load_failed"))
    reconfigure(server, refdata_db, pod({**cut, "loadSql": cut["loadSql"].replace("'2'", "'3'")}, cache=jitter))
    eventually(lambda: client.get(item_path("BIG", "huge")).json()["payload"] == 3)


def test_versions_of_the_database_that_a_dictionary_has_left_do_not_count(
        serve, refdata_db, postgres, jwks_path, tmp_path, token, reconfigure):  # pylint: disable=too-many-arguments
    """R14, R20: the sweep that reads them began before the reload and ends after it."""
    second = migrated(postgres, jwks_path, tmp_path)
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    write_builtin(refdata_db, "STAYS", {"a": 1}, version=1)
    write_builtin(second, "D", {"a": 2}, version=1)
    blocks = [{"name": name, "jdbcUrl": db.jdbc_url, "username": db.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
              for name, db in [("first", refdata_db), ("second", second)]]
    settings = lambda where, jitter: merge(
        pod({"code": "D", "postgres": where}, {"code": "STAYS", "postgres": "first"},
            cache={"sweepInterval": "1h", "jitter": jitter}), {"refdata": {"postgres": blocks}})
    server = serve(refdata_db, settings("first", "0ms"))
    client = server.client(token())
    assert [client.get(item_path(code, "a")).json()["payload"] for code in ("D", "STAYS")] == [1, 1]
    with contextlib.closing(refdata_db.connect()) as connection:
        connection.autocommit = False
        cursor = connection.cursor()
        cursor.execute("lock table refdata.dictionary_meta")
        reconfigure(server, refdata_db, settings("first", "1ms"))  # a reload begins a sweep
        eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                                            " and datname = current_database() and query like '%dictionary_meta%'"))
        reconfigure(server, refdata_db, settings("second", "1ms"))
        eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == 2)
        cursor.execute("update refdata.dictionary_meta set version = 1000")
        connection.commit()
    lag = lambda code: server.metrics()[f'dict_version_lag{{tenant="demo",dict_code="{code}"}}']
    eventually(lambda: server.metrics()['dict_version{tenant="demo",dict_code="STAYS"}'] == 1000)
    assert (lag("D"), lag("STAYS")) == (0, 0)
    server.stop()
    second.drop()
