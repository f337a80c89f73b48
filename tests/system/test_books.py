"""Everything accepted ends: `freshet verify --books` names what nothing carries any more, and the auditor decides it (R1, R10, R11)."""
import contextlib
import json

import pytest

from lib import chat, items, notification
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.refdata import TENANT, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import chunks, commit, delta, status_path, updates_path

COMMAND, APPLY = ("--roles", "command"), ("--roles", "apply")


def settings(**updates):
    changes = pod("A", "B")
    changes["refdata"]["updates"] = {"auditAfter": "100ms", **updates}
    return changes


@pytest.fixture
def accept(serve, refdata_db, token):  # noqa: F811
    """accept(body…) posts to a process that only accepts; the client is accept.client."""
    server = serve(refdata_db, settings(), args=COMMAND)
    client = server.client(token(TENANT))

    def post(*bodies):
        for body in bodies:
            assert client.post(updates_path("ASYNC"), body).status == 202
        return [body["eventId"] for body in bodies]
    post.client, post.server = client, server
    return post


def books(server, *args):
    """(exit status, {kind: (accepted, decided, carried, lost, doubled)}, lines that name something)."""
    done = run("verify", "--books", "--config", server.config_path, *args, env={**server.env, "FRESHET_FAILPOINTS": ""})
    assert done.returncode in (0, 3) and done.stdout, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:] if not line.startswith(("WRONG ", "and "))]
    named = [line for line in done.stdout.splitlines() if line.startswith("WRONG ")]
    return done.returncode, {words[1]: tuple(map(int, words[2:])) for words in lines}, named


def lose(database, *event_ids):
    """Their messages are gone."""
    database.query("delete from platform.bus_message where topic = 'refdata.commands' and headers && %s", (list(event_ids),))


def state(accept, event_id):
    found = accept.client.get(status_path(event_id)).json()
    return found["status"], found.get("errorCode")


def test_an_update_whose_message_is_gone_is_named_and_fails(serve, refdata_db, accept):  # noqa: F811
    """R1, R2, R10: the others are applied, each once."""
    before, lost, after = accept(delta("A", {"k": 1}), delta("A", {"k": 2}), delta("B", {"k": 3}))
    status, lines, named = books(accept.server)
    assert (status, lines["update"], named) == (0, (3, 0, 3, 0, 0), [])
    lose(refdata_db, lost)
    status, lines, named = books(accept.server)
    assert (status, lines["update"]) == (3, (3, 0, 2, 1, 0))
    assert len(named) == 1 and lost in named[0] and "not on the bus any more" in named[0]
    refdata_db.query("update refdata.audit set due_at = now() + interval '1 day', position = now() + interval '1 day',"
                     " whole_at = now()")  # the clock was set back since
    server = serve(refdata_db, settings(), args=APPLY)
    eventually(lambda: state(accept, lost) == ("FAILED", "COMMAND_LOST"))
    for event_id in (before, after):
        eventually(lambda: state(accept, event_id) == ("COMMITTED", None))  # pylint: disable=cell-var-from-loop
    status, lines, named = books(accept.server)
    assert (status, lines["update"], named) == (0, (3, 3, 0, 0, 0), [])
    assert refdata_db.query("select dict_code, version from refdata.dictionary_meta order by 1") == [("A", 1), ("B", 1)]
    assert len(server.logs(event="update_lost", eventId=lost, result="failed")) == 1
    eventually(lambda: server.metrics()['refdata_audit_total{result="failed"}'] == 1)
    # A message that turns up after all has no effect.
    assert refdata_db.value("select count(*) from refdata.processed_event where event_id = %s", (lost,)) == 1


def test_an_update_that_only_kafka_had_fails_on_the_embedded_bus(serve, refdata_db, accept):  # noqa: F811
    """R10: after a change of bus.commands no process publishes the rows of command_outbox."""
    (event_id,) = accept(delta("A", {"k": 1}))
    lose(refdata_db, event_id)
    refdata_db.query("insert into refdata.command_outbox (tenant_id, dict_code, event_id, payload, waited, published, published_at)"
                     " values (%s, 'A', %s, '{}', false, true, clock_timestamp())", (TENANT, event_id))
    serve(refdata_db, settings(), args=APPLY)
    eventually(lambda: state(accept, event_id) == ("FAILED", "COMMAND_LOST"))
    assert refdata_db.value("select published from refdata.command_outbox where event_id = %s", (event_id,))


