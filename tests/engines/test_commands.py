"""R11, R8: commands between PostgreSQL and Kafka. Whatever dies in between, none is lost and each has its effect once; and
whoever publishes by the contract alone is served like everybody else."""
import contextlib
import http.client
import json
import subprocess
import time

import pytest

from fleet import DEAF, SMALL
from lib import on_engines
from lib.apply import chunks, delta, items_of, statuses, version_of
from lib.freshet import run
from lib.refdata import item_path, path, pod
from lib.wait import eventually
from lib.writers import delta as update
from lib.writers import status_path, updates_path

TWO = {"command": 2, "apply": 1, "query,relay": 1}


def kcat(kafka, *words, text=b""):
    done = subprocess.run(["kcat", "-b", kafka.address, "-q", *words], input=text, capture_output=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def send(kafka, topic, *commands, key=None):
    """As an operator would, by hand, with the partitioner of Kafka's own clients. Who is ready may not have made the topic
    yet: updates are accepted without Kafka."""
    on_engines.topic_is_there(topic)
    lines = [f"{key or '{tenantId}:{dictCode}'.format(**command)}\x1f{json.dumps(command)}" for command in commands]
    kcat(kafka, "-P", "-t", topic, "-K", "\x1f", "-X", "topic.partitioner=murmur2_random",
         text="".join(line + "\n" for line in lines).encode())


def reasons(fleet):
    """Of the dead letters."""
    return sorted(headers["dlq-reason"].decode() for *_, headers, _ in on_engines.consume(fleet.topic + ".dlq"))


@pytest.fixture
def fleet(make_fleet, kafka):  # pylint: disable=unused-argument
    return make_fleet(sizes=SMALL, dictionaries=["D", "E"])


# ---- R11: from PostgreSQL to Kafka ----

@pytest.mark.parametrize("place", ["command.after_commit", "commands.after_claim", "commands.after_publish",
                                   "outbox.after_settle"])
def test_who_accepted_an_update_dies_on_its_way(make_fleet, kafka, place):  # pylint: disable=unused-argument
    """Between the commit and Kafka, or between Kafka and the note of it: another process publishes what was left."""
    fleet = make_fleet(sizes=TWO, dictionaries=["D"])
    before = fleet.write({"before": 1}, "D")
    victim = fleet.of("command")[0]
    victim.stop()
    victim.env["FRESHET_FAILPOINTS"] = f"{place}=kill"
    victim.start()
    body = update("D", {"a": 1})
    with victim.client(fleet.token) as client:
        try:
            assert client.post(updates_path(), body).status == 202
        except (OSError, http.client.HTTPException):
            pass  # it died before it could answer
    eventually(lambda: victim.process.poll() is not None)
    fleet.settled()
    assert items_of(fleet.database, "D") == {"before": 1, "a": 1}
    assert version_of(fleet.database, "D") == before + 1
    with fleet.of("command")[1].client(fleet.token) as client:
        assert client.get(status_path(body["eventId"])).json()["committedVersion"] == before + 1
    fleet.reach(before + 1, "D")


@pytest.mark.whole
def test_updates_of_one_dictionary_reach_kafka_in_the_order_of_their_answers(make_fleet, kafka):
    """While Kafka is away they wait in the outbox, and not one of them fails for it."""
    fleet = make_fleet(sizes=SMALL, dictionaries=["D"])
    kafka.kill()
    try:
        with fleet.of("command")[0].client(fleet.token) as client:
            bodies = [update("D", {"last": i, str(i): i}) for i in range(60)]
            assert {client.post(updates_path(), body).status for body in bodies} == {202}
        eventually(lambda: fleet.database.value("select max(attempt_count) from refdata.command_outbox") > 0)
        assert fleet.database.query("select max(attempt_count - outage_count), count(failed_at) from refdata.command_outbox") == [
            (0, 0)]
    finally:
        kafka.start()
    fleet.settled()
    assert items_of(fleet.database, "D")["last"] == 59
    assert fleet.database.query("select e.event_id::text from refdata.outbox_event e order by version") == [
        (body["eventId"],) for body in bodies]


def test_a_wait_for_the_commit_goes_all_the_way(make_fleet, kafka):  # pylint: disable=unused-argument
    """R1: with every role a process of its own. A stale update says so in its answer."""
    fleet = make_fleet(sizes={"command": 1, "apply": 1, "query,relay": 1}, dictionaries=["D"])
    eventually(lambda: fleet.write({"first": 1}, "D"))
    with fleet.of("command")[0].client(fleet.token) as client:
        def told(revision):
            """The answer to an update that nobody has asked about before; on a busy machine it may take some to have one in time."""
            answer = client.post(updates_path("WAIT_COMMIT", timeout_ms=1000), update("D", {"a": 1}, sourceRevision=revision))
            return answer.status != 202 and answer
        answer = eventually(lambda: told(5))
        assert answer.status == 200 and answer.json()["status"] == "COMMITTED"
        answer = eventually(lambda: told(4))
        assert (answer.status, answer.code) == (409, "STALE_SOURCE_REVISION")


@pytest.mark.parametrize("partitions", [1, 5])
def test_commands_go_through_a_topic_that_was_created_by_others(make_fleet, kafka, partitions):
    """R11, `refdata.kafka.partitions: 0`: the topic may appear after the first update was accepted, and has as many partitions
    as it has. A key goes where Kafka's own clients put it."""
    fleet = make_fleet(sizes=SMALL, dictionaries=["D", "E", "F"], kafka={"partitions": 0})
    with fleet.of("command")[0].client(fleet.token) as client:
        bodies = [update(code, {"a": n}) for n in range(3) for code in "DEF"]
        assert {client.post(updates_path(), body).status for body in bodies} == {202}
        on_engines.create_topic(fleet.topic, partitions)
        for body in bodies:
            eventually(lambda b=body: client.get(status_path(b["eventId"])).json()["status"] == "COMMITTED")
    assert [items_of(fleet.database, code) for code in "DEF"] == [{"a": 2}] * 3
    assert fleet.database.value("select count(*) from refdata.command_outbox where failed_at is not null") == 0
    send(kafka, fleet.topic, *(delta(code, {"k": "v"}) for code in "DEF"))
    places = {}
    for partition, _, key, _, _ in eventually(lambda: (found := on_engines.consume(fleet.topic)) and len(found) == 12 and found):
        places.setdefault(key, set()).add(partition)
    assert [len(found) for found in places.values()] == [1, 1, 1], places
    fleet.settled()


def test_a_large_update_is_carried(fleet):
    """C2: as large as a body may be by default."""
    large = {str(i): "x" * 1_000_000 for i in range(8)}
    with fleet.of("command")[0].client(fleet.token) as client:
        body = update("D", large)
        assert client.post(updates_path(), body).status == 202
        eventually(lambda: client.get(status_path(body["eventId"])).json()["status"] == "COMMITTED")


def test_what_kafka_lost_is_published_again_by_hand(make_fleet, kafka):  # pylint: disable=unused-argument
    """As docs/ENGINES.md says, retention having been quicker than apply: the lost one is applied, nothing else has a second
    effect."""
    fleet = make_fleet(sizes=TWO, dictionaries=["D"])
    before = fleet.write({"before": 1}, "D")
    fleet.settled()
    fleet.of("apply")[0].stop()
    command, body = fleet.of("command")[0], update("D", {"lost": 1})
    with command.client(fleet.token) as client:
        assert client.post(updates_path(), body).status == 202
        eventually(lambda: fleet.database.value("select count(*) from refdata.command_outbox where not published") == 0)
        on_engines.skip(on_engines.group(fleet.database.name), fleet.topic)
        fleet.of("apply")[0].start()
        fleet.write({"after": 1}, "D")
        assert client.get(status_path(body["eventId"])).json()["status"] == "PENDING"
        done = run("outbox", "republish", "--table", "refdata.command_outbox", "--all", "--config", command.config_path,
                   env=command.env)
        assert "3 will be published again" in done.stdout, done.stderr
        fleet.settled()
        assert client.get(status_path(body["eventId"])).json()["committedVersion"] == before + 2
    assert items_of(fleet.database, "D") == {"before": 1, "lost": 1, "after": 1}
    assert version_of(fleet.database, "D") == before + 2


# ---- R8: by the contract alone ----

def test_a_command_by_kcat_has_a_status_and_its_effect_once(fleet, kafka):
    sent = delta("D", {"a": 1}, source="KAFKA")
    send(kafka, fleet.topic, sent, sent)
    fleet.reach(1, "D")
    send(kafka, fleet.topic, sent)
    fleet.settled()
    assert version_of(fleet.database, "D") == 1
    with fleet.of("command")[0].client(fleet.token) as client:
        answer = client.get(status_path(sent["eventId"])).json()
    assert (answer["status"], answer["committedVersion"], answer["dictCode"]) == ("COMMITTED", 1, "D")
    assert fleet.database.value("select source from refdata.update_request") == "KAFKA"
    with fleet.pods[0].client(fleet.token) as client:
        assert client.get(item_path("D", "a")).json()["payload"] == 1


def test_a_snapshot_in_chunks_by_kcat(fleet, kafka):
    sent = chunks("D", [{"a": 1}, {"b": 2}, {"c": 3}], source="KAFKA")
    send(kafka, fleet.topic, sent[2], sent[0], sent[2])
    eventually(lambda: statuses(fleet.database, [sent[0], sent[2]]) == [("PENDING", None)] * 2)
    send(kafka, fleet.topic, sent[1])
    fleet.reach(1, "D")
    assert statuses(fleet.database, sent) == [("COMMITTED", 1)] * 3
    assert items_of(fleet.database, "D") == {"a": 1, "b": 2, "c": 3}


def test_what_cannot_be_taken_is_buried_and_can_be_sent_again(fleet, kafka):
    """R9: the reason is in the letter's headers; the partition goes on."""
    wrong_key, nameless, unknown = delta("D", {"a": 1}), delta("D", {"a": 1}), delta("NOBODYS", {"a": 1})
    del nameless["eventId"]
    send(kafka, fleet.topic, wrong_key, key="demo:E")
    send(kafka, fleet.topic, nameless, unknown, delta("D", {"after": 1}))
    fleet.reach(1, "D")
    fleet.settled()
    assert reasons(fleet) == ["not a command: eventId is missing",
                              "not a command: its key is not {tenantId}:{dictCode}",
                              "not a command: no such dictionary"]
    send(kafka, fleet.topic, wrong_key)
    fleet.reach(2, "D")
    assert items_of(fleet.database, "D") == {"a": 1, "after": 1}


# ---- life ----

def test_engines_that_are_not_there_keep_nobody_from_starting_reading_or_stopping(make_fleet, engines):
    """C8: health says what is missing; a pod reads from memory and from PostgreSQL; a stop is prompt."""
    fleet = make_fleet(sizes={"command,apply,relay,query": 1}, dictionaries=["D"], sweep="50ms")
    fleet.reach(fleet.write({"a": 1}, "D"), "D")
    server = fleet.all[0]
    server.stop()
    engines.kafka.kill()
    engines.redis.kill()
    server.start()
    with server.client(fleet.token) as client:
        health = client.get("/actuator/health")
        assert health.status == 200
        found = {name: state["status"] for name, state in health.json()["components"].items()}
        assert (found["kafka:main"], found["redis:main"], found["postgres:main"]) == ("DOWN", "DOWN", "UP")
        roles = {name: state["status"] for name, state in health.json()["roles"].items()}
        assert (roles["query"], roles["command"], roles["apply"], roles["relay"]) == ("UP", "UP", "DOWN", "DOWN")
        assert client.get(item_path("D", "a")).json()["payload"] == 1
        assert client.post(updates_path(), update("D", {"a": 2})).status == 202
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 9, "the configured time is 10 s"
    assert fleet.database.value("select count(*) from refdata.command_outbox where not published and locked_until is null") == 1
    engines.heal()
    server.start()
    fleet.reach(2, "D")


def test_a_process_has_to_do_with_no_engine_that_its_roles_do_not_use(make_fleet):
    """C1, C8: a pod that only reads opens no Kafka, one that only accepts or applies commands no Redis."""
    fleet = make_fleet(sizes={"command": 1, "apply": 1, "relay": 1, "query": 1}, dictionaries=["D"])
    fleet.reach(fleet.write({"a": 1}, "D"), "D")
    found = []
    for server in fleet.all:
        with server.client(fleet.token) as client:
            names = client.get("/actuator/health").json()["components"]
        found.append(sorted(name for name in names if name.startswith(("kafka:", "redis:"))))
    assert sorted(found) == [["kafka:main"], ["kafka:main"], ["redis:main"], ["redis:main"]]


@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_an_update_of_a_dictionary_that_moves_to_another_database_is_decided_there(serve, postgres, refdata_db, kafka,  # noqa: F811
                                                                                   token, is_slow):  # pylint: disable=unused-argument
    """It was accepted by the old database, and is in Kafka while the dictionary moves: its status is what the new one decides, however
    long that takes."""
    other = postgres.create_database()
    databases = [{"name": name, "jdbcUrl": database.jdbc_url, "username": database.user,
                  "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"} for name, database in (("main", refdata_db), ("shop", other))]

    def start(home, *roles):
        settings = pod({"code": "D", "postgres": home}, {"code": "E", "postgres": "shop"})
        settings["refdata"]["postgres"] = databases
        settings["refdata"]["updates"] = {"auditAfter": "100ms"}
        return serve(refdata_db, settings, args=roles)

    def audited():
        return refdata_db.value("select due_at from refdata.audit")

    try:
        server = start("main")
        for suffix in ("", ".shop"):
            on_engines.eventually_reads(on_engines.group(refdata_db.name) + suffix, on_engines.topic(refdata_db.name))
        server.stop()
        server, body = start("main", "--roles", "command"), update("D", {"a": 1})
        with server.client(token("demo")) as client:
            assert client.post(updates_path(), body).status == 202
            eventually(lambda: refdata_db.query("select published from refdata.command_outbox") == [(True,)])
        server.stop()
        # One that was accepted later, and is not looked at yet.
        refdata_db.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, source, content_hash, created_at)"
                         " values ('demo', gen_random_uuid(), 'D', 'PENDING', 'REST', '', now() + interval '1 day')")
        with contextlib.closing(other.connect()) as blocker, blocker.cursor() as cursor:
            if is_slow:
                blocker.autocommit = False
                cursor.execute("insert into refdata.dictionary_meta (tenant_id, dict_code, version) values ('demo', 'D', 0)")
            server = start("shop")
            if is_slow:
                eventually(lambda: on_engines.is_handled(refdata_db.name))  # by the old one, which leaves it out
            for _ in range(10 if is_slow else 0):
                seen = audited()
                eventually(lambda: audited() > seen)  # pylint: disable=cell-var-from-loop
            if is_slow:
                done = run("verify", "--books", "--config", server.config_path, env=server.env)
                assert body["eventId"] not in done.stdout, done.stdout
            assert not server.logs(event="update_lost", result="republished")
            assert not server.logs(event="update_lost", result="failed")
            blocker.rollback()
        with server.client(token("demo")) as client:
            eventually(lambda: client.get(status_path(body["eventId"])).json()["status"] == "COMMITTED")
        # The auditor copies the decision into the row of the old one.
        eventually(lambda: refdata_db.query("select status, committed_version from refdata.update_request where event_id = %s",
                                            (body["eventId"],)) == [("COMMITTED", 1)])
        assert (items_of(refdata_db, "D"), items_of(other, "D")) == ({}, {"a": 1})
        assert other.value("select count(*) from refdata.outbox_event") == 1
    finally:
        server.stop()
        other.drop()


