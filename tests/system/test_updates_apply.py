"""Updates applied: in the transaction that accepts them where one process does both, by the bus where it is two; the answers
are the same (R1, R10). And the order: what was answered before the next one was sent is applied first."""
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib import on_engines
from lib.apply import applier, commands_on_the_bus, handled, publish
from lib.refdata import TENANT, make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import chunks, commit, delta, snapshot, status_path, updates_path

CHECKED = {
    "code": "CHECKED", "loadSql": "select k, v from t where tenant_id = :tenantId",
    "apply": {"upsertSql": "insert into t values (:tenantId, :key, :payload)"
                           " on conflict (tenant_id, k) do update set v = excluded.v"},
}
ROLES = {"one": ["command,apply,relay"], "two": ["command", "apply,relay"]}


@pytest.fixture(params=ROLES)
def server(request, serve, refdata_db):  # noqa: F811
    """Who takes the POSTs."""
    make_table(refdata_db, "t")
    refdata_db.query("alter table t add check (k <> 'bad')")
    servers = [serve(refdata_db, pod("B", CHECKED), args=("--roles", roles)) for roles in ROLES[request.param]]
    servers[0].database, servers[0].applier = refdata_db, servers[-1]
    return servers[0]


def decided(client, event_id):
    return eventually(lambda: (lambda row: row["status"] != "PENDING" and row)(client.get(status_path(event_id)).json()))


def items(database, code="B"):
    return dict(database.query("select item_key, payload from refdata.dictionary_item"
                               " where dict_code = %s and not deleted", (code,)))


@pytest.mark.tsan
def test_versions_count_up_and_every_way_out_is_told(server, token):
    client = server.client(token(TENANT))
    for version, body in enumerate([delta("B", {"a": 1}), delta("B", {}), snapshot("B", {"b": 2}),
                                    delta("B", {"c": 3, "b": None})], start=1):
        answer = commit(client, body)
        assert (answer.status, answer.json()["committedVersion"]) == (200, version)
        assert client.get(status_path(body["eventId"])).json()["committedVersion"] == version
        for mode in ("ASYNC", "WAIT_COMMIT"):  # again: the same, and no second effect
            answer = client.post(updates_path(mode), body)
            assert (answer.status, answer.json()["committedVersion"]) == (200, version)
    assert items(server.database) == {"c": 3}


@pytest.mark.parametrize("make", [delta, snapshot])
def test_a_number_with_another_scale_is_written(server, token, make):
    """R1, R3: COMMITTED means that what was sent is what is stored, digit for digit; what is the same is not written."""
    client = server.client(token(TENANT))

    def stored(text):
        body = make("B", {"a": {"n": "number"}, "b": 1})
        answer = client.request("POST", updates_path(), json.dumps(body).replace('"number"', text),
                                {"Content-Type": "application/json"})
        assert answer.status == 202 and decided(client, body["eventId"])["status"] == "COMMITTED"
        return server.database.query("select payload::text, xmin::text from refdata.dictionary_item order by item_key")

    (first, _), same = stored("1.0")
    (second, written), again = stored("1.00")
    assert (first, second) == ('{"n": 1.0}', '{"n": 1.00}') and again == same
    assert stored("1.00") == [(second, written), same]


def test_c7_a_small_snapshot_whose_sql_is_slow_holds_up_no_other_post(serve, refdata_db, token):  # noqa: F811
    """Issue 11.13: it was applied in the transaction that accepted it, and every other POST of the process waited behind it."""
    make_table(refdata_db, "t")
    slow = {**CHECKED, "code": "SLOW", "apply": {"snapshotReplaceSql": "select :snapshotJson, pg_sleep(5)"}}
    client = serve(refdata_db, pod("B", slow), args=("--roles", "command,apply,relay"))
    body = snapshot("SLOW", {"a": 1})
    mine = client.client(token(TENANT))
    assert mine.post(updates_path(), body).status == 202
    for number in range(40):  # some of these tenants share its partition
        other = f"other-{number}"
        if client.client(token(other)).post(updates_path("WAIT_COMMIT", other), delta("B", {"a": 1})).status == 200:
            break
    assert mine.get(status_path(body["eventId"])).json()["status"] == "PENDING"


def test_async_is_202_however_quick_it_was(server, token):
    client = server.client(token(TENANT))
    for i in range(5):
        body = delta("B", {"a": i})
        answer = client.post(updates_path("ASYNC"), body)
        assert (answer.status, answer.json()["status"]) == (202, "PENDING")
        assert decided(client, body["eventId"])["committedVersion"] == i + 1