def move_group(database, topic, by):
    """As after a restore of positions that are not this database's."""
    database.query("update platform.bus_cursor set position = position + %s where topic = %s and group_name not like 'entity-%%'",
                   (by, topic))


def followed(database, topic):
    """Has the owner of its entities read all of it?"""
    return database.query("select c.position = p.next_offset from platform.bus_cursor c join platform.bus_partition p"
                          " using (topic, partition) where topic = %s and group_name like 'entity-%%'", (topic,))


def test_a_message_that_the_group_has_passed_carries_nothing(refdata_db, accept):  # noqa: F811
    """R1, R10"""
    (event_id,) = accept(delta("A", {"k": 1}))
    move_group(refdata_db, "refdata.commands", 1)
    status, lines, named = books(accept.server)
    assert (status, lines["update"]) == (3, (1, 0, 0, 1, 0)) and len(named) == 1 and event_id in named[0]


def rounds(database):
    return database.value("select due_at from refdata.audit")


def test_an_update_that_waits_in_a_queue_is_left_alone(serve, refdata_db, accept):  # noqa: F811
    """R10: however long it takes until a process handles its partition."""
    with contextlib.closing(refdata_db.connect()) as other, other.cursor() as cursor:
        (event_id,) = accept(delta("A", {"k": 1}))
        other.autocommit = False
        cursor.execute("select from platform.bus_cursor where topic = 'refdata.commands' for update")
        server = serve(refdata_db, settings(), args=APPLY)
        for _ in range(4):
            seen = rounds(refdata_db)
            eventually(lambda: rounds(refdata_db) > seen)  # pylint: disable=cell-var-from-loop
        assert state(accept, event_id) == ("PENDING", None)
        assert books(accept.server)[0] == 0
        other.rollback()
    eventually(lambda: state(accept, event_id) == ("COMMITTED", None))
    assert not server.logs(event="update_lost")


def test_chunks_end_with_their_snapshot_or_without(serve, refdata_db, accept):  # noqa: F811
    """R8: a chunk that was applied is carried by its snapshot, to its deadline; chunks that all were lost have none."""
    half, gone = chunks("A", {"a": 1, "b": 2}, 2), chunks("B", {"a": 1, "b": 2}, 2)
    staged, missing = accept(*half)
    lost = accept(*gone)
    lose(refdata_db, missing, *lost)
    empty = books(accept.server)[1]
    assert empty["update"] == (4, 0, 1, 3, 0)
    serve(refdata_db, settings(), args=APPLY)
    for event_id in lost:
        eventually(lambda: state(accept, event_id) == ("FAILED", "COMMAND_LOST"))  # pylint: disable=cell-var-from-loop
    eventually(lambda: books(accept.server)[:2] == (0, {**empty, "update": (4, 2, 2, 0, 0)}))
    serve(refdata_db, settings(snapshotExpiry="100ms"), args=APPLY)
    eventually(lambda: state(accept, staged) == ("FAILED", "SNAPSHOT_INCOMPLETE"))
    # Its snapshot, once begun, decides it too.
    eventually(lambda: state(accept, missing)[0] == "FAILED")
    assert books(accept.server)[0] == 0


def test_a_command_that_is_there_twice_is_named_and_has_one_effect(serve, refdata_db, accept):  # noqa: F811
    (event_id,) = accept(delta("A", {"k": 1}))
    refdata_db.query("insert into platform.bus_message select topic, partition, message_offset + 1, key, headers, payload, created_at"
                     " from platform.bus_message where headers && %s", ([event_id],))
    refdata_db.query("update platform.bus_partition set next_offset = 2 where next_offset = 1 and topic = 'refdata.commands'")
    status, lines, named = books(accept.server)
    assert (status, lines["update"]) == (3, (1, 0, 0, 0, 1)) and event_id in named[0]
    serve(refdata_db, settings(), args=APPLY)
    eventually(lambda: state(accept, event_id) == ("COMMITTED", None))
    eventually(lambda: books(accept.server)[0] == 0)
    assert refdata_db.value("select version from refdata.dictionary_meta where dict_code = 'A'") == 1


