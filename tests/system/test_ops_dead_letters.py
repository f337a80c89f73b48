"""Issue 15, point 1: /v1/ops/dead-letters and `freshet dlq` on the dead letters of every topic and table."""
import base64
import contextlib
import json
import signal
import threading
import time

import pytest

from lib import on_engines
from lib.apply import applier, delta, items_of, publish, ready
from lib.config import base_config, to_yaml
from lib.freshet import run
from lib.outbox import leave
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually

pytestmark = pytest.mark.skipif(on_engines.IS_ON, reason="letters in the tables of the bus; tests/engines/test_dead_letters.py has the others")
ROLES = ["--roles", "apply,ops"]
ALL = "ops:read ops:write ops:all-tenants"
WRITE = "ops:read ops:write"
COMMANDS = "refdata.commands.dlq"
PATH = "/v1/ops/dead-letters/" + COMMANDS


def page(client, path=PATH, status=200):
    answer = client.get(path)
    assert answer.status == status, answer.body
    return answer.json()


def post(client, action, body, status=200, source=COMMANDS):
    answer = client.post(f"/v1/ops/dead-letters/{source}/{action}", {"reason": "a test", **body})
    assert answer.status == status, answer.body
    return answer.json()


def put_letters(database, count, *, partition=0, tenant="acme", reason="not a command: x", payload=b"{}", key=None, topic=COMMANDS):
    """Dead letters as a consumer leaves them; their ids."""
    first = database.value("update platform.bus_partition set next_offset = next_offset + %s where topic = %s and partition = %s"
                           " returning next_offset - %s", [count, topic, partition, count])
    database.query("insert into platform.bus_message (topic, partition, message_offset, key, headers, payload)"
                   " select %s, %s, %s + n, %s, array['dlq-reason', %s, 'dlq-topic', 'refdata.commands', 'dlq-partition', '0',"
                   " 'dlq-offset', n::text, 'dlq-group', 'refdata-apply', 'event-id', 'e-' || n], %s"
                   " from generate_series(0, %s) n",
                   [topic, partition, first, (key if key is not None else f"{tenant}:D".encode()), reason, payload, count - 1])
    return [f"{partition}-{first + n}" for n in range(count)]


def ids_of(answer):
    return [item["id"] for item in answer["items"]]


@pytest.fixture
def server(serve, refdata_db):  # noqa: F811
    started = serve(refdata_db, applier("D"), args=ROLES)
    ready(refdata_db)
    eventually(lambda: refdata_db.value("select count(*) from platform.bus_partition where topic = %s", [COMMANDS]) > 0)
    return started


@pytest.fixture
def client(server, token):
    with server.client(token("acme", sub="ann", scope=ALL)) as one:
        yield one


@pytest.fixture
def dlq(refdata_db, jwks_path, tmp_path):  # noqa: F811
    config = tmp_path / "dlq.yaml"
    config.write_text(to_yaml(base_config(refdata_db, jwks_path)))

    def call(*args, env=None):
        done = run("dlq", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password, **(env or {})})
        return done.returncode, done.stdout.splitlines(), done.stderr
    return call


# ---- a poison command, from its death to its effect ----

def bury(database, code="LATER", tenant="acme", value=1):
    """A command of another program for a dictionary that does not exist: a dead letter without a trace in update_request."""
    sent = delta(code, {"a": value}, tenant=tenant)
    ready(database)
    publish(database, [sent], requests=False)
    return eventually(lambda: [(f"{p}-{o}", sent) for p, o, payload in database.query(
        "select partition, message_offset, payload from platform.bus_message where topic = %s", [COMMANDS])
        if sent["eventId"].encode() in bytes(payload)])[0]


