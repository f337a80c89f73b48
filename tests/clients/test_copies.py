"""Issue 15, 4: a dictionary followed into a local copy, with the barrier, while everything in between breaks."""
import contextlib
import threading
import time

import pytest

from driver import Refusal
from faulty import FaultyLine
from lib.refdata import module_refdata_db, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually, free_port
from lib.wire import Client

HEARTBEAT = {"watch": {"heartbeat": "1s"}}


def url_of(server):
    return f"http://127.0.0.1:{server.port}"


def truth(database, code):
    """(version, items) as PostgreSQL has them."""
    rows = database.query("select m.version, i.item_key, i.payload from refdata.dictionary_meta m left join refdata.dictionary_item i"
                          " on i.tenant_id = m.tenant_id and i.dict_code = m.dict_code and not i.deleted where m.dict_code = %s", (code,))
    return rows[0][0], {key: payload for _, key, payload in rows if key is not None}


def is_the_truth(client, name, database, code):
    """The copy has what the database has; an update that was accepted may still be on its way. Returns the version."""
    def same():
        version, items = truth(database, code)
        client("copy_wait", name=name, version=version)
        copy = client("copy_all", name=name)
        assert (copy["version"], copy["items"]) == (version, items)
        return version
    return eventually(same)


class Writer:
    """Updates a dictionary over HTTP at a server that stays, again and again: 50 items that all say the same label; one comes and
    goes."""

    def __init__(self, server, bearer, code):
        self.port, self.bearer, self.code = server.port, bearer, code
        self.label, self.error = 0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write(self, client):
        self.label += 1
        items = [{"key": f"k{i}", "op": "UPSERT", "payload": {"label": self.label}} for i in range(50)]
        items.append({"key": "odd", "op": "UPSERT", "payload": {"label": self.label}} if self.label % 2 else {"key": "odd", "op": "DELETE"})
        answer = client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000",
                             {"dictCode": self.code, "eventType": "DELTA", "items": items})
        assert answer.status in (200, 202), answer.body

    def _run(self):
        try:
            with Client(self.port, self.bearer) as client:
                while not self._stop.wait(0.005):
                    self.write(client)
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error

    def wait(self, more):
        label = self.label
        eventually(lambda: self.label >= label + more or self.error)


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    """One that stays: what breaks is in between."""
    write_builtin(module_refdata_db, "START", {"a": 1, "b": {"x": None}}, version=3)
    changes = pod("START", "EMPTY", "CHANGES-python", "CHANGES-typescript", "LABELS", "CUT", "STALL", "CONVERT", "WAIT")
    changes["refdata"].update(HEARTBEAT)
    return module_serve(module_refdata_db, changes)


# ---- in peace ----

def test_a_copy_is_loaded_and_follows_every_change(drive, server, token, language, module_refdata_db):
    client, code = drive(url_of(server), token=token()), f"CHANGES-{language}"
    assert client("follow", name="start", dictionary="START") == 3
    assert client("copy_all", name="start") == {"version": 3, "items": {"a": 1, "b": {"x": None}}}
    client("follow", name="c", dictionary=code)
    before = client("copy", name="c")["version"]
    version = client("update", dictionary=code, upserts={"a": 1, "ж/": [1.5, "x"]})["version"]
    assert client("copy_wait", name="c", version=version) >= version
    assert client("copy_get", name="c", key="ж/") == [1.5, "x"]
    version = client("update", dictionary=code, upserts={"b": 2}, deletes=["a"])["version"]
    client("copy_wait", name="c", version=version)
    assert client("copy_get", name="c", key="a") is None
    version = client("replace", dictionary=code, items={"z": 9})["version"]
    client("copy_wait", name="c", version=version)
    assert is_the_truth(client, "c", module_refdata_db, code) == version == before + 3
    changes = client("changes", name="c")
    assert [change[0] for change in changes] == [before + 1, before + 2, before + 3]
    assert changes[1:] == [[before + 2, ["b"], ["a"]], [before + 3, ["z"], ["b", "ж/"]]]
    assert client("copy", name="c")["reconnects"] == 0 and client("copy", name="c")["error"] is None


def test_an_empty_dictionary_and_one_that_is_unknown(drive, server, token):
    client = drive(url_of(server), token=token())
    assert client("follow", name="empty", dictionary="EMPTY") == 0
    assert client("copy", name="empty")["size"] == 0
    with pytest.raises(Refusal) as refusal:
        client("follow", name="none", dictionary="NONE")
    assert refusal.value.code == "UNKNOWN_DICTIONARY"