def test_an_event_with_a_lease_that_never_ends_is_named(serve, refdata_db, token):  # noqa: F811
    """O1: such as after the database's clock was set back."""
    server = serve(refdata_db, settings(), args=("--roles", "command,apply"))
    assert commit(server.client(token(TENANT)), delta("A", {"k": 1})).status == 200
    assert books(server)[1]["refdata.outbox_event"] == (1, 0, 1, 0, 0)
    refdata_db.query("update refdata.outbox_event set locked_until = now() + interval '1 day'")
    status, lines, named = books(server)
    assert (status, lines["refdata.outbox_event"]) == (3, (1, 0, 0, 1, 0)) and len(named) == 1
    assert "outbox unlock" in named[0]
    done = run("outbox", "unlock", "--all", "--config", server.config_path, env=server.env)
    assert done.returncode == 0, done.stderr
    assert books(server)[0] == 0


def test_a_database_that_does_not_answer_is_no_proof(serve, refdata_db, accept, tmp_path):  # noqa: F811
    config = tmp_path / "elsewhere.yaml"
    with open(accept.server.config_path, encoding="utf-8") as file:
        config.write_text(file.read().replace(f"/{refdata_db.name}", "/nowhere"))
    done = run("verify", "--books", "--config", config, env=accept.server.env)
    assert done.returncode == 1 and "nowhere" in done.stderr


# ---- events ----

ENTITLEMENT = ("--roles", "entitlement")


def test_an_event_that_was_published_and_lost_is_named_and_published_again(serve, refdata_db, token):  # noqa: F811
    """N1, O1: such as one that the bus deleted before notification ran; each grant has one notification."""
    changes = {**notification.FAST, "notification": {**notification.FAST.get("notification", {}), "audit-after": "100ms"}}
    server = serve(refdata_db, changes, args=ENTITLEMENT)
    client = server.client(token(TENANT, scope=SCOPES))
    assert grant(client, "first").status == 200
    other = serve(refdata_db, changes, args=notification.ROLE)
    eventually(lambda: notification.statuses(refdata_db, "first") == ["SENT"])
    other.stop()
    for user in ("lost", "kept"):
        assert grant(client, user).status == 200
    eventually(lambda: books(server)[1]["entitlement.events"] == (3, 1, 2, 0, 0))
    move_group(refdata_db, notification.TOPIC, 2)  # a message that it has passed carries nothing
    assert books(server)[1]["entitlement.events"] == (3, 1, 0, 2, 0)
    move_group(refdata_db, notification.TOPIC, -2)
    lost = refdata_db.value("select event_id::text from entitlement.outbox_events where payload like '%%\"lost\"%%'")
    eventually(lambda: all(done for done, in followed(refdata_db, notification.TOPIC)))
    refdata_db.query("delete from platform.bus_message where topic = %s and headers && %s", (notification.TOPIC, [lost]))
    status, lines, named = books(server)
    assert (status, lines["entitlement.events"]) == (3, (3, 1, 1, 1, 0)) and len(named) == 1 and lost in named[0]
    refdata_db.query("update notification.audit set due_at = now() + interval '1 day', position = now() + interval '1 day',"
                     " whole_at = now()")  # the clock was set back since
    other.start()
    for user in ("first", "lost", "kept"):
        eventually(lambda: notification.statuses(refdata_db, user) == ["SENT"])  # pylint: disable=cell-var-from-loop
    eventually(lambda: books(server)[0] == 0)
    lines = books(server)[1]
    assert (lines["entitlement.events"], lines["notification.notifications"]) == ((3, 3, 0, 0, 0), (3, 3, 0, 0, 0))
    assert len(other.logs(event="event_lost", eventId=lost, result="lost")) == 1
    assert len(other.logs(event="event_lost")) == 1


def test_a_notification_with_a_lease_that_never_ends_is_named(serve, refdata_db, token):  # noqa: F811
    """N1: such as after the database's clock was set back."""
    server = serve(refdata_db, notification.FAST, args=ENTITLEMENT)
    other = serve(refdata_db, notification.FAST, args=notification.ROLE)
    assert grant(server.client(token(TENANT, scope=SCOPES)), "user").status == 200
    eventually(lambda: notification.statuses(refdata_db, "user") == ["SENT"])
    other.stop()
    refdata_db.query("update notification.notifications set status = 'PENDING', lease_until = now() + interval '1 day'")
    status, lines, named = books(server)
    assert (status, lines["notification.notifications"]) == (3, (1, 0, 0, 1, 0))
    assert len(named) == 1 and refdata_db.value("select notification_id::text from notification.notifications") in named[0]
    refdata_db.query("update notification.notifications set lease_until = null")
    assert books(server)[1]["notification.notifications"] == (1, 0, 1, 0, 0)


