"""R16: a pod loads just the changed keys, and everything whenever that would not be sure to be right."""
import contextlib
import json
import threading

import pytest

from lib.changes import ALL, Changes, content, loads
from lib.refdata import item_path, make_table, path, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

QUERY = ("--roles", "query")


@pytest.fixture
def changes(refdata_db):
    with contextlib.closing(Changes(refdata_db, "D")) as writer:
        yield writer


@pytest.fixture
def started(serve, refdata_db, token):
    """started(items, cache=…, dictionary=…): a pod that holds D at version 1."""

    def start(items, cache=None, dictionary="D"):
        write_builtin(refdata_db, "D", items, version=1)
        server = serve(refdata_db, pod(dictionary, cache={"preload": ["demo/D"], **(cache or {})}), args=QUERY)
        client = server.client(token())
        assert content(client, "D") == (1, items)
        return server, client

    return start


def digest_of_full_load(serve, database, token):
    """What a pod that knows nothing of changes makes of it."""
    with contextlib.closing(serve(database, pod("D"), args=QUERY).client(token())) as client:
        return client.get(path("D", "/version")).json()["digest"]


def test_only_the_changed_keys_are_loaded(started, serve, changes, refdata_db, token):
    items = {f"k{i:04}": {"n": i} for i in range(3000)}
    server, client = started(items)
    changes.write({"k0001": {"n": -1}, "new": [1, "zwei"], "k0002": None, "never was": None})
    eventually(lambda: content(client, "D")[0] == 2)
    items.update({"k0001": {"n": -1}, "new": [1, "zwei"]})
    del items["k0002"]
    assert content(client, "D") == (2, items)
    assert (loads(server, "D", "full"), loads(server, "D", "delta")) == (1, 1)
    assert server.metrics()['refdata_freshness_seconds_count{dict_code="D"}'] == 1
    assert client.get(path("D", "/version")).json()["digest"] == digest_of_full_load(serve, refdata_db, token)


def test_several_versions_are_one_load_and_the_last_state_of_each_key_counts(started, changes):
    server, client = started({"a": 1, "b": 1, "c": 1}, cache={"sweepInterval": "1h"})
    with changes.together():
        for items in ({"a": 2}, {"a": None, "b": 2}, {"a": 3}, {"b": None}, {"c": None, "d": 4}, {}, {"c": 5}):
            last = changes.write(items, tell=False)
    changes.tell(last)
    eventually(lambda: content(client, "D")[0] == last)
    assert content(client, "D") == (8, {"a": 3, "c": 5, "d": 4})
    assert (loads(server, "D", "full"), loads(server, "D", "delta")) == (1, 1)


def test_any_key_can_change_alone(started, changes):
    """Keys go to PostgreSQL and back as elements of a text[]."""
    keys = ["", " ", ",", "{}", '"', "\\", "a\\\"b", "NULL", "null", "'", "\n\t", "Ключ", "\U0001f600", "x" * 1024, "a,b", "$1", "%s"]
    server, client = started({key: 1 for key in keys[1:]})
    version = changes.write({key: 2 for key in keys[1:]}, keys=keys)
    eventually(lambda: content(client, "D")[0] == version)
    assert content(client, "D")[1] == {key: 2 for key in keys[1:]}
    assert loads(server, "D", "full") == 1


@pytest.mark.parametrize("how", ["trimmed", "trimmed first", "all keys", "behind", "too many"])
def test_what_is_not_known_for_sure_is_loaded_in_full(started, changes, how):
    """R16: versions without their row or keys, or more keys than a full load is worth."""
    server, client = started({"a": 1, "b": 1}, cache={"sweepInterval": "1h"})
    spoil = {
        "trimmed": "delete from refdata.outbox_event where version = 3",
        "trimmed first": "delete from refdata.outbox_event where version = 2",
        "behind": "delete from refdata.outbox_event where version = 4",
        "too many": "update refdata.outbox_event set keys = array(select 'x' || i from generate_series(1, 1001) i)"
                    " where version = 3",
    }
    with changes.together():
        changes.write({"a": 2}, tell=False)
        changes.write({"b": 2}, tell=False, keys=ALL if how == "all keys" else None)
        changes.write({"c": 3}, tell=False)
        changes.execute(spoil.get(how, "select"))
    changes.tell(4)
    eventually(lambda: content(client, "D")[0] == 4)
    assert content(client, "D")[1] == {"a": 2, "b": 2, "c": 3}
    assert (loads(server, "D", "full"), loads(server, "D", "delta")) == (2, 0)
    changes.write({"a": 5})  # and from there on changes are enough again
    eventually(lambda: content(client, "D") == (5, {"a": 5, "b": 2, "c": 3}))
    assert loads(server, "D", "delta") == 1