def test_a_stale_revision_and_a_refusal_are_their_own(server, token):
    client = server.client(token(TENANT))
    assert commit(client, delta("CHECKED", {"a": 1}, sourceRevision=5)).status == 200
    answer = commit(client, delta("CHECKED", {"a": 2}, sourceRevision=4))
    assert (answer.status, answer.code) == (409, "STALE_SOURCE_REVISION")
    bad = delta("CHECKED", {"a": 3, "bad": 3})
    answer = commit(client, bad)
    assert (answer.status, answer.code) == (422, "UPDATE_REFUSED")
    status = client.get(status_path(bad["eventId"])).json()
    assert (status["status"], status["errorCode"]) == ("FAILED", "UPDATE_REFUSED")
    assert answer.json()["message"] == status["errorMessage"] and "insert" not in status["errorMessage"]
    assert client.post(updates_path("ASYNC"), bad).status == 422
    answer = commit(client, delta("CHECKED", {"a": 4}))
    assert (answer.status, answer.json()["committedVersion"]) == (200, 2)


@pytest.mark.tsan
def test_many_at_once_each_have_a_version_of_their_own(server, token):
    def send(i):
        client, versions = server.client(token(TENANT)), []
        for j in range(15):
            body = delta("CHECKED", {"bad" if (i + j) % 7 == 0 else f"k{i}": j})
            answer = commit(client, body)
            assert answer.status == (422 if (i + j) % 7 == 0 else 200)
            versions += [answer.json()["committedVersion"]] if answer.status == 200 else []
        assert versions == sorted(versions)  # answered before the next was sent: applied before it
        return versions
    with ThreadPoolExecutor(8) as pool:
        versions = list(itertools.chain.from_iterable(pool.map(send, range(8))))
    assert sorted(versions) == list(range(1, len(versions) + 1))


def test_async_ones_of_one_client_are_applied_in_the_order_they_were_answered(server, token):
    client = server.client(token(TENANT))
    bodies = [delta("B", {"a": i}) for i in range(40)]
    bodies[7:7] = chunks("B", {"x": 1, "y": 2}, 2)  # these take the bus in any case
    bodies[20:20] = [snapshot("B", {f"big{i}": "x" * 500 for i in range(700)})]  # and so does this one
    for body in bodies:
        assert client.post(updates_path("ASYNC"), body).status == 202
    versions = [decided(client, body["eventId"])["committedVersion"] for body in bodies]
    assert versions == sorted(versions)
    assert items(server.database)["a"] == 39


def test_a_snapshot_in_chunks_is_one_version_for_all_its_events(server, token):
    client = server.client(token(TENANT))
    parts = chunks("B", {f"k{i}": i for i in range(9)}, 3)
    for part in (parts[2], parts[0], parts[2]):
        assert client.post(updates_path("ASYNC"), part).status == 202
    assert commit(client, parts[1]).json()["committedVersion"] == 1
    for part in parts:
        assert decided(client, part["eventId"])["committedVersion"] == 1
        assert client.post(updates_path("ASYNC"), part).status == 200
    assert len(items(server.database)) == 9


def test_two_processes_that_both_apply_keep_one_order(serve, refdata_db, token):  # noqa: F811
    servers = [serve(refdata_db, pod("B"), args=("--roles", "command,apply,relay")) for _ in range(2)]
    clients = [server.client(token(TENANT)) for server in servers]
    versions = [commit(clients[i % 2], delta("B", {"a": i})).json()["committedVersion"] for i in range(60)]
    assert versions == list(range(1, 61))

    def send(i):
        client = servers[i % 2].client(token(TENANT))
        return [commit(client, delta("B", {f"k{i}": j})).json()["committedVersion"] for j in range(20)]
    with ThreadPoolExecutor(6) as pool:
        each = list(pool.map(send, range(6)))
    assert all(versions == sorted(versions) for versions in each)
    assert sorted(itertools.chain.from_iterable(each)) == list(range(61, 181))


