"""A PostgreSQL that crashes loses the last commits that did not wait for its disk, and gives their offsets to other messages: readers of
everything notice (M3), and what a crash interrupted is not blamed on its message."""
import contextlib
import signal
import time

import pytest

from lib.chat import CHAT, FAST, Session
from lib.refdata import TENANT, make_table, own_refdata_db, pod  # noqa: F401
from lib.wait import PATIENCE, eventually
from lib.writers import delta, status_path, updates_path

TOPIC = "chat.events"
LOCK = 1125
WAITING = {"code": "WAITING", "loadSql": "select k, v from t where tenant_id = :tenantId",
           "apply": {"upsertSql": f"with waited as materialized (select pg_advisory_xact_lock({LOCK}))"
                                  " insert into t select :tenantId, :key, :payload from waited"
                                  " on conflict (tenant_id, k) do update set v = excluded.v"}}


@pytest.fixture
def forgetful_db(own_postgres):
    """Of a server that writes what nobody waits for to its disk 10 s later."""
    own_postgres.execute("alter system set wal_writer_delay = '10s'")
    own_postgres.restart()
    return own_postgres.create_database()


def consumed(server):
    return sum(value for name, value in server.metrics().items() if name.startswith(f'bus_consumed_total{{topic="{TOPIC}",group="chat"'))


def publish_unsafely(database, partition, count):
    """Messages that concern no session, whose commit does not wait for the disk. Returns where it stands in the log."""
    with contextlib.closing(database.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("set synchronous_commit = off")
        cursor.execute("select platform.bus_publish(array[%s], array[%s], array[%s], array_fill(null::bytea, array[%s]),"
                       " array_fill('{}'::text, array[%s]), array_fill(''::bytea, array[%s]))",
                       (TOPIC, partition, count, count, count, count))
        cursor.execute("select pg_current_wal_insert_lsn()")
        return cursor.fetchone()[0]


def lose_two(database, reader, partition, place):
    """Two messages that the reader, which is frozen then, has handled and the disk has not. Returns the offset of the first. Another
    commit may have taken them to the disk: once more, then. An event that is marked as published after the checkpoint would be published
    again after the crash."""
    eventually(lambda: database.value("select count(*) from chat.event_outbox where status <> 'published'") == 0)
    while True:
        database.server.execute("checkpoint")  # what was before them stays
        before, was_consumed = database.value("select next_offset " + place, (TOPIC, partition)), consumed(reader)
        lsn = publish_unsafely(database, partition, 2)
        eventually(lambda: consumed(reader) == was_consumed + 2)
        reader.process.send_signal(signal.SIGSTOP)
        if database.value("select pg_current_wal_flush_lsn() < %s::pg_lsn", (lsn,)):
            return before
        reader.process.send_signal(signal.SIGCONT)


def next_contents(stream, count):
    events, deadline = [], time.monotonic() + PATIENCE
    while len(events) < count:
        assert time.monotonic() < deadline, "the stream has heartbeats only"
        events += [event for event in [stream.event()] if "event_id" in event]
    return [event["payload"]["content"] for event in events]


def test_m3_a_message_at_an_offset_that_a_crash_gave_back_reaches_a_live_stream(serve, forgetful_db, own_postgres, token):
    place = "from platform.bus_partition where topic = %s and partition = %s"
    reader = serve(forgetful_db, FAST | {"log": {"level": "debug"}}, args=CHAT)
    eventually(lambda: reader.logs(event="bus_reader_ready", topic=TOPIC))  # it consumes everything from here on
    with Session(reader, token("demo")) as chat:
        chat.say("before")
        partition = eventually(lambda: forgetful_db.query(
            "select partition from platform.bus_message where topic = %s", (TOPIC,)))[-1][0]
        with chat.stream() as stream:
            stream.until(2)
            eventually(lambda: consumed(reader) == forgetful_db.value("select count(*) from platform.bus_message"
                                                                      " where topic = %s", (TOPIC,)))
            before = lose_two(forgetful_db, reader, partition, place)
            try:
                own_postgres.restart("immediate")
                while forgetful_db.value("select next_offset " + place, (TOPIC, partition)) != before:
                    reader.process.send_signal(signal.SIGCONT)  # PostgreSQL's WAL writer came before the crash: once more
                    before = lose_two(forgetful_db, reader, partition, place)
                    own_postgres.restart("immediate")
                writer = serve(forgetful_db, FAST, args=CHAT)
                with Session(writer, token("demo"), chat.project, chat.session) as other:
                    other.say("after")
                eventually(lambda: forgetful_db.value("select next_offset " + place, (TOPIC, partition)) >= before + 2)
            finally:
                reader.process.send_signal(signal.SIGCONT)
            assert next_contents(stream, 2) == ["after", "after"]


def test_a_crash_of_the_server_while_a_suspected_command_is_handled_is_no_death_of_the_process(
        serve, own_refdata_db, own_postgres, token):  # noqa: F811
    """The command has four deaths: a fifth and a sixth mark that is left behind would make it a dead message."""
    database = own_refdata_db
    make_table(database, "t")
    client = serve(database, pod(WAITING), args=("--roles", "command")).client(token(TENANT))
    body = delta("WAITING", {"a": 1})
    assert client.post(updates_path("ASYNC"), body).status == 202
    database.query("insert into platform.bus_suspect select 'refdata-apply', topic, partition, message_offset, 5, 4"
                   " from platform.bus_message where topic = 'refdata.commands'")
    holder = database.connect()
    holder.cursor().execute("select pg_advisory_lock(%s)", (LOCK,))
    serve(database, pod(WAITING), args=("--roles", "apply"))
    eventually(lambda: database.value("select count(*) from pg_locks where locktype = 'advisory' and objid = %s"
                                      " and not granted", (LOCK,)))
    own_postgres.restart("immediate")
    state = eventually(lambda: (lambda status: status not in (None, "PENDING") and status)(
        client.get(status_path(body["eventId"])).json().get("status")))
    assert state == "COMMITTED"
    assert database.value("select count(*) from platform.bus_message where topic = 'refdata.commands.dlq'") == 0
