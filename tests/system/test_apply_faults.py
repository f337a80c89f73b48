"""R10: whatever breaks, a command has its effect once, in its place, and nothing is given up that could be done."""
import contextlib
import random
import threading
import time

import pytest

from lib.apply import TOPIC, applier, chunks, dead_letters, decided, delta, handled, items_of, outbox_of, publish, ready, version_of
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually

ROLES = ("--roles", "apply")
LOG = {  # an effect that shows how often it was there
    "code": "LOG",
    "loadSql": "select key as k, to_jsonb(n) as v from effect where tenant_id = :tenantId",
    "apply": {"upsertSql": "insert into effect (tenant_id, key, version) values (:tenantId, :key, :eventVersion)"},
}
LOG_SQL = "create table effect (n bigserial, tenant_id text, key text, version bigint)"
HOT = {
    "code": "HOT",
    "loadSql": "select k, to_jsonb(v) as v from hot where tenant_id = :tenantId",
    "apply": {"upsertSql": "update hot set v = v + 1 where k = :key"},
}
HOT_SQL = "create table hot (tenant_id text default 'demo', k text primary key, v int default 0);" \
          " insert into hot (k) values ('a'), ('b')"


class Reaper:
    """Ends a random connection of the program, again and again, with a pause of at most so many seconds; ever longer ones, so that
    a machine that needs more for a transaction than a quick one has its commits too."""

    def __init__(self, database, seed=1, pause=0.03):
        self.database, self.random, self.pause, self.reaped = database, random.Random(seed), pause, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
            while not self._stop.wait(self.random.random() * min(1, self.pause * 1.01 ** self.reaped)):
                cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                               " and pid <> pg_backend_pid() and state <> 'idle' and application_name like 'freshet%%'"
                               " order by random() limit 1")
                self.reaped += len(cursor.fetchall())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def test_connections_that_die_and_two_processes(serve, refdata_db):
    """R10: exactly one effect each, in the order sent, versions without gap or repetition."""
    refdata_db.query(LOG_SQL)
    for _ in range(2):
        serve(refdata_db, applier("D", LOG), args=ROLES)
    ready(refdata_db)
    sent = {code: [delta(code, {f"k{i}": i, "last": i}) for i in range(150)] for code in ("LOG", "D")}
    with Reaper(refdata_db) as reaper:
        for at in range(0, 150, 5):
            publish(refdata_db, [one for code in sent for one in sent[code][at:at + 5]])
        eventually(lambda: reaper.reaped >= 15 or version_of(refdata_db, "D") == 150)
    for code, commands in sent.items():
        assert decided(refdata_db, commands) == [("COMMITTED", version) for version in range(1, 151)]
        assert [(version, event) for version, event, _ in outbox_of(refdata_db, code)] == \
            [(at + 1, one["eventId"]) for at, one in enumerate(commands)]
    effects = refdata_db.query("select key, version from effect where key <> 'last' order by n")
    assert effects == [(f"k{i}", i + 1) for i in range(150)]
    assert items_of(refdata_db, "D") == {**{f"k{i}": i for i in range(150)}, "last": 149}
    assert reaper.reaped > 0


def test_a_deadlock_is_no_failure(serve, refdata_db):
    """R10: the victim is run again."""
    refdata_db.query(HOT_SQL)
    serve(refdata_db, applier(HOT), args=ROLES)
    ready(refdata_db)
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("set deadlock_timeout = '30s'")  # the other side finds it first, and is the victim
        cursor.execute("update hot set v = 100 where k = 'b'")
        sent = [delta("HOT", {"a": 1, "b": 1})]
        publish(refdata_db, sent)
        eventually(lambda: refdata_db.value("select count(*) from pg_locks where not granted") > 0)
        cursor.execute("update hot set v = 100 where k = 'a'")
        connection.commit()
    assert decided(refdata_db, sent) == [("COMMITTED", 1)]
    assert refdata_db.query("select k, v from hot order by k") == [("a", 101), ("b", 101)]