def test_an_event_sent_to_two_processes_at_once_has_one_effect(serve, refdata_db, token):  # noqa: F811
    servers = [serve(refdata_db, pod("B"), args=("--roles", "command,apply,relay")) for _ in range(2)]
    bodies = [delta("B", {"a": i}) for i in range(25)]

    def send(i):
        client = servers[i % 2].client(token(TENANT))
        return [commit(client, body).json()["committedVersion"] for body in (bodies if i < 4 else bodies[::-1])]
    with ThreadPoolExecutor(8) as pool:
        each = list(pool.map(send, range(8)))
    forward = each[0]
    assert all((versions if i < 4 else versions[::-1]) == forward for i, versions in enumerate(each))
    assert sorted(forward) == list(range(1, 26))


def test_alone_in_its_partition_an_update_needs_no_bus(serve, refdata_db, token):  # noqa: F811
    """What is applied in its own commit is no message; what comes behind a message that waits is one too."""
    client = serve(refdata_db, pod("B"), args=("--roles", "command,apply,relay")).client(token(TENANT))
    topic = "select count(*) from platform.bus_message where topic = 'refdata.commands'"

    def direct():
        before = refdata_db.query(topic)
        assert commit(client, delta("B", {"a": 1})).status == 200
        return refdata_db.query(topic) == before
    eventually(direct)  # once the group is there
    refdata_db.query("update platform.bus_cursor set retry_at = now() + interval '10 seconds'")
    refdata_db.query("update platform.bus_cursor set position = position - 1 where position > 0")
    queued = refdata_db.query("update platform.bus_partition set next_offset = next_offset + 1"
                              " where topic = 'refdata.commands' returning 1")
    assert queued
    before = refdata_db.query(topic)[0][0]
    assert client.post(updates_path("WAIT_COMMIT", timeout_ms=50), delta("B", {"a": 2})).status == 202
    assert refdata_db.query(topic)[0][0] == before + 1


def test_slow_sql_keeps_nobody_from_being_accepted(serve, refdata_db, token):  # noqa: F811
    make_table(refdata_db, "t")
    slow = {**CHECKED, "code": "SLOW", "apply": {
        "upsertSql": "insert into t select :tenantId, :key, :payload from pg_sleep(1.5)"}}
    changes = pod("B", slow)
    changes["refdata"]["updates"] = {"commitTimeout": "1s"}
    server = serve(refdata_db, changes, args=("--roles", "command,apply,relay"))
    client = server.client(token(TENANT))
    body = delta("SLOW", {"a": 1})
    eventually(lambda: client.post(updates_path("ASYNC"), body).status == 202)  # within its second, which a busy machine may not
    assert commit(client, delta("B", {"a": 1})).status == 200
    assert decided(client, body["eventId"])["committedVersion"] == 1


def test_a_locked_row_holds_up_nobody_else(serve, refdata_db, token):  # noqa: F811
    """Somebody else's transaction holds an item of A: its updates wait on the bus, those of C, in another
    partition, are committed."""
    changes = pod("A", "C")
    changes["refdata"]["updates"] = {"commitTimeout": "4s"}
    server = serve(refdata_db, changes, args=("--roles", "command,apply,relay"))
    client = server.client(token(TENANT))
    assert commit(client, delta("A", {"a": 0})).status == 200
    other = refdata_db.connect()
    try:
        other.cursor().execute("begin; select from refdata.dictionary_item where dict_code = 'A' for update")
        body = delta("A", {"a": 1})
        assert client.post(updates_path("ASYNC"), body).status == 202
        assert commit(client, delta("C", {"a": 1})).status == 200
    finally:
        other.close()
    end = decided(client, body["eventId"])
    assert end.get("committedVersion") == 2, end


def test_the_trace_of_a_request_goes_on_in_the_outbox(server, token):
    """C9"""
    body = delta("B", {"a": 1})
    trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    client = server.client(token(TENANT))
    assert client.post(updates_path(), body, traceparent=trace).status == 202
    decided(client, body["eventId"])
    passed = server.database.value("select traceparent from refdata.outbox_event where event_id = %s", (body["eventId"],))
    assert passed.split("-")[1] == "ab" * 16


def test_updates_go_on_from_a_version_that_was_set_back(server, token):
    """R14: after a restore, or by hand, the outbox may know later versions than dictionary_meta."""
    client = server.client(token(TENANT))
    for value in range(3):
        commit(client, delta("B", {"a": value}))
    server.database.query("update refdata.dictionary_meta set version = 1 where dict_code = 'B'")
    answers = [commit(client, delta("B", {"b": value})) for value in range(3)]
    assert [(answer.status, answer.json()["committedVersion"]) for answer in answers] == [(200, 2), (200, 3), (200, 4)]
    rows = server.database.query("select version, keys from refdata.outbox_event where dict_code = 'B' order by id")
    assert rows == [(1, ["a"]), (2, ["b"]), (3, ["b"]), (4, ["b"])]


