"""R14 on the embedded bus: pods are told, whatever happens to the messages; and where nobody tells, the sweep finds out."""
import contextlib
import json
import signal
import threading
import time

import pytest

from lib.changes import Changes, content, loads, tell
from lib.config import base_config
from lib.refdata import item_path, migrated, path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

QUERY = ("--roles", "query")
DEAF_SWEEP = {"sweepInterval": "1h"}  # what a pod learns, it is told


@pytest.fixture
def changes(refdata_db):
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    with contextlib.closing(Changes(refdata_db, "D")) as writer:
        yield writer


def reader(serve, database, token, *dictionaries, cache=None):
    """A pod that holds D, and a client of it."""
    server = serve(database, pod(*(dictionaries or ("D",)), cache={"preload": ["demo/D"], **DEAF_SWEEP, **(cache or {})}), args=QUERY)
    client = server.client(token())
    assert client.get(path("D", "/version")).status == 200
    return server, client


def unreadable(server):
    return server.metrics()['refdata_invalidations_unreadable_total{database="main"}']


def is_told(changes, client):
    """One change, told, is served: so all messages before it on partition 0 have been handled too."""
    last = changes.write({"told": True})
    eventually(lambda: content(client, "D")[0] >= last)
    return last


@pytest.mark.tsan
def test_what_is_told_is_loaded_by_every_pod(serve, refdata_db, token, changes):
    pods = [reader(serve, refdata_db, token)[1] for _ in range(2)]
    for n in range(2, 30):
        changes.write({"a": n})
    for client in pods:
        eventually(lambda c=client: content(c, "D") == (29, {"a": 29}))


def test_what_nobody_tells_is_found_by_the_sweep(serve, refdata_db, token, changes):
    """R14: which alone must be enough."""
    _, client = reader(serve, refdata_db, token, cache={"sweepInterval": "50ms"})
    for n in range(2, 10):
        changes.write({"a": n}, tell=False)
    eventually(lambda: content(client, "D") == (9, {"a": 9}))


GOOD = {"eventId": "6f9619ff-8b86-4011-b42d-00c04fc964ff", "tenantId": "demo", "dictCode": "D", "version": 999,
        "committedAt": "2026-02-27T12:00:01Z"}


def spoiled():
    """Everything but seed §8.2."""
    yield from ["", " ", "null", "[]", "{}", "7", '"x"', "{", "not json", "\x00", "\ufeff" + json.dumps(GOOD), json.dumps([GOOD]),
                json.dumps(GOOD) + "x", json.dumps(GOOD)[:-1] + ',"version":5}', "[" * 100000, b"\xff\xfe", b"\x80" * 100]
    for name in GOOD:
        yield json.dumps({key: value for key, value in GOOD.items() if key != name})
        for value in (None, [], {}, True, ""):
            yield json.dumps({**GOOD, name: value})
    for version in (0, -1, 1.5, "7", 1e30, 2**63, 2**80):
        yield json.dumps({**GOOD, "version": version})
    for name in ("a/b", "x" * 65, "\x00", "Ü", "a b", "../x"):
        yield json.dumps({**GOOD, "tenantId": name})
        yield json.dumps({**GOOD, "dictCode": name})
    yield json.dumps({**GOOD, "eventId": "nonsense"})
    yield json.dumps({**GOOD, "committedAt": "yesterday"})


def test_garbage_on_the_topic_is_counted_and_harmless(serve, refdata_db, token, changes):
    server, client = reader(serve, refdata_db, token)
    is_told(changes, client)
    before = sum(loads(server, "D", mode) for mode in ("full", "delta"))
    garbage = list(spoiled())
    tell(refdata_db, *garbage)
    eventually(lambda: unreadable(server) == len(garbage))
    assert sum(loads(server, "D", mode) for mode in ("full", "delta")) == before
    is_told(changes, client)
    assert unreadable(server) == len(garbage)
    assert "nonsense" not in server.log() and "yesterday" not in server.log()  # what came is never logged


def test_more_members_and_another_order_are_understood(serve, refdata_db, token, changes):
    server, client = reader(serve, refdata_db, token)
    is_told(changes, client)
    last = changes.write({"a": 2}, tell=False)
    message = {"extra": [1, {"b": None}], **dict(reversed(list(changes.message(last).items())))}
    tell(refdata_db, "\n " + json.dumps(message, indent=3).replace('"demo"', '"\\u0064emo"'))
    eventually(lambda: content(client, "D")[0] == last)
    assert unreadable(server) == 0


def test_repeated_reordered_and_old_ones_load_nothing_again(serve, refdata_db, token, changes):
    server, client = reader(serve, refdata_db, token)
    last = is_told(changes, client)
    with changes.together():
        for n in range(10):
            last = changes.write({"a": n}, tell=False)
    messages = [json.dumps(changes.message(version)) for version in range(1, last + 1)]
    tell(refdata_db, *reversed(messages))
    eventually(lambda: content(client, "D")[0] == last)
    before = loads(server, "D", "delta")
    tell(refdata_db, *(messages * 20))
    other = json.dumps({**GOOD, "dictCode": "OTHER"})  # not held, not even known
    tell(refdata_db, *[other] * 10, *messages)
    tell(refdata_db, "a mark")
    eventually(lambda: unreadable(server) == 1)
    assert (loads(server, "D", "delta"), loads(server, "D", "full")) == (before, 1)
    assert client.get(path("OTHER", "/version")).code == "UNKNOWN_DICTIONARY"