def test_a_poison_command_is_requeued_after_its_cause_is_repaired_and_applied_once(serve, refdata_db, token):  # noqa: F811
    first = serve(refdata_db, applier("D"), args=ROLES)
    letter, sent = bury(refdata_db)
    first.stop()
    server = serve(refdata_db, applier("D", "LATER"), args=ROLES)
    with server.client(token("acme", sub="ann", scope=ALL)) as client:
        (item,) = page(client)["items"]
        assert item["id"] == letter and item["state"] == "open" and item["tenant_id"] == "acme" and "not a command" in item["reason"]
        whole = page(client, f"{PATH}/{letter}")
        assert json.loads(whole["payload"])["eventId"] == sent["eventId"] and whole["headers"]["dlq-topic"] == "refdata.commands"
        assert post(client, "requeue", {"ids": [letter], "reason": "LATER exists now"}) == {"matched": 1, "changed": 1, "dry_run": False}
        eventually(lambda: items_of(refdata_db, "LATER", tenant="acme") == {"a": 1})
        assert post(client, "requeue", {"ids": [letter]})["changed"] == 0  # it is decided
        assert page(client)["items"] == []
        (item,) = page(client, PATH + "?state=requeued")["items"]
        assert item["decided_by"] == "ann" and item["decided_reason"] == "LATER exists now" and item["id"] == letter
    assert refdata_db.value("select version from refdata.dictionary_meta where dict_code = 'LATER'") == 1
    (headers,) = [h for h, p in refdata_db.query("select headers, payload from platform.bus_message where topic = 'refdata.commands'"
                                                 " order by created_at desc limit 1")]
    assert not any(name.startswith("dlq-") for name in headers[::2])
    assert refdata_db.query("select who, action, target, ids, changed, reason from platform.ops_audit order by id limit 1") == [
        ("ann", "dead_letter.requeue", COMMANDS, [letter], 1, "LATER exists now")]


@pytest.mark.parametrize("step", ["letters.before_publish", "letters.after_publish"])
def test_a_process_that_is_killed_while_it_requeues_leaves_an_open_letter(serve, refdata_db, token, step):  # noqa: F811
    first = serve(refdata_db, applier("D"), args=ROLES)
    letter, _ = bury(refdata_db)
    first.stop()
    dying = serve(refdata_db, applier("D", "LATER"), args=["--roles", "ops"], env={"FRESHET_FAILPOINTS": f"{step}=kill#1"})
    with dying.client(token("acme", scope=ALL)) as client:
        with pytest.raises(Exception):
            client.post(PATH + "/requeue", {"ids": [letter], "reason": "x"})
    eventually(lambda: dying.process.poll() == -signal.SIGKILL)
    server = serve(refdata_db, applier("D", "LATER"), args=ROLES)
    with server.client(token("acme", scope=ALL)) as client:
        eventually(lambda: ids_of(page(client)) == [letter])
        assert items_of(refdata_db, "LATER", tenant="acme") == {}
        assert post(client, "requeue", {"ids": [letter]})["changed"] == 1
    eventually(lambda: items_of(refdata_db, "LATER", tenant="acme") == {"a": 1})
    assert refdata_db.value("select version from refdata.dictionary_meta where dict_code = 'LATER'") == 1


