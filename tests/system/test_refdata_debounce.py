"""R13: full reloads of a pair start a window apart, leading edge; deltas and readers at the barrier do not wait for it."""
import contextlib
import threading
import time
from datetime import datetime

import pytest

from lib.changes import Changes, content, loads, tell
from lib.config import base_config, merge
from lib.refdata import (item_path, make_table, migrated, path, pod, refdata_db, set_version, write_builtin)  # noqa: F401
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

QUERY = ("--roles", "query")
FULL, DELTA = {"code": "D", "reloadOnEvent": "FULL"}, {"code": "D", "reloadOnEvent": "DELTA"}
LONGEST = "10s"


@pytest.fixture
def changes(refdata_db):
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    with contextlib.closing(Changes(refdata_db, "D")) as writer:
        yield writer


def reader(serve, database, token, dictionary, debounce, **cache):
    cache = {"preload": ["demo/D"], "sweepInterval": "1h", "debounce": debounce, **cache}
    server = serve(database, pod(dictionary, cache=cache), args=QUERY)
    client = server.client(token())
    assert client.get(path("D", "/version")).status == 200
    return server, client


def handled(server, database):
    """All that was told before has reached the pod."""
    before = server.metrics()['refdata_invalidations_unreadable_total{database="main"}']
    tell(database, "a mark")
    eventually(lambda: server.metrics()['refdata_invalidations_unreadable_total{database="main"}'] > before)


def test_preloads_of_a_start_begin_at_random_moments(serve, refdata_db, token):
    """R13: many pods that start at once do not load in step."""
    codes = [f"D{number}" for number in range(10)]
    server = serve(refdata_db, pod(*codes, cache={"preload": [f"demo/{code}" for code in codes], "jitter": "4s"}))
    client = server.client(token())
    loaded = [datetime.fromisoformat(client.get(path(code, "/version")).json()["loadedAt"].rstrip("Z")) for code in codes]
    assert (max(loaded) - min(loaded)).total_seconds() > 0.8  # by chance less: once in 200,000 starts


def test_changes_within_the_window_share_one_load(serve, refdata_db, token, changes):
    window_s = 0.5
    server, client = reader(serve, refdata_db, token, FULL, "500ms")
    before, began = loads(server, "D", "full"), time.monotonic()
    for n in range(2, 42):
        last = changes.write({"a": n})
    eventually(lambda: content(client, "D") == (last, {"a": last}))
    windows = (time.monotonic() - began) / window_s
    assert 1 <= loads(server, "D", "full") - before <= windows + 1


def test_the_first_change_after_a_quiet_window_loads_at_once(serve, refdata_db, token, changes):
    """Leading edge: nobody waits for a window that has passed."""
    server, client = reader(serve, refdata_db, token, FULL, "4s")
    assert len(server.logs(event="dictionary_loaded", dictCode="D")) == 1
    time.sleep(4.1)
    told = time.monotonic()
    changes.write({"a": 2})
    eventually(lambda: content(client, "D")[0] == 2)
    assert time.monotonic() - told < 3.9  # a trailing edge would be four seconds from here


def test_deltas_do_not_wait(serve, refdata_db, token, changes):
    server, client = reader(serve, refdata_db, token, DELTA, LONGEST)
    began = time.monotonic()
    for n in range(2, 12):
        changes.write({"a": n})
        eventually(lambda n=n: content(client, "D") == (n, {"a": n}))
    assert loads(server, "D", "delta") == 10 and loads(server, "D", "full") == 1
    assert time.monotonic() - began < 9 * 10  # of ten windows not even nine


def test_a_reader_at_the_barrier_skips_it(serve, refdata_db, token, changes):
    server, client = reader(serve, refdata_db, token, FULL, LONGEST)
    for n in range(2, 12):
        changes.write({"a": n})
        if n % 2:
            handled(server, refdata_db)  # it is known, and waits for the window
        answer = client.request("GET", item_path("D", "a"), headers={"X-Min-Version": str(n)})
        assert (answer.status, answer.json()["payload"], int(answer.headers["x-dict-version"])) == (200, n, n)
    assert content(client, "D") == (11, {"a": 11})  # and the reload it set off is everybody's


def test_a_reader_who_was_refused_at_the_barrier_skips_it_no_longer(serve, refdata_db, token, changes):
    """R7, R13: a made-up version must not switch the debounce off for good."""
    window_s = 0.5
    server, client = reader(serve, refdata_db, token, FULL, "500ms")
    assert client.request("GET", item_path("D", "a"), headers={"X-Min-Version": "999"}).code == "VERSION_NOT_COMMITTED"
    changes.write({"a": 2})
    eventually(lambda: content(client, "D") == (2, {"a": 2}))
    before, began = loads(server, "D", "full"), time.monotonic()
    for n in range(3, 43):
        last = changes.write({"a": n})
        handled(server, refdata_db)  # so that no two of them are one message
    eventually(lambda: content(client, "D") == (last, {"a": last}))
    windows = (time.monotonic() - began) / window_s
    assert loads(server, "D", "full") - before <= windows + 1