def test_an_event_that_was_handled_longer_ago_than_is_kept_is_not_published_again(serve, refdata_db, token):  # noqa: F811
    """N1, N4: such as one that an operator published again: its row is younger than what retention deleted."""
    changes = {**notification.FAST, "notification": {**notification.FAST.get("notification", {}), "audit-after": "100ms",
                                                     "retention": {"retention-days": 1}}}
    server = serve(refdata_db, changes, args=ENTITLEMENT)
    other = serve(refdata_db, changes, args=notification.ROLE)
    client = server.client(token(TENANT, scope=SCOPES))
    for user in ("old", "new"):
        assert grant(client, user).status == 200
        eventually(lambda: notification.statuses(refdata_db, user) == ["SENT"])  # pylint: disable=cell-var-from-loop
    other.stop()
    refdata_db.query("update entitlement.outbox_events set created_at = now() - interval '25 hours' where payload like '%%\"old\"%%'")
    for table in ("notifications", "processed_events"):
        refdata_db.query(f"delete from notification.{table} where event_id in"
                         " (select event_id from entitlement.outbox_events where payload like '%%\"old\"%%')")
    refdata_db.query("update notification.audit set whole_at = '-infinity'")
    assert books(server)[0] == 0
    other.start()
    due = "select due_at from notification.audit"
    for _ in range(3):
        seen = refdata_db.value(due)
        eventually(lambda: refdata_db.value(due) > seen)  # pylint: disable=cell-var-from-loop
    assert not other.logs(event="event_lost") and not notification.statuses(refdata_db, "old")


def test_an_event_that_its_owner_did_not_read_is_named_and_published_again(serve, refdata_db, token):  # noqa: F811
    """H4, O1: the copies of an entity follow its events."""
    server = serve(refdata_db, args=items.INTAKE)
    with server.client(token(TENANT)) as client:
        for sku in ("kept", "lost"):
            assert items.post(client, items.item(sku)).status == 201
    done = "select distinct status from intake.event_outbox"
    eventually(lambda: refdata_db.query(done) == [("PUBLISHED",)] and
               sum(done for done, in followed(refdata_db, "intake.events")) == 4)
    kind = "intake.events:entity-item"
    assert books(server)[1][kind] == (2, 2, 0, 0, 0)
    server.stop()
    kept, lost = (refdata_db.value("select event_id::text from intake.event_outbox where sku = %s", (sku,)) for sku in ("kept", "lost"))
    refdata_db.query("with gone as (delete from platform.bus_message where topic = 'intake.events' and headers && %s"
                     " returning partition, message_offset) update platform.bus_cursor c set position = g.message_offset from gone g"
                     " where c.topic = 'intake.events' and c.partition = g.partition", ([lost],))
    status, lines, named = books(server)
    assert (status, lines[kind][3]) == (3, 1) and len(named) == 1 and kind in named[0], named
    server.start()
    message = "select count(*) from platform.bus_message where topic = 'intake.events' and headers && %s"
    eventually(lambda: refdata_db.value(message, ([lost],)) == 1)
    eventually(lambda: books(server)[0] == 0)
    (line,) = server.logs(event="events_lost")
    assert (line["eventId"], line["republished"]) == (lost, 1)
    assert refdata_db.value(message, ([kept],)) == 1
    assert server.metrics()['freshet_events_republished_total{outbox="intake.event_outbox"}'] == 1


def test_events_of_a_gap_that_cannot_be_published_again_at_once_are_later(serve, refdata_db, token):  # noqa: F811
    """H4, O1: the bus reports a gap once."""
    server = serve(refdata_db, args=items.INTAKE)
    with server.client(token(TENANT)) as client:
        assert items.post(client, items.item("lost")).status == 201
    eventually(lambda: refdata_db.query("select distinct status from intake.event_outbox") == [("PUBLISHED",)] and
               sum(done for done, in followed(refdata_db, "intake.events")) == 4)
    server.stop()
    refdata_db.query("with gone as (delete from platform.bus_message where topic = 'intake.events' returning partition, message_offset)"
                     " update platform.bus_cursor c set position = g.message_offset from gone g"
                     " where c.topic = 'intake.events' and c.partition = g.partition")
    refdata_db.query("create function public.refuse() returns trigger language plpgsql as $$ begin raise 'not now'; end $$;"
                     "create trigger refuse before update on intake.event_outbox for each row execute function public.refuse()")
    server.start()
    eventually(lambda: len(server.logs(event="audit_failed")) > 1)
    refdata_db.query("drop trigger refuse on intake.event_outbox")
    (line,) = eventually(lambda: server.logs(event="events_lost"))
    assert line["republished"] == 1
    eventually(lambda: books(server)[0] == 0)