def test_waiting_for_a_version_ends_with_it_or_with_time_or_with_the_copy(drive, server, token):
    """The barrier of a copy."""
    client = drive(url_of(server), token=token())
    client("follow", name="w", dictionary="WAIT")
    version = client("copy", name="w")["version"]
    assert client("copy_wait", name="w", version=version) == version
    later = client.begin("copy_wait", name="w", version=version + 2)
    with pytest.raises(Refusal) as refusal:
        client("copy_wait", name="w", version=version + 1, timeout=0.2)
    assert refusal.value.name == "TimeoutError"
    for number in range(2):
        client("update", dictionary="WAIT", upserts={"a": number})
    assert later() == version + 2
    never = client.begin("copy_wait", name="w", version=version + 100)
    time.sleep(0.1)
    client("copy_close", name="w")
    with pytest.raises(Refusal) as refusal:
        never()
    assert refusal.value.name == "Closed"


def test_a_new_copy_has_the_own_writes(drive, server, token):
    client = drive(url_of(server), token=token())
    version = client("update", dictionary="WAIT", upserts={"mine": version_label()})["version"]
    assert client("follow", name="w", dictionary="WAIT") >= version


def version_label():
    return time.monotonic_ns()


def test_a_copy_keeps_what_it_is_told_to(drive, server, token):
    client = drive(url_of(server), token=token())
    client("update", dictionary="CONVERT", upserts={"a": {"name": "A", "long": "x" * 1000}})
    client("follow", name="c", dictionary="CONVERT", only="name")
    assert client("copy_get", name="c", key="a") == "A"
    version = client("update", dictionary="CONVERT", upserts={"b": {"name": "B"}})["version"]
    client("copy_wait", name="c", version=version)
    assert client("copy_get", name="c", key="b") == "B"


def test_readers_see_whole_versions_only(drive, server, token):
    """Every update changes 50 items: nobody sees some of them changed and some not."""
    with Writer(server, token(), "LABELS") as writer:
        writer.wait(2)
        client = drive(url_of(server), token=token())
        client("follow", name="l", dictionary="LABELS")
        before = writer.label
        wrong, seen = client("torn", name="l", seconds=1.5)
        assert wrong == 0 and seen > 20 and writer.label > before
    assert client("copy", name="l")["version"] > before


# ---- while it breaks ----

def test_connections_that_are_cut_lose_nothing(drive, server, token, module_refdata_db, whole):
    with FaultyLine(server.port) as line, Writer(server, token(), "CUT") as writer:
        writer.wait(1)
        client = drive(line.url, token=token())
        client("follow", name="c", dictionary="CUT")
        for cuts in range(20 if whole else 4):
            writer.wait(2)
            eventually(lambda: client("copy", name="c")["reconnects"] >= cuts)  # pylint: disable=cell-var-from-loop
            line.cut()
        writer.wait(2)
        writer.__exit__()
        is_the_truth(client, "c", module_refdata_db, "CUT")
        assert client("copy", name="c")["reconnects"] >= 3
        versions = [change[0] for change in client("changes", name="c")]
        assert versions == sorted(set(versions)), "a change was applied twice"


def test_a_stream_cut_in_the_middle_of_a_line_is_taken_up(drive, server, token, module_refdata_db):
    """Also the first load: half of it never counts."""
    with FaultyLine(server.port) as line, Writer(server, token(), "CUT") as writer:
        writer.wait(1)
        line.bytes_to_cut_after = 1500
        client = drive(line.url, token=token())
        finish = client.begin("follow", name="c", dictionary="CUT")
        eventually(lambda: line.connections >= 3)
        line.bytes_to_cut_after = None
        finish()
        line.bytes_to_cut_after = 5003
        line.cut()
        writer.wait(5)
        line.bytes_to_cut_after = None
        writer.__exit__()
        is_the_truth(client, "c", module_refdata_db, "CUT")


def test_a_connection_that_says_nothing_is_given_up(drive, server, token, module_refdata_db):
    """Neither an end nor a reset: only the missing heartbeats tell."""
    with FaultyLine(server.port) as line:
        client = drive(line.url, token=token())
        client("follow", name="s", dictionary="STALL", idle=3)
        line.stalled = True
        with Client(server.port, token()) as writer:
            writer.post("/v1/tenants/demo/updates", {"dictCode": "STALL", "eventType": "DELTA",
                                                     "items": [{"key": "a", "op": "UPSERT", "payload": 1}]})
        connections = line.connections
        eventually(lambda: line.connections > connections)
        line.stalled = False
        eventually(lambda: client("copy_get", name="s", key="a") == 1)


@contextlib.contextmanager
def steady(serve, database, *codes, **watch):
    """(a server for the writer, one that may die at a port of its own)"""
    changes = pod(*codes)
    changes["refdata"]["watch"] = {"heartbeat": "1s", **watch}
    victim = serve.make(database, changes)
    victim.own_port = free_port()
    yield serve(database, changes), victim.start()