def test_a_version_that_goes_back_is_loaded_in_full(started, changes, refdata_db):
    """R14: a restore loses the tail; the outbox rows that came before it are no changes from here."""
    server, client = started({"a": 1})
    for value in (2, 3, 4):
        changes.write({"a": value})
    eventually(lambda: content(client, "D") == (4, {"a": 4}))
    full = loads(server, "D", "full")
    write_builtin(refdata_db, "D", {"a": "restored"}, version=2)
    eventually(lambda: content(client, "D") == (2, {"a": "restored"}))
    assert loads(server, "D", "full") == full + 1
    assert server.metrics()['dict_version_regressions_total{dict_code="D"}'] == 1


def test_a_history_that_went_back_and_on_unseen_is_not_taken_for_the_old_one(started, changes, refdata_db):
    """R14, R16: a restore loses versions 3 and 4, and two others get their numbers before the pod looks again."""
    server, client = started({"a": 1, "b": 1, "c": 1}, cache={"sweepInterval": "1h"})
    with changes.together():
        for value in (2, 3, 4):
            changes.write({"a": value}, tell=False)
    changes.tell(4)
    eventually(lambda: content(client, "D") == (4, {"a": 4, "b": 1, "c": 1}))
    with changes.together():
        changes.execute("delete from refdata.outbox_event where version > 2;"
                        " update refdata.dictionary_item set payload = '2' where item_key = 'a';"
                        " update refdata.dictionary_meta set version = 2")
        for items in ({"b": "new"}, {}, {"c": "new"}):
            last = changes.write(items, tell=False)
    changes.tell(last)
    eventually(lambda: content(client, "D")[0] == 5)
    assert content(client, "D") == (5, {"a": 2, "b": "new", "c": "new"})


KEYS = {
    "others": "select k, v from t where tenant_id = :tenantId and (k = any(:keys) or k = 'other')",
    "everything": "select k, v from t where tenant_id = :tenantId and :keys::text[] is not null",
    "wrong ones": "select k || '!' as k, v from t where tenant_id = :tenantId and k = any(:keys)",
    "an error": "select k, (v::text::int / 0 * v::text::int)::text::jsonb as v from t"
                " where tenant_id = :tenantId and k = any(:keys)",
    "as it should": "select k, v from t where tenant_id = :tenantId and k = any(:keys)",
}


@pytest.mark.parametrize("gives", KEYS)
def test_what_load_keys_sql_gives_beside_the_keys_does_no_harm(serve, refdata_db, token, changes, gives):
    make_table(refdata_db, "t", {"a": "1", "b": "1", "other": "1"})
    set_version(refdata_db, "D", 1)
    definition = {"code": "D", "loadSql": "select k, v from t where tenant_id = :tenantId", "loadKeysSql": KEYS[gives]}
    server = serve(refdata_db, pod(definition, cache={"preload": ["demo/D"]}), args=QUERY)
    client = server.client(token())
    changes.write(keys=["a", "b"], sql="update t set v = '2' where k = 'a'; delete from t where k = 'b'")
    eventually(lambda: content(client, "D") == (2, {"a": 2, "other": 1}))
    assert loads(server, "D", "delta") == (gives == "as it should")


@pytest.mark.parametrize("reload, sql, delta", [("FULL", False, 0), ("DELTA", False, 1), ("FULL", True, 0), ("DELTA", True, 1)])
def test_reload_on_event_decides(serve, refdata_db, token, changes, reload, sql, delta):
    make_table(refdata_db, "t", {"a": "1"})
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    definition = {"code": "D", "reloadOnEvent": reload}
    if sql:
        definition |= {"loadSql": "select k, v from t where tenant_id = :tenantId", "loadKeysSql": KEYS["as it should"]}
    server = serve(refdata_db, pod(definition, cache={"preload": ["demo/D"]}), args=QUERY)
    changes.write({"a": 2}, sql="update t set v = '2'")
    eventually(lambda: content(server.client(token()), "D") == (2, {"a": 2}))
    assert (loads(server, "D", "full"), loads(server, "D", "delta")) == (2 - delta, delta)