def test_a_statement_that_takes_too_long_is_tried_again_and_given_up_at_last(serve, refdata_db):
    """R10: a lock that goes away is no failure; what never ends does not hold up its partition for ever."""
    refdata_db.query(HOT_SQL)
    changes = applier(HOT)
    changes["refdata"]["postgres"] = {"statementTimeout": "300ms"}
    changes["refdata"]["updates"] = {"attempts": 4}
    serve(refdata_db, changes, args=ROLES)
    ready(refdata_db)
    sent = [delta("HOT", {"a": 1}), delta("HOT", {"b": 1})]
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("select from hot where k = 'a' for update")
        publish(refdata_db, sent)
        tried = "select coalesce(max(attempts), 0) from platform.bus_cursor where topic = %s"
        eventually(lambda: refdata_db.value(tried, (TOPIC,)) >= 1)
    assert decided(refdata_db, sent) == [("COMMITTED", 1), ("COMMITTED", 2)]
    handled(refdata_db)
    last = [delta("HOT", {"a": 1}), delta("HOT", {"b": 1})]
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("select from hot where k = 'a' for update")
        publish(refdata_db, last[:1])
        assert decided(refdata_db, last[:1]) == [("FAILED", "UPDATE_REFUSED")]
        publish(refdata_db, last[1:])
        assert decided(refdata_db, last[1:]) == [("COMMITTED", 3)]
    assert refdata_db.query("select k, v from hot order by k") == [("a", 1), ("b", 2)]


@pytest.mark.tsan
def test_an_update_whose_command_ends_every_process_has_failed(serve, refdata_db):
    """R10: the command becomes a dead letter, its update is decided with the reason, and the next one is applied."""
    first = serve(refdata_db, applier("D"), args=ROLES)
    ready(refdata_db)
    first.stop()
    killer, after = delta("D", {"a": 1}), delta("D", {"b": 1})
    publish(refdata_db, [killer, after])
    refdata_db.query(  # as the processes left it that ended while they applied it
        "insert into platform.bus_suspect (group_name, topic, partition, position, starts, deaths)"
        " select group_name, topic, partition, position, 5, 5 from platform.bus_cursor"
        " join platform.bus_partition p using (topic, partition) where topic = %s and position < p.next_offset", (TOPIC,))
    server = serve(refdata_db, applier("D"), args=ROLES)
    assert decided(refdata_db, [killer, after]) == [("FAILED", "UPDATE_REFUSED"), ("COMMITTED", 1)]
    reason = "every process that handled it died"
    assert refdata_db.value("select error_message from refdata.update_request where status = 'FAILED'") == \
        f"given up: {reason}"
    assert [letter["dlq-reason"] for letter in dead_letters(refdata_db)] == [reason]
    assert items_of(refdata_db, "D") == {"b": 1}
    assert [line["eventId"] for line in eventually(lambda: server.logs(event="update_failed"))] == [killer["eventId"]]


def test_a_snapshot_in_chunks_survives_its_connections(serve, refdata_db):
    """R8: whatever dies between chunks and in their end, it is there once and whole."""
    for _ in range(2):
        serve(refdata_db, applier("D"), args=ROLES)
    ready(refdata_db)
    whole = [{f"k{at}-{i}": i for i in range(200)} for at in range(8)]
    sent = []
    with Reaper(refdata_db, seed=7, pause=0.1) as reaper:
        while len(sent) < 2 or reaper.reaped == 0:  # a quick machine may be done before a connection was ended
            parts = chunks("D", whole)
            random.Random(len(sent)).shuffle(parts)
            for part in parts:
                publish(refdata_db, [part])
                time.sleep(0.01)  # to be met in the middle, not for any outcome
            sent.append(parts)
            decided(refdata_db, parts)
    for version, parts in enumerate(sent):
        assert decided(refdata_db, parts) == [("COMMITTED", version + 1)] * 8
    assert items_of(refdata_db, "D") == {key: value for part in whole for key, value in part.items()}
    assert version_of(refdata_db, "D") == len(sent)