def test_a_server_that_is_killed_and_started_again(drive, serve, refdata_db, token, whole):
    """kill -9 in the middle of the stream, with changes while nobody serves."""
    with steady(serve, refdata_db, "KILL") as (stays, victim), Writer(stays, token(), "KILL") as writer:
        writer.wait(1)
        client = drive(url_of(victim), token=token())
        client("follow", name="k", dictionary="KILL")
        for _ in range(6 if whole else 2):
            writer.wait(2)
            victim.kill()
            writer.wait(2)
            eventually(lambda: client("copy", name="k")["error"])
            victim.start()
            eventually(lambda: client("copy", name="k")["error"] is None)
        writer.wait(2)
        writer.__exit__()
        is_the_truth(client, "k", refdata_db, "KILL")
        state = client("copy", name="k")
        assert state["reconnects"] >= 2 and state["error"] is None
        versions = [change[0] for change in client("changes", name="k")]
        assert versions == sorted(set(versions))


def test_a_server_that_stops_properly_is_left(drive, serve, refdata_db, token):
    with steady(serve, refdata_db, "STOP") as (stays, victim):
        client = drive(url_of(victim), token=token())
        client("follow", name="s", dictionary="STOP")
        victim.stop()
        with Client(stays.port, token()) as writer:
            Writer(stays, token(), "STOP").write(writer)
        victim.start()
        is_the_truth(client, "s", refdata_db, "STOP")


def test_changes_that_are_no_longer_kept_are_read_anew(drive, serve, refdata_db, token):
    """410: the copy is loaded again, and stays readable meanwhile."""
    with steady(serve, refdata_db, "OLD", versions=2) as (stays, victim), FaultyLine(victim.port) as line:
        client = drive(line.url, token=token())
        with Client(stays.port, token()) as writer:
            source = Writer(stays, token(), "OLD")
            source.write(writer)
            client("follow", name="o", dictionary="OLD")
            client("follow", name="boxed", dictionary="OLD", boxed=True)  # of values that JSON can't show
            is_the_truth(client, "o", refdata_db, "OLD")
            line.target = free_port()  # nobody is there
            line.cut()
            for _ in range(7):
                source.write(writer)
        assert client("copy_get", name="o", key="k0") == {"label": 1}
        line.target = victim.port
        is_the_truth(client, "o", refdata_db, "OLD")
        assert client("copy", name="o")["reloads"] >= 1
        client("copy_wait", name="boxed", version=client("copy", name="o")["version"])
        for name in ("o", "boxed"):
            last = eventually(lambda name=name: client("changes", name=name))[-1]
            assert len(last[1]) == 50 and last[2] == ["odd"]


def test_a_copy_whose_convert_fails_ends(drive, serve, refdata_db, token):
    """By a change, by the first load, and by a load after 410: the copy names the item, and is not read again and again."""
    with steady(serve, refdata_db, "FAILS", versions=2) as (stays, victim), FaultyLine(victim.port) as line:
        client = drive(line.url, token=token())
        with Client(stays.port, token()) as writer:
            write = Writer(stays, token(), "FAILS").write
            write(writer)
            client("follow", name="change", dictionary="FAILS", fails_at=2)
            client("follow", name="load", dictionary="FAILS", fails_at=7)
            write(writer)
            failed = eventually(lambda: client("copy", name="change")["error"])
            assert "ConvertFailed" in str(failed) and "k" in str(failed)
            is_the_truth(client, "load", refdata_db, "FAILS")
            line.target = free_port()  # nobody is there
            line.cut()
            for _ in range(7):
                write(writer)
        line.target = victim.port
        failed = eventually(lambda: "ConvertFailed" in str(client("copy", name="load")["error"]) and client("copy", name="load"))
        assert failed["reloads"] == 0 and client("copy_get", name="load", key="k0") == {"label": 2}
        with pytest.raises(Refusal) as failed:
            client("follow", name="first", dictionary="FAILS", fails_at=1)
        assert failed.value.name == "ConvertFailed"


def test_a_database_that_went_back_is_followed_back(drive, serve, refdata_db, token):
    """R14: after a restore the last versions do not exist. The copy must not keep what was lost."""
    write_builtin(refdata_db, "BACK", {"kept": 1, "lost": 2}, version=9)
    with steady(serve, refdata_db, "BACK") as (_, victim):
        client = drive(url_of(victim), token=token())
        assert client("follow", name="b", dictionary="BACK") == 9
        victim.kill()
        write_builtin(refdata_db, "BACK", {"kept": 1}, version=5)
        victim.start()
        eventually(lambda: client("copy", name="b")["version"] == 5)
        assert client("copy_all", name="b") == {"version": 5, "items": {"kept": 1}}