def test_what_is_told_during_a_load_that_brings_it_is_not_loaded_again(serve, refdata_db, token):
    """R13: an invalidation during a load makes it run once more, if the load did not see that version."""
    make_table(refdata_db, "t", {"a": "1"})
    refdata_db.query("create table slow(seconds float8)")
    set_version(refdata_db, "D", 1)
    load = ("select t.k, t.v from t cross join (select pg_sleep(coalesce(max(seconds), 0)) from slow) as pause"
            " where t.tenant_id = :tenantId")
    server, client = reader(serve, refdata_db, token, {"code": "D", "loadSql": load}, "0ms")
    refdata_db.query("insert into slow values (0.7)")
    asleep = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
    with contextlib.closing(Changes(refdata_db, "D")) as writer:
        last = writer.write(sql="update t set v = '2'")
        eventually(lambda: refdata_db.value(asleep) == 1)
        for _ in range(20):
            writer.tell(last)  # the load under way has it
        eventually(lambda: content(client, "D") == (last, {"a": 2}))
        handled(server, refdata_db)
        assert refdata_db.value(asleep) == 0 and loads(server, "D", "full") == 2
        last = writer.write(sql="update t set v = '3'")
        eventually(lambda: refdata_db.value(asleep) == 1)
        last = writer.write(sql="update t set v = '4'")  # the load under way began before
        eventually(lambda: content(client, "D") == (last, {"a": 4}))
        assert loads(server, "D", "full") == 4


# ---- a definition that changes while somebody waits at the barrier ----

@pytest.fixture
def moved(serve, postgres, refdata_db, token, jwks_path, tmp_path):
    """moved(there, version, waitMs): a pod whose dictionary D (version 1) can be moved to a database where it has that
    version; returns (server, move)."""
    other = migrated(postgres, jwks_path, tmp_path)
    write_builtin(refdata_db, "D", {"a": "here"}, version=1)

    def configuration(dictionary, wait_ms):
        changed = pod(dictionary, cache={"preload": ["demo/D"]})
        changed["refdata"]["barrier"] = {"waitMs": wait_ms}
        changed["refdata"]["postgres"] = [{**base_config(db, jwks_path)["refdata"]["postgres"], "name": name}
                                          for name, db in (("main", refdata_db), ("other", other))]
        return merge(base_config(refdata_db, jwks_path), changed)

    def start(version, wait_ms):
        write_builtin(other, "D", {"a": "there"}, version=version)
        server = serve(refdata_db, config=configuration("D", wait_ms), args=QUERY)
        assert server.client(token()).get(item_path("D", "a")).json()["payload"] == "here"

        def move(dictionary=None):
            server.write_config(configuration(dictionary or {"code": "D", "postgres": "other"}, wait_ms))
            server.sighup()

        return server, move

    yield start
    serve.stop()
    other.drop()


def parked(server, token, version, rest="/items/a"):
    """A reader at the barrier; join() gives its answer."""
    answers = []

    def ask():
        with server.client(token()) as client:
            answers.append(client.request("GET", path("D", rest), headers={"X-Min-Version": str(version)}))

    thread = threading.Thread(target=ask)
    thread.start()

    def join():
        thread.join()
        return answers[0]

    return join


@pytest.mark.parametrize("rest", ["/items/a", "/items?keys=a", "/all"])
def test_a_dictionary_moved_to_another_database_answers_those_who_wait_from_there(moved, token, rest):
    server, move = moved(version=7, wait_ms=60000)
    join = parked(server, token, 5, rest)
    time.sleep(0.3)  # it waits by now, most likely; nothing depends on it
    move()
    answer = join()
    assert (answer.status, answer.headers["x-dict-version"]) == (200, "7")
    assert b"there" in answer.body and b"here\"" not in answer.body.replace(b"there", b"")
    assert server.metrics()['dict_version_regressions_total{dict_code="D"}'] == 0


def test_versions_of_a_dictionary_moved_are_those_of_where_it_is_now(moved, token):
    server, move = moved(version=3, wait_ms=1500)
    join = parked(server, token, 5)
    move()
    answer = join()
    assert (answer.status, answer.code, answer.json()["committedVersion"]) == (409, "VERSION_NOT_COMMITTED", 3)
    write = server.client(token())
    eventually(lambda: content(write, "D") == (3, {"a": "there"}))
    assert server.metrics()['dict_version_regressions_total{dict_code="D"}'] == 0


def test_a_question_that_the_old_database_does_not_answer_is_asked_of_the_new_one(moved, refdata_db, token):
    server, move = moved(version=7, wait_ms=100)
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("begin; lock table refdata.dictionary_meta in access exclusive mode")
        joins = [parked(server, token, 5) for _ in range(5)]
        eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock'") > 0)
        move()
        eventually(lambda: server.client(token()).get(item_path("D", "a")).json()["payload"] == "there")
        cursor.execute("rollback")
        answers = [join() for join in joins]
    assert {(answer.status, answer.headers["x-dict-version"], answer.json()["payload"]) for answer in answers} == {(200, "7", "there")}


def test_a_definition_that_postgresql_refuses_ends_the_wait(moved, token):
    """R15: nobody waits for what it would load; what is held goes on being served."""
    server, move = moved(version=7, wait_ms=60000)
    join = parked(server, token, 5)
    time.sleep(0.3)
    move({"code": "D", "loadSql": "select k, v from nowhere where tenant_id = :tenantId"})
    answer = join()
    assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE")
    assert server.client(token()).get(item_path("D", "a")).status == 200
