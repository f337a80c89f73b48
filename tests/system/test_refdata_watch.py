"""R22: a watcher who applies every line to what /all gave has, at each upToDate, exactly that version."""
import contextlib
import json
import random
import signal
import threading
import time
import uuid

import pytest

from lib.config import base_config, merge
from lib.refdata import make_table, module_refdata_db, path, pod, set_version, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.watcher import Follower, Watcher, Writer
from lib.wire import request_bytes


def watch_pod(serve, database, *dictionaries, **watch):
    configuration = pod(*(dictionaries or ("B",)))
    configuration["refdata"]["watch"] = watch
    return serve(database, configuration)


@pytest.fixture
def tenant():
    """Of the test's own, so that tests can share a pod."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def writer(module_refdata_db, tenant):
    with contextlib.closing(Writer(module_refdata_db, tenant)) as writer:
        yield writer


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    return watch_pod(module_serve, module_refdata_db, "B", {"code": "FULL", "reloadOnEvent": "FULL"})


@pytest.fixture
def watch(server, tenant, token):
    """watch(after=…) opens a stream; all are closed at the end."""
    opened = []

    def open_stream(**options):
        options = {"server": server, "bearer": token(tenant), "tenant": tenant, **options}
        opened.append(Watcher(**options))
        return opened[-1]

    yield open_stream
    for each in opened:
        each.close()


def all_of(server, bearer, tenant, code="B"):
    """(version, content) of one /all."""
    with server.client(bearer) as client:
        answer = client.request("GET", path(code, "/all", tenant), headers={"Accept": "application/x-ndjson"})
    assert answer.status == 200
    items = [json.loads(line) for line in answer.body.splitlines()]
    return int(answer.headers["x-dict-version"]), {item["key"]: item["payload"] for item in items}


def test_changes_come_as_they_are_committed(writer, watch):
    writer.update({"a": 1, "b": {"x": [1, 2]}})
    stream = watch()
    assert (stream.head.status, stream.head.headers["content-type"]) == (200, "application/x-ndjson")
    assert stream.head.headers["x-dict-version"] == "1"
    assert stream.line() == {"upToDate": 1}
    writer.update({"b": None, "ä\"\n": "new"}, ["a"])
    assert stream.lines_to(2) == [
        {"version": 2, "key": "a", "op": "DELETE"},
        {"version": 2, "key": "b", "op": "UPSERT", "payload": None},
        {"version": 2, "key": "ä\"\n", "op": "UPSERT", "payload": "new"},
        {"upToDate": 2},
    ]


def test_a_version_that_changes_nothing_is_told_too(writer, watch):
    writer.update({"a": 1})
    stream = watch()
    assert stream.line() == {"upToDate": 1}
    writer.update()
    assert stream.lines_to(2) == [{"upToDate": 2}]


def test_a_watch_with_after_begins_behind_it(writer, watch):
    writer.update({"a": 1})
    writer.update({"b": 1})
    writer.update({"a": 2}, ["b"])
    writer.update({"c": 1})
    gone = {"version": 4, "key": "b", "op": "DELETE"}
    a, c = ({"version": 4, "key": key, "op": "UPSERT", "payload": value} for key, value in (("a", 2), ("c", 1)))
    assert watch(after=4).lines_to(4) == [{"upToDate": 4}]
    assert watch(after=3).lines_to(4) == [c, {"upToDate": 4}]
    assert watch(after=2).lines_to(4) == [a, gone, c, {"upToDate": 4}]
    assert watch(after=0).lines_to(4) == [a, gone, c, {"upToDate": 4}]


def test_who_comes_back_goes_on_from_memory_while_others_watch(writer, watch, module_refdata_db, tenant):
    writer.update({"a": 1})
    stays = watch()
    stays.lines_to(1)
    for value in (2, 3):
        writer.update({"a": value})
        stays.lines_to(value)
    module_refdata_db.query("delete from refdata.outbox_event where tenant_id = %s", (tenant,))  # nobody asks for it
    assert watch(after=2).lines_to(3) == [{"version": 3, "key": "a", "op": "UPSERT", "payload": 3}, {"upToDate": 3}]
    assert watch(after=1).lines_to(3)[:2] == [{"version": 2, "key": "a", "op": "UPSERT", "payload": 2}, {"upToDate": 2}]


def test_what_was_read_for_one_who_came_back_serves_the_next(writer, watch, module_refdata_db, server, token, tenant):
    """A crowd costs one question, until something changes."""
    for value in range(1, 5):
        writer.update({f"k{value}": value})
    first = watch(after=1)
    assert [line.get("key") for line in first.lines_to(4)] == ["k2", "k3", "k4", None]
    module_refdata_db.query("delete from refdata.outbox_event where tenant_id = %s", (tenant,))
    assert [line.get("key") for line in watch(after=2).lines_to(4)] == ["k3", "k4", None]
    assert [line.get("key") for line in watch(after=1).lines_to(4)] == ["k2", "k3", "k4", None]
    with server.client(token(tenant)) as client:
        assert client.get(path("B", "/watch?after=0", tenant)).status == 410  # nobody asked for it in time
    writer.update({"k5": 5})
    first.lines_to(5)
    with server.client(token(tenant)) as client:
        assert client.get(path("B", "/watch?after=1", tenant)).status == 410
    assert [line.get("key") for line in watch(after=4).lines_to(5)] == ["k5", None]


@pytest.mark.parametrize("query", ["after=", "after=-1", "after=x", "after=1&after=2", "after=9223372036854775808",
                                   "since=1"])
def test_a_bad_question_is_400(server, writer, token, query, tenant):
    writer.update({"a": 1})
    with server.client(token(tenant)) as client:
        answer = client.get(path("B", "/watch?" + query, tenant))
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")


def test_a_version_not_committed_is_409(server, writer, token, tenant):
    writer.update({"a": 1})
    with server.client(token(tenant)) as client:
        answer = client.get(path("B", "/watch?after=2", tenant))
    body = answer.json()
    assert (answer.status, answer.code) == (409, "VERSION_NOT_COMMITTED")
    assert (body["requestedVersion"], body["committedVersion"]) == (2, 1)


def test_what_is_no_longer_kept_is_410(server, writer, module_refdata_db, watch, token, tenant):
    """A gap in the outbox, or a snapshot in between: nobody can say what changed."""
    for value in range(1, 5):
        writer.update({"a": value})
    module_refdata_db.query("delete from refdata.outbox_event where tenant_id = %s and version = 2", (tenant,))
    with server.client(token(tenant)) as client:
        for after in (0, 1):
            answer = client.get(path("B", f"/watch?after={after}", tenant))
            assert (answer.status, answer.code) == (410, "VERSION_TOO_OLD")
            assert (answer.json()["requestedVersion"], answer.json()["currentVersion"]) == (after, 4)
    assert watch(after=2).lines_to(4)[-1] == {"upToDate": 4}
    assert watch(after=3).lines_to(4)[0]["payload"] == 4


def test_a_resume_across_a_snapshot_is_410_and_all_is_the_way_back(server, writer, watch, token, tenant):
    writer.update({"a": 1, "b": 1})
    writer.snapshot({"b": 2, "c": 2})
    with server.client(token(tenant)) as client:
        assert client.get(path("B", "/watch?after=1", tenant)).status == 410
    follower = Follower(writer, *reversed(all_of(server, token(tenant), tenant)))
    stream = watch(after=follower.version)
    writer.update({"d": 3})
    follower.follow(stream, 3)
    assert follower.content == {"b": 2, "c": 2, "d": 3}


def test_a_live_snapshot_is_told_as_what_it_changed(writer, watch):
    writer.update({"a": 1, "b": 1, "same": 1})
    stream = watch()
    stream.lines_to(1)
    writer.snapshot({"b": 2, "c": 2, "same": 1})
    assert stream.lines_to(2) == [
        {"version": 2, "key": "a", "op": "DELETE"},
        {"version": 2, "key": "b", "op": "UPSERT", "payload": 2},
        {"version": 2, "key": "c", "op": "UPSERT", "payload": 2},
        {"upToDate": 2},
    ]


def test_more_versions_behind_than_configured_is_410(serve, module_refdata_db, writer, watch, token, tenant):
    for value in range(1, 7):
        writer.update({"a": value})
    few = watch_pod(serve, module_refdata_db, versions=3)
    with few.client(token(tenant)) as client:
        assert client.get(path("B", "/watch?after=2", tenant)).status == 410
    assert watch(server=few, after=3).lines_to(6)[-1] == {"upToDate": 6}


def test_a_dictionary_of_ones_own_sql_is_compared_load_by_load(serve, module_refdata_db, token, watch, tenant):
    """Nobody writes outbox rows for it: each load is told as its difference to the one before."""
    make_table(module_refdata_db, "own", {"a": "1", "b": "1"}, tenant=tenant)
    set_version(module_refdata_db, "O", 1, tenant)
    own = watch_pod(serve, module_refdata_db, sql_dictionary("O", "own"))
    stream = watch(server=own, code="O")
    assert stream.line() == {"upToDate": 1}
    module_refdata_db.query("update own set v = '2' where k = 'a'; delete from own where k = 'b'")
    set_version(module_refdata_db, "O", 2, tenant)
    assert stream.lines_to(2) == [{"version": 2, "key": "a", "op": "UPSERT", "payload": 2},
                                  {"version": 2, "key": "b", "op": "DELETE"}, {"upToDate": 2}]


def test_a_quiet_stream_says_that_it_lives(serve, module_refdata_db, writer, watch):
    writer.update({"a": 1})
    stream = watch(server=watch_pod(serve, module_refdata_db, heartbeat="20ms"))
    assert stream.line() == {"upToDate": 1}
    assert [stream.line(), stream.line()] == [{"heartbeat": 1}] * 2
    writer.update({"a": 2})
    while "version" not in (line := stream.line()):
        assert line == {"heartbeat": 1}
    assert (line["version"], stream.line()) == (2, {"upToDate": 2})
    assert stream.line() == {"heartbeat": 2}


def test_head_answers_without_a_stream(serve, module_refdata_db, writer, watch):
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db)
    answer = watch(server=server, method="HEAD")
    assert (answer.head.status, answer.head.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.head.headers["x-dict-version"] == "1"
    answer.raw.send(request_bytes("GET", "/actuator/health/liveness"))
    assert answer.raw.read_response().status == 200
    assert server.metrics()['refdata_watchers{dict_code="B"}'] == 0


def test_one_tenant_never_hears_of_another(writer, module_refdata_db, server, watch, token, tenant):
    """C5: the same dictionary, two tenants, changed in turn."""
    others = tenant + "-other"
    with contextlib.closing(Writer(module_refdata_db, others)) as other:
        writer.update({"k": "mine 1"})
        other.update({"k": "theirs 1"})
        stream = watch()
        theirs = watch(tenant=others, bearer=token(others))
        assert stream.line() == {"upToDate": 1} and theirs.line() == {"upToDate": 1}
        for version in (2, 3):
            other.update({"k": f"theirs {version}"})
            assert theirs.lines_to(version)[0]["payload"] == f"theirs {version}"
        writer.update({"k": "mine 2"})
        assert stream.lines_to(2) == [{"version": 2, "key": "k", "op": "UPSERT", "payload": "mine 2"}, {"upToDate": 2}]
    with server.client(token(others)) as client:
        answer = client.get(path("B", "/watch", tenant))
        assert (answer.status, answer.code) == (403, "TENANT_MISMATCH")


def test_a_stream_ends_with_its_token(serve, module_refdata_db, writer, watch, token, tenant):
    """C5: nothing is told past `exp`."""
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db, heartbeat="50ms")
    stream = watch(server=server, bearer=token(tenant, ttl=2))
    while (line := stream.line()) is not None:
        assert line in ({"upToDate": 1}, {"heartbeat": 1})
    assert stream.ended


def test_a_reader_who_does_not_read_is_cut_and_others_are_not(serve, module_refdata_db, writer, watch):
    """What it has not taken is bounded; who reads gets every version."""
    writer.update({"a": 0})
    server = watch_pod(serve, module_refdata_db, buffer="1MiB")
    slow = watch(server=server, receive_buffer=4096)
    quick = watch(server=server)
    follower = Follower(writer, {"a": 0}, 1)

    def is_cut():
        writer.update({"a": "x" * 600000})
        follower.follow(quick, writer.version)
        return server.metrics()['refdata_watch_cuts_total{dict_code="B"}'] == 1

    eventually(is_cut, timeout=30)
    eventually(lambda: server.metrics()['refdata_watchers{dict_code="B"}'] == 1)
    with pytest.raises((EOFError, ConnectionResetError)):
        while slow.line():
            pass
    writer.update({"a": "end"})
    follower.follow(quick, writer.version)
    assert server.metrics()['refdata_watch_cuts_total{dict_code="B"}'] == 1


def test_a_change_larger_than_the_buffer_ends_the_streams(serve, module_refdata_db, writer, watch, token, tenant):
    """And a resume is 410: who wants all of that is better off with /all."""
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db, buffer="16KiB")
    stream = watch(server=server)
    assert stream.line() == {"upToDate": 1}
    writer.update({f"k{i}": "x" * 1000 for i in range(50)})
    assert stream.line() is None
    with server.client(token(tenant)) as client:
        assert client.get(path("B", "/watch?after=1", tenant)).status == 410
    assert watch(server=server, after=2).lines_to(2) == [{"upToDate": 2}]


def test_streams_of_a_dictionary_that_is_removed_end(serve, module_refdata_db, jwks_path, writer, watch, tenant):
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db, "B", "C")
    stream, other = watch(server=server), watch(server=server, code="C")
    assert stream.line() == {"upToDate": 1} and other.line() == {"upToDate": 0}
    server.write_config(merge(base_config(module_refdata_db, jwks_path), pod("C")))
    server.sighup()
    assert stream.line() is None
    with contextlib.closing(Writer(module_refdata_db, tenant, "C")) as third:
        third.update({"c": 1})
    assert other.lines_to(1)[-1] == {"upToDate": 1}


def test_a_watched_dictionary_is_not_evicted(serve, module_refdata_db, writer, watch, token, tenant):
    """R17: only what nobody follows goes to make room."""
    writer.update({"a": 1})
    server = serve(module_refdata_db, pod("B", "C", "D", cache={"entries": 2}))
    stream = watch(server=server)
    assert stream.line() == {"upToDate": 1}
    with server.client(token(tenant)) as client:
        for code in ("C", "D", "C", "D"):
            assert client.get(path(code, "/all", tenant)).status == 200
    assert server.logs(event="dictionary_evicted")
    writer.update({"a": 2})
    assert stream.lines_to(2)[-1] == {"upToDate": 2}


def test_nothing_is_kept_for_a_pair_nobody_watches(serve, module_refdata_db, writer, watch):
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db)
    stream = watch(server=server)
    assert stream.line() == {"upToDate": 1}
    assert server.metrics()['refdata_watchers{dict_code="B"}'] == 1
    stream.close()
    writer.update({"a": 2})  # finds out that it is gone, at the latest
    eventually(lambda: server.metrics()['refdata_watchers{dict_code="B"}'] == 0)
    assert watch(server=server, after=1).lines_to(2)[-1] == {"upToDate": 2}


def test_hundreds_of_watchers_each_get_every_change(writer, watch):
    """More than are woken in one tick of a loop."""
    writer.update({"a": 1})
    streams = [watch() for _ in range(700)]
    for stream in streams:
        assert stream.line() == {"upToDate": 1}
    for version in (2, 3, 4):
        writer.update({f"k{version}": version})
    for stream in streams:
        lines = [line for line in stream.lines_to(4) if "version" in line]
        assert [(line["key"], line["payload"]) for line in lines] == [("k2", 2), ("k3", 3), ("k4", 4)]


@pytest.mark.tsan
def test_a_stop_ends_the_streams_in_order(serve, module_refdata_db, writer, watch):
    writer.update({"a": 1})
    server = watch_pod(serve, module_refdata_db)
    streams = [watch(server=server) for _ in range(20)]
    for stream in streams:
        assert stream.line() == {"upToDate": 1}
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    for stream in streams:
        assert stream.line() == {"heartbeat": 1, "stopping": True}
        assert stream.line() is None
        stream.close()
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 10


def model(server, writer, bearer, seed, versions, watchers):
    """Random updates; watchers that come and go; each compares its map with the record at every upToDate."""
    chance = random.Random(seed)
    keys = [f"k{i}" for i in range(12)]
    done, failures, marks = threading.Event(), [], []

    def follow(number):
        own = random.Random(seed * 1000 + number)
        try:
            version, content = all_of(server, bearer, writer.tenant, writer.code)
            follower = Follower(writer, content, version)
            while follower.version < versions:
                stream = Watcher(server, bearer, writer.tenant, writer.code, after=follower.version)
                if stream.head.status == 410:
                    stream.close()
                    version, content = all_of(server, bearer, writer.tenant, writer.code)
                    follower = Follower(writer, content, version)
                    continue
                assert stream.head.status == 200
                lines = own.randrange(1, 60)
                while follower.version < versions and lines:
                    follower.take(stream.line())
                    lines -= 1
                stream.close()
                if not lines:  # in the middle of a version perhaps: what it has is not of one version
                    content, version = follower.writer.history[follower.version], follower.version
                    follower.content = dict(content)
            marks.append(follower.marks)
            assert follower.content == writer.history[versions]
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(repr(error))
            done.set()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(watchers)]
    for thread in threads:
        thread.start()
    while writer.version < versions and not done.is_set():
        some = chance.sample(keys, chance.randrange(0, 5))
        cut = chance.randrange(0, len(some) + 1)
        if chance.random() < 0.05 and writer.version < versions - 1:
            writer.snapshot({key: chance.randrange(5) for key in some})
        else:
            writer.update({key: chance.randrange(5) for key in some[:cut]}, some[cut:])
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.05)
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert sum(marks) > watchers


def test_an_update_by_post_reaches_who_watches(server, watch, tenant, token):
    """R1, R12, R14: command, apply, relay and query behind one stream."""
    stream = watch()
    assert stream.line() == {"upToDate": 0}
    with server.client(token(tenant)) as client:
        upsert, delete = {"key": "a", "op": "UPSERT", "payload": {"n": 0.1}}, {"key": "a", "op": "DELETE"}
        for version, item in ((1, upsert), (2, delete)):
            update = {"dictCode": "B", "eventType": "DELTA", "items": [item]}
            assert client.post(f"/v1/tenants/{tenant}/updates?consistencyMode=WAIT_COMMIT", update).status in (200, 202)
            assert stream.lines_to(version) == [{"version": version, **item}, {"upToDate": version}]


@pytest.mark.tsan
@pytest.mark.parametrize("code", ["B", "FULL"])
def test_model_every_watcher_has_each_version_it_is_told(server, module_refdata_db, token, tenant, code):
    """Told key by key, or as the difference of two loads."""
    with contextlib.closing(Writer(module_refdata_db, tenant, code)) as writer:
        writer.update({"k0": 0})
        model(server, writer, token(tenant), seed=len(code), versions=150, watchers=6)