def test_two_databases_share_a_topic_and_a_stream(serve, postgres, refdata_db, kafka, token):  # noqa: F811
    """R15: each takes what is its own by a group of its own; what is nobody's is buried once."""
    other = postgres.create_database()
    try:
        settings = pod("D", {"code": "E", "postgres": "shop"}, cache={"sweepInterval": DEAF, "preload": ["demo/D", "demo/E"]})
        settings["refdata"]["postgres"] = [
            {"name": name, "jdbcUrl": database.jdbc_url, "username": database.user,
             "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"} for name, database in (("main", refdata_db), ("shop", other))]
        server = serve(refdata_db, settings)
        topic = on_engines.topic(refdata_db.name)
        with server.client(token("demo")) as client:
            for code in "DE":
                def told(code=code):
                    """Until the pod has been told of a change, which it looks for nowhere else."""
                    version = client.post(updates_path("WAIT_COMMIT", timeout_ms=1000), update(code, {"a": 1})).json().get(
                        "committedVersion")
                    return version and any(client.get(path(code, "/version")).json()["version"] >= version or
                                           time.sleep(0.05) for _ in range(40))
                eventually(told)
            sent = [delta("D", {"d": 1}), delta("E", {"e": 1}), delta("NOBODYS", {"x": 1})]
            send(kafka, topic, *sent)
            eventually(lambda: (items_of(refdata_db, "D"), items_of(other, "E")) == ({"a": 1, "d": 1}, {"a": 1, "e": 1}))
            eventually(lambda: len(on_engines.consume(topic + ".dlq")) == 1)
            for command in sent[:2]:
                assert client.get(status_path(command["eventId"])).json()["status"] == "COMMITTED"
        assert items_of(refdata_db, "E") == {} and items_of(other, "D") == {}
        shop = on_engines.group(refdata_db.name) + ".shop"
        eventually(lambda: sum(on_engines.group_offsets(shop, topic).values()) == sum(on_engines.ends(topic).values()))
        assert len(on_engines.consume(topic + ".dlq")) == 1
    finally:
        server.stop()
        other.drop()