def test_two_operators_at_once_requeue_a_letter_once(server, refdata_db, token):  # noqa: F811
    letters = put_letters(refdata_db, 50)
    before = refdata_db.value("select sum(next_offset) from platform.bus_partition where topic = 'refdata.commands'")
    changed = []

    def requeue(body):
        with server.client(token("acme", scope=ALL)) as client:
            changed.append(post(client, "requeue", body)["changed"])
    threads = [threading.Thread(target=requeue, args=(body,)) for body in ({"filter": {}}, {"ids": letters}, {"ids": letters[::-1]})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(changed) == 50
    assert refdata_db.value("select sum(next_offset) from platform.bus_partition where topic = 'refdata.commands'") == before + 50


# ---- lists ----

def test_every_source_is_listed_with_what_waits_there(server, client, refdata_db):  # noqa: F811
    leave(refdata_db, "D", 1, 1, tenant="acme")
    refdata_db.query("update refdata.outbox_event set failed_at = now(), last_error = 'no'")
    put_letters(refdata_db, 3)
    sources = {(s["source"], s["kind"]): s for s in page(client, "/v1/ops/dead-letters?tenant=*")["items"]}
    assert sources[COMMANDS, "topic"]["count"] == {"count": 3, "more": False}
    assert sources[COMMANDS, "topic"]["engine"] == "postgres" and sources[COMMANDS, "topic"]["oldest_at"].endswith("Z")
    assert sources["refdata.outbox_event", "outbox"]["count"] == {"count": 1, "more": False}
    post(client, "discard", {"filter": {}})
    sources = {s["source"]: s for s in page(client, "/v1/ops/dead-letters?tenant=*")["items"]}
    assert sources[COMMANDS]["count"] == {"count": 0, "more": False} and sources[COMMANDS]["oldest_at"] is None


def test_letters_are_listed_newest_first_over_all_partitions(client, refdata_db):  # noqa: F811
    made = []
    for n in range(20):
        made += put_letters(refdata_db, 1, partition=n % 3)
    assert ids_of(page(client)) == made[::-1]
    seen, cursor = [], ""
    while cursor is not None:
        answer = page(client, PATH + "?limit=3" + (cursor and "&cursor=" + cursor))
        seen += ids_of(answer)
        cursor = answer["next_cursor"]
    assert seen == made[::-1]


def test_filters_narrow(client, refdata_db):  # noqa: F811
    one = put_letters(refdata_db, 2, reason="first reason")
    two = put_letters(refdata_db, 2, reason="second reason", partition=1)
    assert sorted(ids_of(page(client, PATH + "?reason=first"))) == one
    assert sorted(ids_of(page(client, PATH + "?reason=second%20reason"))) == two
    assert page(client, PATH + "?to=2020-01-01T00:00:00Z")["items"] == [] and len(page(client, PATH + "?from=2020-01-01T00:00:00Z")["items"]) == 4
    assert post(client, "discard", {"filter": {"reason": "first"}, "dry_run": True}) == {"matched": 2, "changed": 0, "dry_run": True}
    assert post(client, "discard", {"filter": {"reason": "first"}})["changed"] == 2
    assert sorted(ids_of(page(client))) == two and sorted(ids_of(page(client, PATH + "?state=discarded"))) == one


def test_other_tenants_see_nothing_and_change_nothing(server, token, refdata_db):  # noqa: F811
    own = put_letters(refdata_db, 1)
    other = put_letters(refdata_db, 1, tenant="other")
    nobody = put_letters(refdata_db, 1, key=b"\xff\x00")
    with server.client(token("acme", scope=WRITE)) as client:
        assert ids_of(page(client)) == own
        assert page(client, f"{PATH}/{other[0]}", 404) and page(client, f"{PATH}/{nobody[0]}", 404)
        assert page(client, PATH + "?tenant=*", 403)["code"] == "TENANT_MISMATCH"
        assert post(client, "discard", {"ids": other + nobody})["changed"] == 0
        (source,) = [s for s in page(client, "/v1/ops/dead-letters")["items"] if s["source"] == COMMANDS]
        assert source["count"]["count"] == 1
        assert post(client, "discard", {"filter": {}})["changed"] == 1
    with server.client(token("acme", scope=ALL)) as client:
        assert sorted(ids_of(page(client, PATH + "?tenant=*"))) == sorted(other + nobody)
        assert ids_of(page(client, PATH + "?tenant=other")) == other
    with server.client(token("acme", scope="ops:read")) as client:
        post(client, "discard", {"filter": {}}, 403)


def test_hostile_letters_are_shown_as_they_are(client, refdata_db):  # noqa: F811
    script = "<script>alert(1)</script>\u202e\x01"
    (text,) = put_letters(refdata_db, 1, payload=script.encode(), key=b"acme:<b>", reason=script)
    (binary,) = put_letters(refdata_db, 1, payload=b"\x00\xff", key=b"acme:D")
    (big,) = put_letters(refdata_db, 1, payload="ж".encode() * 524288, key=b"acme:D")
    shown = page(client, f"{PATH}/{text}")
    assert shown["payload"] == script and shown["key"] == "acme:<b>" and shown["reason"] == script and "payload_encoding" not in shown
    shown = page(client, f"{PATH}/{binary}")
    assert base64.b64decode(shown["payload"]) == b"\x00\xff" and shown["payload_encoding"] == "base64"
    shown = page(client, f"{PATH}/{big}")
    assert shown["payload"] == "ж" * 32768 and shown["payload_truncated"] is True and shown["bytes"] == 1048576


@pytest.mark.parametrize("path, field", [("?state=odd", "state"), ("?limit=0", "limit"), ("?cursor=zz", "cursor"), ("?x=1", "x"),
                                         ("?from=x", "from"), ("?database=no", "database"), ("/nonsense", "id"), ("/1-x", "id"),
                                         ("/0-9223372036854775807", "id")])
def test_a_bad_query_is_refused_with_its_field(client, path, field):
    assert page(client, PATH + path, 400)["field"] == field


@pytest.mark.parametrize("body, field", [({"ids": ["7"]}, "ids"), ({"ids": ["0-9223372036854775807"]}, "ids"), ({"ids": ["1-1"], "reason": ""}, "reason"), ({}, "ids"),
                                         ({"filter": {"state": "requeued"}}, "state"), ({"filter": {"from": "x"}}, "from"),
                                         ({"ids": ["1-1"], "database": "no"}, "database")])
def test_a_bad_body_is_refused_with_its_field(client, body, field):
    assert post(client, "requeue", body, 400)["field"] == field


def test_a_requeue_that_takes_long_commits_what_it_has_done(client, refdata_db):  # noqa: F811
    """Publishers wait for its lock of the topic: it holds it for seconds, and its deadline does not undo everything."""
    put_letters(refdata_db, 24, payload=b"x" * (2 << 20))
    refdata_db.query("create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.6); return new; end $$")
    refdata_db.query("create trigger slow before insert on platform.bus_message for each row when (new.topic = 'refdata.commands')"
                     " execute function slow()")
    answer = post(client, "requeue", {"filter": {}})
    assert answer["more"] is True and 0 < answer["changed"] < answer["matched"] == 24
    refdata_db.query("drop trigger slow on platform.bus_message")
    rest = post(client, "requeue", {"filter": {}})
    assert rest["changed"] >= 24 - answer["changed"] and "more" not in rest  # those requeued have died again meanwhile


def test_a_requeue_keeps_the_batches_before_one_that_fails(client, refdata_db):  # noqa: F811
    """Otherwise the next requeue sends their messages a second time: Kafka and NATS take nothing back."""
    put_letters(refdata_db, 200)
    put_letters(refdata_db, 1, key=b"acme:REFUSED")
    refdata_db.query("create function platform.refuse() returns trigger language plpgsql as $$ begin"
                     " raise exception 'refused by the test'; end $$;"
                     "create trigger refuse before insert on platform.bus_message for each row"
                     " when (new.topic = 'refdata.commands' and new.key = 'acme:REFUSED') execute function platform.refuse()")
    assert post(client, "requeue", {"filter": {}}) == {"matched": 201, "changed": 200, "dry_run": False, "more": True}
    assert refdata_db.value("select changed from platform.ops_audit order by at desc limit 1") == 200
    assert refdata_db.value("select count(*) from platform.dead_letter_decision") == 200
    assert client.post("/v1/ops/dead-letters/" + COMMANDS + "/requeue", {"reason": "again", "filter": {}}).status >= 500
    refdata_db.query("drop trigger refuse on platform.bus_message")
    assert post(client, "requeue", {"filter": {}})["changed"] >= 1  # and those that have died again meanwhile


def test_a_source_that_does_not_exist_is_404(client):
    assert page(client, "/v1/ops/dead-letters/refdata.nothing", 404)["code"] == "NOT_FOUND"
    assert page(client, f"{PATH}/0-999999", 404)["code"] == "NOT_FOUND"


def test_failed_events_of_an_outbox_are_dead_letters_too(client, refdata_db):  # noqa: F811
    leave(refdata_db, "D", 1, 3, tenant="acme")
    refdata_db.query("update refdata.outbox_event set failed_at = now(), last_error = 'reason ' || version")
    path = "/v1/ops/dead-letters/refdata.outbox_event"
    items = page(client, path)["items"]
    assert [item["reason"] for item in items] == ["reason 1", "reason 2", "reason 3"] and items[0]["key"] == "acme/D"
    assert json.loads(page(client, f"{path}/{items[0]['id']}")["payload"])["version"] == 1
    assert post(client, "requeue", {"filter": {"reason": "reason 1"}}, source="refdata.outbox_event")["changed"] == 1
    assert post(client, "discard", {"ids": [items[1]["id"]]}, source="refdata.outbox_event")["changed"] == 1
    assert len(page(client, path)["items"]) == 1 and len(page(client, path + "?state=discarded")["items"]) == 1


def test_a_page_costs_milliseconds_with_100_000_letters(client, refdata_db):  # noqa: F811
    for partition in range(4):
        put_letters(refdata_db, 25000, partition=partition)
    refdata_db.query("analyze platform.bus_message")

    def timed(path):
        begun = time.monotonic()
        return page(client, path), time.monotonic() - begun
    answer, first = timed(PATH)
    assert len(answer["items"]) == 50 and answer["next_cursor"]
    (source,) = [s for s in page(client, "/v1/ops/dead-letters")["items"] if s["source"] == COMMANDS]
    assert source["count"]["more"] is True
    # all but the oldest of each partition are decided: the rest is found without reading them
    refdata_db.query("insert into platform.dead_letter_decision (engine, topic, partition, message_offset, letter_us, state, decided_by, reason)"
                     " select 'postgres', topic, partition, message_offset, (extract(epoch from created_at) * 1000000)::bigint,"
                     " 'discarded', 'x', 'x' from platform.bus_message where topic = %s and message_offset > 0", [COMMANDS])
    refdata_db.query("analyze platform.dead_letter_decision")
    late, found, cursor = 0, [], ""
    while cursor is not None:
        answer, took = timed(PATH + (cursor and "?cursor=" + cursor))
        late, found, cursor = max(late, took), found + ids_of(answer), answer["next_cursor"]
    assert sorted(found) == ["0-0", "1-0", "2-0", "3-0"]
    print("first page", first, "the last four open ones", late)
    assert first < 1 and late < 2  # in a build with sanitizers, on a busy machine
    assert post(client, "discard", {"filter": {}})["changed"] == 4


# ---- the command line ----

def test_the_command_line_lists_shows_requeues_and_discards(server, dlq, refdata_db):  # noqa: F811
    status, lines, said = dlq("list")
    assert status == 0 and lines == [] and "no such dead letters" in said
    letters = put_letters(refdata_db, 3, payload=b'{"x": 1}', reason="broken \x1b[2J")
    leave(refdata_db, "D", 1, 1, tenant="acme")
    refdata_db.query("update refdata.outbox_event set failed_at = now(), last_error = 'no'")
    event = refdata_db.value("select id from refdata.outbox_event")
    status, lines, _ = dlq("list")
    assert status == 0 and [line.split()[0] for line in lines] == [f"id={COMMANDS}/{letter}" for letter in letters] + [
        f"id=refdata.outbox_event/{event}"]
    assert "kind=topic status=open tenant=acme event=e-0" in lines[0] and lines[0].endswith("reason=broken ?[2J")
    assert [line.split()[0] for line in dlq("list", "--source", "refdata.outbox_event")[1]] == [f"id=refdata.outbox_event/{event}"]
    assert len(dlq("list", "--reason", "broken")[1]) == 3
    status, shown, _ = dlq("show", f"{COMMANDS}/{letters[0]}")
    assert status == 0 and 'payload: {"x": 1}' in shown and "header dlq-group: refdata-apply" in shown
    assert dlq("requeue", f"{COMMANDS}/{letters[0]}", "--dry-run")[:2] == (0, [f"{COMMANDS}: 1 would be sent again"])
    assert dlq("requeue", f"{COMMANDS}/{letters[0]}", "--note", "mended")[:2] == (0, [f"{COMMANDS}: 1 sent again"])
    status, _, said = dlq("requeue", f"{COMMANDS}/{letters[0]}")
    assert status == 1 and "requeued or discarded before" in said
    assert dlq("discard", "--source", COMMANDS, "--reason", "broken")[:2] == (0, [f"{COMMANDS}: 2 discarded"])
    assert dlq("requeue", f"refdata.outbox_event/{event}")[:2] == (0, ["refdata.outbox_event: 1 sent again"])
    assert len(dlq("list", "--status", "discarded")[1]) == 2 and len(dlq("list", "--status", "requeued")[1]) == 1
    assert [letter for letter in letters if f"{COMMANDS}/{letter} " in "".join(dlq("list")[1])] == []
    assert [(who.split("@")[0][:4], action, reason) for who, action, reason in refdata_db.query(
        "select who, action, reason from platform.ops_audit order by id")] == [
        ("cli:", "dead_letter.requeue", "mended"), ("cli:", "dead_letter.discard", "no note was given"),
        ("cli:", "dead_letter.requeue", "no note was given")]
    for args in (("requeue", f"{COMMANDS}/x"), ("requeue", f"{COMMANDS}/0-1", "refdata.outbox_event/1"), ("requeue", "nothing/1"),
                 ("list", "--source", "nothing")):
        assert dlq(*args)[0] == 2, args


def test_more_letters_than_one_transaction_takes_are_counted_and_all_requeued(server, client, dlq, refdata_db):  # noqa: F811
    put_letters(refdata_db, 2500)
    assert post(client, "requeue", {"filter": {}, "dry_run": True}) == {"matched": 2500, "changed": 0, "dry_run": True}
    assert dlq("requeue", "--source", COMMANDS, "--all")[:2] == (0, [f"{COMMANDS}: 2500 sent again"])
    assert refdata_db.value("select count(*) from platform.ops_audit") == 3
    eventually(lambda: refdata_db.value("select count(*) from platform.bus_message where topic = %s",
                                        [COMMANDS]) == 5000)  # they are dead again: nothing was repaired


# ---- what is not chosen does not stand in the way ----

def test_a_limit_holds_for_letters_of_a_topic_too(server, dlq, refdata_db):  # noqa: F811
    letters = put_letters(refdata_db, 30)
    assert dlq("discard", "--source", COMMANDS, "--all", "--limit", "5") == (0, [f"{COMMANDS}: 5 discarded"], "")
    assert refdata_db.value("select count(*) from platform.dead_letter_decision") == 5
    assert dlq("list", "--source", COMMANDS)[1][0].split()[0] == f"id={COMMANDS}/{letters[5]}"


def test_letters_of_others_do_not_hide_those_behind_them(server, token, refdata_db):  # noqa: F811
    put_letters(refdata_db, 20500, tenant="other")
    mine = put_letters(refdata_db, 3, tenant="acme")
    with server.client(token("acme", scope=WRITE)) as one:
        assert post(one, "discard", {"filter": {}, "dry_run": True})["matched"] == 3
        assert post(one, "discard", {"filter": {}})["changed"] == 3
        assert page(one)["items"] == [] and len(mine) == 3


def test_letters_without_content_do_not_hide_those_behind_them(client, refdata_db):  # noqa: F811
    put_letters(refdata_db, 1005, payload=b"", reason="not kept")
    refdata_db.query("update platform.bus_message set headers = headers[1:10] where topic = %s", [COMMANDS])
    kept = put_letters(refdata_db, 1)[0]
    assert post(client, "requeue", {"filter": {}})["changed"] == 1
    assert kept not in ids_of(page(client, PATH + "?limit=500"))


def test_a_requeue_that_waits_for_publishers_has_decided_nothing(server, client, token, refdata_db):  # noqa: F811
    """Publishers hold partitions and wait for further ones; a requeue with decisions in its hands would make others wait for them all."""
    letter = put_letters(refdata_db, 1)[0]
    answers = []

    def requeue():
        with server.client(token("acme", sub="bob", scope=ALL)) as one:
            answers.append(post(one, "requeue", {"ids": [letter]}))

    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as publisher:
        connection.autocommit = False
        publisher.execute("select from platform.bus_partition where topic = 'refdata.commands' order by partition desc limit 1 for update")
        waiting = threading.Thread(target=requeue)
        waiting.start()
        eventually(lambda: refdata_db.value("select count(*) from pg_locks where not granted") > 0)
        assert post(client, "discard", {"ids": [letter]})["changed"] == 1
        connection.rollback()
        waiting.join()
    assert answers[0]["changed"] == 0


def test_the_overview_counts_letters_that_are_open(client, refdata_db):  # noqa: F811
    def counted(one, tenant="acme"):
        return page(one, f"/v1/ops/overview?tenant={tenant}")["dead_letters"]

    letters = put_letters(refdata_db, 4) + put_letters(refdata_db, 2, partition=1)
    put_letters(refdata_db, 3, tenant="other")
    assert counted(client, "*") == {"count": 9, "more": False}
    post(client, "discard", {"ids": letters[1:]})
    assert counted(client, "*") == {"count": 4, "more": False} and counted(client) == {"count": 1, "more": False}
    post(client, "discard", {"filter": {}})
    assert counted(client, "*") == {"count": 3, "more": False} and counted(client) == {"count": 0, "more": False}
    assert not any("dead letter" in problem["what"] for problem in page(client, "/v1/ops/overview?tenant=acme")["problems"])