# ---- audits ----

@pytest.mark.parametrize("changed_since", [False, True])
def test_data_changed_behind_everybodys_back_is_found_by_its_digest_and_repaired(started, changes, refdata_db, changed_since):
    """R16: the digest differs."""
    server, client = started({"a": 1, "b": 1, "c": 1}, cache={"digestCheckInterval": "100ms"})
    refdata_db.query("update refdata.dictionary_item set payload = '\"secret\"' where item_key = 'b'")
    if changed_since:
        changes.write({"a": 2})
    eventually(lambda: content(client, "D")[1] == {"a": 2 if changed_since else 1, "b": "secret", "c": 1})
    assert server.metrics()['dict_digest_mismatches_total{dict_code="D"}'] == 1
    found = server.logs(event="dictionary_digest_mismatch")
    assert len(found) == 1 and (found[0]["level"], found[0]["dictCode"]) == ("error", "D")
    changes.write({"c": 3})
    eventually(lambda: content(client, "D")[1]["c"] == 3)


def test_audits_of_what_is_right_find_nothing(started, changes):
    """R16: also while changes stream in, though the two ways are built at different moments of a pod's life."""
    server, client = started({f"k{i:03}": 0 for i in range(500)}, cache={"digestCheckInterval": "10ms", "sweepInterval": "10ms"})
    for n in range(1, 81):
        last = changes.write({f"k{n % 500:03}": n, f"k{(n * 7) % 500:03}": None if n % 3 else n})
    eventually(lambda: content(client, "D")[0] == last)
    metrics = server.metrics()
    assert metrics['dict_digest_mismatches_total{dict_code="D"}'] == 0
    assert loads(server, "D", "full") == 1 and loads(server, "D", "delta") > 1


# ---- one version at a time ----

@pytest.mark.tsan
def test_every_answer_is_exactly_one_version_while_deltas_stream_in(started, changes, token):
    """R4, R5, R13: the generator knows what each version holds; no answer may hold anything else, nor go back."""
    keys = [f"k{i:03}" for i in range(100)]
    server, _ = started({key: 1 for key in keys})
    states, stop, wrong = {1: {key: 1 for key in keys}}, threading.Event(), []

    def check(body, version, asked):
        expected = {key: payload for key, payload in states[version].items() if key in asked}
        assert {item["key"]: item["payload"] for item in body} == expected, version

    def read(target, asked):
        last = 0
        try:
            with server.client(token()) as client:
                while not stop.is_set():
                    answer = client.get(target)
                    version = int(answer.headers["x-dict-version"])
                    assert version >= last
                    last = version
                    check(answer.json()["items"], version, asked)
        except (AssertionError, KeyError, OSError) as error:
            wrong.append(repr(error)[:2000])

    some = keys[::10] + ["extra"]
    readers = [threading.Thread(target=read, args=(path("D", "/all?limit=10000"), [*keys, "extra"])),
               threading.Thread(target=read, args=(path("D", "/items?keys=" + ",".join(some)), some))]
    for reader in readers:
        reader.start()
    state = states[1]
    for n in range(2, 102):
        change = {keys[(n * step) % 100]: n for step in (1, 3, 7, 20)} | {"extra": n if n % 2 else None}
        state = {key: payload for key, payload in (state | change).items() if payload is not None}
        states[n] = state  # before it is committed
        assert changes.write(change) == n
    with server.client(token()) as client:
        eventually(lambda: wrong or content(client, "D") == (101, state))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong, wrong[0]
    assert loads(server, "D", "full") == 1


def test_a_demanded_version_comes_by_its_keys(started, changes):
    """R7: the barrier's own reload is a delta too."""
    server, client = started({"a": 1}, cache={"sweepInterval": "1h"})
    for n in range(2, 30):
        changes.write({"a": n}, tell=False)
        answer = client.request("GET", item_path("D", "a"), headers={"X-Min-Version": str(n)})
        assert (answer.status, answer.json()["payload"], int(answer.headers["x-dict-version"])) == (200, n, n)
    assert loads(server, "D", "full") == 1


def test_deltas_are_logged_at_debug_only(started, changes):
    server, client = started({"a": 1})
    changes.write({"a": 2})
    eventually(lambda: content(client, "D") == (2, {"a": 2}))
    assert [line["mode"] for line in server.logs(event="dictionary_loaded")] == ["full"]
    assert json.dumps(server.logs()).count("dictionary_load_failed") == 0