def test_a_pod_that_is_behind_never_takes_a_copy_back(drive, serve, refdata_db, token):
    """The copy comes back with its version to a pod that has not loaded it yet: it waits there, and goes on from its version."""
    write_builtin(refdata_db, "LATE", {"a": 1}, version=1)
    ahead = serve(refdata_db, pod("LATE"))
    late = serve(refdata_db, pod("LATE", cache={"sweepInterval": "1h"}))
    with FaultyLine(ahead.port) as line:
        client = drive(line.url, token=token())
        with Client(late.port, token()) as other:
            assert other.get("/v1/tenants/demo/dictionaries/LATE/version").json()["version"] == 1  # held, at version 1
        client("follow", name="l", dictionary="LATE")
        write_builtin(refdata_db, "LATE", {"a": 2}, version=2)  # by SQL: only a sweep finds it
        client("copy_wait", name="l", version=2)
        line.target = late.port
        line.cut()
        eventually(lambda: client("copy", name="l")["reconnects"] + client("copy", name="l")["reloads"] >= 1
                   and client("copy", name="l")["error"] is None)
        assert client("copy_all", name="l") == {"version": 2, "items": {"a": 2}}
        assert all(change[0] >= 2 for change in client("changes", name="l"))


# ---- tokens ----

@contextlib.contextmanager
def short_tokens(token, path):
    """The file has a token that lives for a few seconds more."""
    stop = threading.Event()

    def write():
        fresh = path.with_suffix(".new")
        fresh.write_text(token(ttl=4))
        fresh.replace(path)

    def run():
        while not stop.wait(0.2):
            write()
    write()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield str(path)
    stop.set()
    thread.join()


def test_a_copy_outlives_its_tokens(drive, serve, refdata_db, token, tmp_path):
    """The stream ends with its token; a function brings the next one, and is not asked for each request."""
    changes = pod("TOKENS")
    changes["refdata"].update(HEARTBEAT)
    server = serve(refdata_db, changes)
    with short_tokens(token, tmp_path / "token") as path:
        client = drive(url_of(server), token_file=path)
        client("follow", name="t", dictionary="TOKENS")
        for number in range(2):
            eventually(lambda: client("copy", name="t")["reconnects"] > number)  # pylint: disable=cell-var-from-loop
            version = client("update", dictionary="TOKENS", upserts={"a": number})["version"]
            client("copy_wait", name="t", version=version)
            for _ in range(20):
                assert client("get", dictionary="TOKENS", key="a") == number
        assert client("token_calls") < 20


def test_a_token_that_is_refused_is_replaced_once(drive, server, token, tmp_path):
    path = tmp_path / "token"
    path.write_text(token() + "x")
    client = drive(url_of(server), token_file=str(path))
    with pytest.raises(Refusal) as refusal:
        client("get", dictionary="START", key="a")
    assert refusal.value.code == "UNAUTHENTICATED" and client("token_calls") == 2
    path.write_text(token())
    assert client("get", dictionary="START", key="a") == 1
    with pytest.raises(Refusal) as refusal:
        drive(url_of(server), token=token(ttl=-100))("get", dictionary="START", key="a")
    assert refusal.value.code == "UNAUTHENTICATED"


# ---- size ----

def test_a_large_dictionary_fits(drive, serve, refdata_db, token, language, whole):
    """So many bytes an item at most, and not twice as many after it was read anew."""
    count = 1_000_000 if whole else 60_000
    refdata_db.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload) select 'demo', 'LARGE', 'key' || i,"
                     " jsonb_build_object('code', i, 'name', 'item ' || i, 'active', true) from generate_series(1, %s) i" % count)
    set_version(refdata_db, "LARGE", 1)
    with steady(serve, refdata_db, "LARGE", versions=2) as (_, server), FaultyLine(server.port) as line:
        client = drive(line.url, token=token(), patience=300)
        client("version", dictionary="LARGE")
        empty = client("memory")
        client("follow", name="l", dictionary="LARGE")
        loaded = client("memory")
        assert client("copy", name="l")["size"] == count
        assert client("copy_get", name="l", key="key777") == {"code": 777, "name": "item 777", "active": True}
        per_item = (loaded - empty) / count
        line.target = free_port()
        line.cut()
        set_version(refdata_db, "LARGE", 9)  # more than is kept: everything is read again
        eventually(lambda: client("copy", name="l")["error"])
        line.target = server.port
        client("copy_wait", name="l", version=9, timeout=250)
        again = (client("memory") - empty) / count
    print(f"{language}: {count} items, {per_item:.0f} bytes each, {again:.0f} after they were read again")
    assert per_item < 900 and again < 1600