def test_all_events_that_a_gap_has_taken_are_published_again(serve, refdata_db, token):  # noqa: F811
    """Also more than are found by one statement."""
    server = serve(refdata_db, args=items.INTAKE)
    with server.client(token(TENANT)) as client:
        assert items.post(client, items.item("first")).status == 201
    eventually(lambda: sum(position for position, in refdata_db.query(
        "select position from platform.bus_cursor where topic = 'intake.events' and group_name like 'entity-%%'")) == 1)
    eventually(lambda: refdata_db.query("select status from intake.event_outbox") == [("PUBLISHED",)])
    server.stop()
    refdata_db.query("insert into intake.event_outbox (event_id, tenant_id, sku, event_type, payload, status, created_at, published_at)"
                     " select i, tenant_id, i::text, event_type, replace(payload, event_id::text, i::text), status, now(), now()"
                     " from intake.event_outbox, lateral (select gen_random_uuid() i from generate_series(1, 10000)) more")
    refdata_db.query("with gone as (delete from platform.bus_message where topic = 'intake.events' returning partition, message_offset)"
                     " update platform.bus_cursor c set position = g.message_offset from gone g"
                     " where c.topic = 'intake.events' and c.partition = g.partition")
    server.start()
    eventually(lambda: server.metrics().get('freshet_events_republished_total{outbox="intake.event_outbox"}') == 10001)


def test_a_chat_event_that_is_not_in_the_log_is_named_and_published_again(serve, refdata_db, token):  # noqa: F811
    """M3: streams read the log."""
    server = serve(refdata_db, chat.FAST, args=chat.CHAT)
    session = chat.Session(server, token(TENANT))
    session.say("one")
    log = "select event_id from chat.event_log order by 1"
    eventually(lambda: refdata_db.query("select distinct status from chat.event_outbox") == [("published",)])
    logged = refdata_db.query(log)
    assert logged and books(server)[1]["chat.events"] == (len(logged), len(logged), 0, 0, 0)
    server.stop()
    (lost, *_), = refdata_db.query("delete from chat.event_log where event_id = (select min(event_id::text)::uuid from chat.event_log)"
                                   " returning event_id::text")
    status, lines, named = books(server)
    assert (status, lines["chat.events"]) == (3, (len(logged), len(logged) - 1, 0, 1, 0))
    assert len(named) == 1 and lost in named[0]
    server.start()
    eventually(lambda: refdata_db.query(log) == logged)
    eventually(lambda: books(server)[0] == 0)
    assert server.logs(event="events_lost")[0]["eventId"] == lost


def test_a_lookup_whose_window_never_ends_is_named(serve, refdata_db):  # noqa: F811
    """H3: such as after the database's clock was set back. The others end with their windows."""
    server = serve(refdata_db, args=items.INTAKE)
    refdata_db.query("insert into hydration.flights (tenant_id, entity_type, entity_id, subject, begun_at, window_until, asked, mode,"
                     " fields, correlation_ids, answered, negative_ttl_ms, copy_ttl_ms) select 't', 'item', i::text, '', now(),"
                     " now() + case i when 1 then interval '-1 s' when 2 then interval '5 min' else interval '1 day' end, 1, 0, '{}',"
                     " '{c}', false, 1, 1 from generate_series(1, 3) i")
    status, lines, named = books(server)
    assert (status, lines["hydration.flights"]) == (3, (3, 1, 1, 1, 0)) and "t/item/3" in named[0]


def test_the_books_as_json(serve, refdata_db, accept):  # noqa: F811
    """The same, an object a line; what is wrong is named without a limit."""
    lost, _ = accept(delta("A", {"k": 1}), delta("A", {"k": 2}))
    lose(refdata_db, lost)
    server = accept.server
    done = run("verify", "--books", "--json", "--config", server.config_path, env={**server.env, "FRESHET_FAILPOINTS": ""})
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    names = ("accepted", "decided", "carried", "lost", "doubled")
    assert done.returncode == 3
    assert {row["kind"]: tuple(row[name] for name in names) for row in rows if "wrong" not in row} == books(server)[1]
    (wrong,) = [row for row in rows if "wrong" in row]
    assert (wrong["database"], wrong["kind"]) == ("main", "update") and lost in wrong["wrong"] and "bus" in wrong["why"]
    assert run("verify", "--json", "--config", server.config_path).returncode == 2
