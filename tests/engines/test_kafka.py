"""R10, R11: Kafka dies, its consumers die, partitions move from one to the other: nothing is lost, each update has its effect
once, and order holds for each key."""
import json
import random
import signal

import pytest

from fleet import SMALL, WHOLE
from lib import on_engines
from lib.wait import eventually
from lib.writers import Threads, delta
from workload import Workload, audit


def grow(workload, count):
    """Waits until so many more updates are accepted."""
    had = len(workload.sent)
    eventually(lambda: len(workload.sent) >= had + count)


def audited(fleet, workload):
    """Everything that must be true afterwards."""
    fleet.settled()
    versions = audit(fleet.database, workload, fleet.pods, fleet.token)
    print(f"\n{len(workload.sent)} updates accepted, {workload.refusals} times asked again, versions {versions}")


def shares(fleet):
    """How many partitions each consumer has, in order; counted by their locks, of which each has one more as a member."""
    rows = fleet.database.query("select count(*) - 1 from pg_locks where locktype = 'advisory' and objsubid = 2 and granted and"
                                " database = (select oid from pg_database where datname = current_database()) group by pid")
    return sorted(row[0] for row in rows)


@pytest.fixture
def under_load(make_fleet, kafka):  # noqa: F811 pylint: disable=unused-argument
    """under_load(act, **options): a fleet that is written to while act(fleet, workload) breaks things; then the audit."""

    def run(act, sizes=None, **options):
        fleet = make_fleet(sizes=sizes or WHOLE, **options)
        workload = Workload(fleet.of("command"), fleet.token, pause=0.01)
        with Threads() as threads:
            workload.start(threads, readers=0)
            grow(workload, 30)
            act(fleet, workload)
            grow(workload, 30)
        audited(fleet, workload)
        return fleet

    return run


def test_the_broker_is_killed_and_comes_back_under_load(under_load, kafka):
    def act(_, workload):
        for _ in range(2):
            kafka.kill()
            grow(workload, 20)  # accepted: the outbox keeps them
            kafka.start()
            grow(workload, 20)
    under_load(act)


@pytest.mark.whole
def test_a_frozen_broker_holds_up_no_acceptance(under_load, kafka):
    def act(_, workload):
        kafka.freeze()
        try:
            grow(workload, 20)
        finally:
            kafka.thaw()
    under_load(act, sizes=SMALL)


def test_consumers_are_killed_in_the_middle(under_load):
    def act(fleet, workload):
        choice = random.Random(4)
        for _ in range(6):
            victim = choice.choice(fleet.of("apply"))
            grow(workload, choice.randrange(1, 15))
            victim.kill()
            victim.start()
    under_load(act)


def test_the_partitions_of_a_killed_consumer_are_taken_while_its_session_lasts(make_fleet, kafka):
    """PostgreSQL knows of its death at once."""
    codes = [f"D{number}" for number in range(12)]
    fleet = make_fleet(sizes={"command,relay,query": 1, "apply": 2}, dictionaries=codes, session="1h")
    eventually(lambda: shares(fleet) == [2, 2])
    fleet.of("apply")[0].kill()
    for code in codes:
        fleet.write({"a": 1}, code)
    eventually(lambda: shares(fleet) == [4])
    fleet.settled()


@pytest.mark.whole
@pytest.mark.parametrize("place", ["bus.before_commit", "bus.after_commit", "kafka.before_offsets", "kafka.before_look"])
def test_a_consumer_dies_between_the_database_and_kafka(under_load, place):
    """What was committed to the database and not to Kafka comes again, and has no second effect (R10)."""
    def act(fleet, workload):
        victim = fleet.of("apply")[0]
        for _ in range(3):
            victim.kill()
            victim.env["FRESHET_FAILPOINTS"] = f"{place}=kill#2"
            victim.start()
            grow(workload, 10)
            eventually(lambda: victim.process.poll() is not None)
        victim.env["FRESHET_FAILPOINTS"] = ""
        victim.start()
    under_load(act)


@pytest.mark.whole
def test_partitions_move_to_newcomers_and_back(under_load):
    def act(fleet, workload):
        for _ in range(2):
            newcomers = [fleet.add("apply") for _ in range(2)]
            for server in newcomers:
                server.start()
            grow(workload, 20)
            for server in newcomers:
                server.stop()
                fleet.servers["apply"].remove(server)
            grow(workload, 10)
    under_load(act)


@pytest.mark.whole
def test_a_consumer_that_freezes_loses_its_partitions_and_does_no_harm_when_it_wakes(under_load):
    def act(fleet, workload):
        sleeper = fleet.of("apply")[0]
        sleeper.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: shares(fleet) == [4])  # PostgreSQL ends its session
            grow(workload, 20)
        finally:
            sleeper.process.send_signal(signal.SIGCONT)
    under_load(act)


@pytest.mark.whole
def test_postgresql_ends_all_sessions_and_with_them_all_locks(under_load):
    def act(fleet, workload):
        for _ in range(4):
            fleet.database.query("select pg_terminate_backend(pid) from pg_stat_activity"
                                 " where datname = current_database() and pid <> pg_backend_pid()")
            grow(workload, 10)
        eventually(lambda: shares(fleet) == [2, 2])
    under_load(act)


@pytest.mark.whole
def test_the_process_that_accepted_dies_before_it_published(under_load):
    """R11: what it left behind is published by the others, or by itself when it is back."""
    def act(fleet, workload):
        for server in fleet.of("command"):
            grow(workload, 10)
            server.kill()
            grow(workload, 10)
            server.start()
    under_load(act)


@pytest.mark.whole
def test_kafka_is_not_there_when_everybody_starts(make_fleet, kafka):
    kafka.kill()
    try:
        fleet = make_fleet(sizes=SMALL)
        writer, body = fleet.writer(), delta("PLAIN", {"a": 1})
        assert writer.post(body).status == 202  # kept in the outbox
    finally:
        kafka.start()
    fleet.reach(1)
    fleet.settled()
    writer.close()


def test_a_command_that_came_by_kafka_alone_is_applied_once_however_often_it_comes(make_fleet, kafka):
    """R8, R10: the same message three times, from a client that knows only the contract."""
    fleet = make_fleet(sizes=SMALL)
    body = {**delta("PLAIN", {"a": 1}), "tenantId": "demo", "source": "KAFKA", "occurredAt": "2026-02-27T12:00:00Z"}
    on_engines.send_commands(fleet.database.name, [(b"demo:PLAIN", json.dumps(body).encode())] * 3)
    fleet.reach(1)
    fleet.settled()
    assert fleet.database.value("select version from refdata.dictionary_meta where dict_code = 'PLAIN'") == 1


def test_garbage_among_the_commands_goes_to_the_dead_letters_and_the_partition_goes_on(make_fleet, kafka):
    fleet = make_fleet(sizes=SMALL)
    garbage = [b"", b"\x00\xff\xfe", b"{", b"[]", b'{"eventId":"no"}', b"null", b"x" * 100_000]
    on_engines.send_commands(fleet.database.name, [(b"demo:PLAIN", payload) for payload in garbage])
    fleet.reach(fleet.write({"a": 1}))
    fleet.settled()
    dead = on_engines.consume(fleet.topic + ".dlq")
    assert sorted(value or b"" for *_, value in dead) == sorted(garbage)
    assert all(headers.get("dlq-reason") for *_, headers, _ in dead)