@pytest.mark.parametrize("reload", ["FULL", "DELTA"])
def test_a_version_that_never_was_is_looked_for_once(serve, refdata_db, token, changes, reload):
    """Nobody can have a pod load again and again by naming a version that does not come."""
    server, client = reader(serve, refdata_db, token, {"code": "D", "reloadOnEvent": reload})
    is_told(changes, client)
    tell(refdata_db, *[json.dumps(changes.message(10**15))] * 50)
    tell(refdata_db, "a mark")
    eventually(lambda: unreadable(server) == 1)

    def is_quiet():
        before = loads(server, "D", "full")
        time.sleep(0.3)
        return loads(server, "D", "full") == before

    eventually(is_quiet, timeout=20)
    last = is_told(changes, client)
    assert content(client, "D") == (last, {"a": 1, "told": True})
    assert reload == "FULL" or loads(server, "D", "full") == 1


def test_a_pair_that_is_not_held_is_not_loaded(serve, refdata_db, token, changes):
    server = serve(refdata_db, pod("D", "E", cache={**DEAF_SWEEP, "preload": ["demo/E"]}), args=QUERY)
    changes.write({"a": 2})
    tell(refdata_db, "a mark")
    eventually(lambda: unreadable(server) == 1)
    assert server.logs(event="dictionary_loaded", dictCode="D") == []
    assert content(server.client(token()), "D") == (2, {"a": 2})


def test_the_same_name_in_another_database_is_another_dictionary(serve, postgres, refdata_db, token, changes, jwks_path, tmp_path):
    """R15: each database has its own tables, and its own say."""
    other = migrated(postgres, jwks_path, tmp_path)
    write_builtin(other, "D", {"a": "other"}, version=1)
    blocks = [{**base_config(db, jwks_path)["refdata"]["postgres"], "name": name} for name, db in (("main", refdata_db), ("other", other))]
    configuration = pod({"code": "D", "postgres": "other", "reloadOnEvent": "FULL"}, "E", cache={**DEAF_SWEEP, "preload": ["demo/D"]})
    configuration["refdata"]["postgres"] = blocks
    server = serve(refdata_db, configuration, args=QUERY)
    client = server.client(token())
    with contextlib.closing(Changes(other, "D")) as others:
        last = others.write({"a": "changed"})
        eventually(lambda: content(client, "D")[0] == last)
        before = loads(server, "D", "full")
        changes.tell(last + 5)
        tell(refdata_db, "a mark")
        eventually(lambda: unreadable(server) == 1)
        assert loads(server, "D", "full") == before
    server.stop()
    other.drop()


@pytest.mark.parametrize("lost", [False, True], ids=["told", "messages gone"])
def test_a_pod_stopped_while_fifty_changes_happen_is_right_afterwards(serve, refdata_db, token, changes, lost):
    """R14: by the messages that waited; and where retention took them, by comparing every version."""
    server, client = reader(serve, refdata_db, token)
    awake = reader(serve, refdata_db, token)[1]
    is_told(changes, client)
    server.process.send_signal(signal.SIGSTOP)
    try:
        for n in range(50):
            last = changes.write({f"k{n % 7}": n, "a": None if n % 2 else n})
        expected = eventually(lambda: content(awake, "D") if content(awake, "D")[0] == last else None)
        if lost:
            refdata_db.query("delete from platform.bus_message where topic = 'refdata.invalidations'")
    finally:
        server.process.send_signal(signal.SIGCONT)
    eventually(lambda: content(client, "D") == expected)


def test_changes_of_many_pairs_at_once_reach_all(serve, refdata_db, token):
    tenants = [f"t{i}" for i in range(20)]
    for tenant in tenants:
        write_builtin(refdata_db, "D", {"a": 1}, version=1, tenant=tenant)
    server = serve(refdata_db, pod("D", cache={**DEAF_SWEEP, "preload": ["*/D"]}), args=QUERY)
    clients = {tenant: server.client(token(tenant)) for tenant in tenants}
    for tenant, client in clients.items():
        assert content(client, "D", tenant) == (1, {"a": 1})

    def work(some):
        for tenant in some:
            with contextlib.closing(Changes(refdata_db, "D", tenant)) as writer:
                for n in range(2, 8):
                    writer.write({"a": n})

    workers = [threading.Thread(target=work, args=(tenants[i::4],)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for tenant, client in clients.items():
        eventually(lambda c=client, t=tenant: content(c, "D", t) == (7, {"a": 7}))
    assert server.client(token("t1")).get(item_path("D", "a", "t1")).json()["payload"] == 7