def test_r10_a_command_says_that_it_was_accepted_and_whether_its_sender_waits(serve, refdata_db, token):  # noqa: F811
    """Apply then looks for no row of update_request; a command without the header may be another program's."""
    client = serve(refdata_db, pod("B"), args=("--roles", "command")).client(token(TENANT))
    assert client.post(updates_path("ASYNC"), delta("B", {"a": 1})).status == 202
    assert client.post(updates_path("WAIT_COMMIT", timeout_ms=50), delta("B", {"a": 2})).status == 202
    accepted = None if on_engines.carries_commands() else "0"  # by an engine it may reach another database
    assert [headers.get("waited") for _, headers, _ in commands_on_the_bus(refdata_db)] == [accepted, "1"]


@pytest.mark.parametrize("more", [{}, {"occurredAt": "2026-02-27T12:00:00Z"}])
def test_a_command_that_is_delivered_again_is_no_conflict(serve, refdata_db, token, more):  # noqa: F811
    """R2: it always has a time, also where the request had none."""
    server = serve(refdata_db, applier("B"), args=("--roles", "command,apply"))
    body = snapshot("B", {"a": 1}, **more)  # what is large is not applied in its own commit
    assert commit(server.client(token(TENANT)), body).status == 200
    [(key, _, sent)] = commands_on_the_bus(refdata_db)
    publish(refdata_db, [sent.encode()], key=key.encode())
    handled(refdata_db)
    assert not server.logs(event="event_id_conflict")
    publish(refdata_db, [sent.replace('"payload": 1', '"payload": 2').encode()], key=key.encode())
    eventually(lambda: [line["eventId"] for line in server.logs(event="event_id_conflict")] == [body["eventId"]])
    assert items(refdata_db) == {"a": 1}


def test_what_others_do_to_a_dictionary_is_seen_by_the_next_update(server, token):
    """R8, R10: a process that has written a dictionary alone expects it as it left it, and finds out where it is not."""
    client, database = server.client(token(TENANT)), server.database

    def alone():
        """Until it is expected: three in a row that nobody disturbs."""
        return [commit(client, delta("B", {"quiet": number})).json()["committedVersion"] for number in range(3)]

    def told(body):
        answer = commit(client, body)
        return answer.status, answer.json().get("committedVersion") or answer.json()["code"]

    assert alone() == [1, 2, 3]
    assert database.value("select refdata.touch(%s, 'B')", (TENANT,)) == 4
    assert told(delta("B", {"a": 1})) == (200, 5)
    assert alone() == [6, 7, 8]
    database.query("update refdata.dictionary_meta set last_source_revision = 100")
    assert told(delta("B", {"a": 2}, sourceRevision=50)) == (409, "STALE_SOURCE_REVISION")
    assert alone() == [9, 10, 11]
    assert told(delta("B", {"a": 3}, sourceRevision=101)) == (200, 12)
    assert told(delta("B", {"a": 4}, sourceRevision=100)) == (409, "STALE_SOURCE_REVISION")
    assert alone() == [13, 14, 15]
    known = delta("B", {"a": 5})
    database.query("insert into refdata.processed_event (tenant_id, event_id, source) values (%s, %s, 'REST')",
                   (TENANT, known["eventId"]))
    assert told(known) == (422, "EVENT_ID_CONFLICT")
    assert alone() == [16, 17, 18]
    first, last = chunks("B", {"a": 6, "b": 6, "c": 6}, 2)
    assert client.post(updates_path(), first).status == 202
    eventually(lambda: database.query("select 1 from refdata.snapshot where status = 'PENDING'"))
    assert told(delta("B", {"b": 7})) == (200, 19)
    assert told(last) == (200, 20)
    assert items(database) == {"a": 6, "b": 7, "c": 6}
    assert alone() == [21, 22, 23]
    lines = database.query("select o.previous_event_id, p.event_id from refdata.outbox_event o"
                           " join refdata.outbox_event p on p.version = o.version - 1")
    assert len(lines) == 20 and all(previous == event for previous, event in lines)
    # Of tries that were rolled back nothing is counted.
    eventually(lambda: server.applier.metrics()['refdata_apply_total{result="committed"}'] == 22)
    assert server.applier.metrics()['refdata_apply_total{result="failed"}'] == 2
