"""Everything accepted ends, on the engines: what they lost is found without reading it, and published again (R11, N1)."""
import pytest

from events import ADVISORIES
from fleet import Fleet
from lib import nats, on_engines
from lib.apply import items_of, version_of
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.notification import FAST, ROLE, statuses
from lib.wait import eventually
from lib.writers import delta, status_path, updates_path


@pytest.fixture
def fleet(serve, refdata_db, token, kafka):  # pylint: disable=unused-argument
    """A process that accepts, and one that applies, which is stopped; the group has its places."""
    made = Fleet(serve, refdata_db, token, sizes={"command": 0}, dictionaries=["D", "E"])
    made.settings["refdata"]["updates"] = {"auditAfter": "100ms"}
    for role in ("command", "apply"):
        made.add(role)
    made.start()
    on_engines.eventually_reads(on_engines.group(refdata_db.name), on_engines.topic(refdata_db.name))
    made.of("apply")[0].stop()
    return made


def accept(fleet, *bodies):
    with fleet.of("command")[0].client(fleet.token) as client:
        for body in bodies:
            assert client.post(updates_path(), body).status == 202
    eventually(lambda: fleet.database.value("select count(*) from refdata.command_outbox where not published") == 0)
    return [body["eventId"] for body in bodies]


def state(fleet, event_id):
    with fleet.of("command")[0].client(fleet.token) as client:
        found = client.get(status_path(event_id)).json()
        return found["status"], found.get("errorCode")


def books(fleet, *args):
    """(exit status, (accepted, decided, carried, lost, doubled) of updates, lines that name something)."""
    server = fleet.of("command")[0]
    done = run("verify", "--books", "--config", server.config_path, *args, env=server.env)
    assert done.returncode in (0, 3) and done.stdout, done.stderr
    lines = done.stdout.splitlines()
    (update,) = [line.split()[2:] for line in lines if line.split()[1] == "update"]
    return done.returncode, tuple(map(int, update)), [line for line in lines if line.startswith("WRONG ")]


@pytest.mark.whole
def test_commands_that_kafka_lost_are_named_and_published_again(fleet):
    """R11, R10: those whose command is kept are applied, once; the others fail."""
    names = fleet.database.name
    again, failed, given_up = accept(fleet, delta("D", {"a": 1}), delta("D", {"b": 2}), delta("D", {"c": 3}))
    assert books(fleet, "--patience", "100ms") == (0, (3, 0, 3, 0, 0), [])  # Kafka has them
    fleet.database.query("delete from refdata.command_outbox where event_id = %s", (failed,))
    fleet.database.query("update refdata.command_outbox set published = false, published_at = null, failed_at = now(),"
                         " last_error = 'too large' where event_id = %s", (given_up,))
    on_engines.skip(on_engines.group(names), on_engines.topic(names))
    status, counts, named = books(fleet)
    assert (status, counts, len(named)) == (3, (3, 0, 0, 3, 0), 3), named
    server = fleet.of("apply")[0]
    server.start()
    eventually(lambda: state(fleet, again) == ("COMMITTED", None))
    for event_id in (failed, given_up):
        eventually(lambda: state(fleet, event_id) == ("FAILED", "COMMAND_LOST"))  # pylint: disable=cell-var-from-loop
    eventually(lambda: books(fleet) == (0, (3, 3, 0, 0, 0), []))
    assert (items_of(fleet.database, "D"), version_of(fleet.database, "D")) == ({"a": 1}, 1)
    assert fleet.database.value("select error_message from refdata.update_request where event_id = %s",
                                (given_up,)).endswith("too large")
    assert [len(server.logs(event="update_lost", eventId=event_id)) for event_id in (again, failed, given_up)] == [1, 1, 1]


@pytest.mark.whole
def test_a_command_that_kafka_lost_does_not_undo_a_later_update(fleet):
    """R10: published again it would be applied after that one. Those that nothing has followed keep their order."""
    names = fleet.database.name
    old, first, second = accept(fleet, delta("D", {"k": "old"}), delta("E", {"k": 1}), delta("E", {"k": 2}))
    on_engines.skip(on_engines.group(names), on_engines.topic(names))
    (new,) = accept(fleet, delta("D", {"k": "new"}))
    fleet.of("apply")[0].start()
    eventually(lambda: state(fleet, old) == ("FAILED", "COMMAND_LOST"))
    for event_id in (new, first, second):
        eventually(lambda: state(fleet, event_id) == ("COMMITTED", None))  # pylint: disable=cell-var-from-loop
    assert [items_of(fleet.database, code) for code in "DE"] == [{"k": "new"}, {"k": 2}]
    assert books(fleet) == (0, (4, 4, 0, 0, 0), [])


@pytest.mark.whole
def test_an_event_that_nats_lost_is_published_again(engines, serve, refdata_db, token):
    """N1, O1: its stream came back empty. Each grant has one notification."""
    settings = {"notification": {**FAST["notification"], "nats": {"ack-wait": "500ms", **ADVISORIES}, "audit-after": "100ms"}}
    stream = f"{refdata_db.name}_entitlement"
    accepts = serve(refdata_db, settings, args=["--roles", "entitlement"])
    notifies = serve(refdata_db, settings, args=ROLE)
    client = accepts.client(token("demo", subject="shop", scope=SCOPES))
    assert grant(client, "first").status == 200
    eventually(lambda: statuses(refdata_db, "first") == ["SENT"])
    notifies.stop()
    assert grant(client, "lost").status == 200
    eventually(lambda: refdata_db.query("select distinct status from entitlement.outbox_events") == [("PUBLISHED",)])
    done = run("verify", "--books", "--patience", "100ms", "--config", accepts.config_path, env=accepts.env)
    assert done.returncode == 0, done.stdout  # NATS has it
    with nats.Nats(engines.nats.address) as wire:
        wire.api(f"STREAM.DELETE.{stream}")
    done = run("verify", "--books", "--config", accepts.config_path, env=accepts.env)  # no later event is needed to know
    assert done.returncode == 3, done.stdout
    assert [line.split()[2:] for line in done.stdout.splitlines() if "entitlement.events " in line and "WRONG" not in line] == [
        ["2", "1", "0", "1", "0"]]
    notifies.start()
    eventually(lambda: statuses(refdata_db, "lost") == ["SENT"])
    lost = refdata_db.value("select event_id::text from entitlement.outbox_events where aggregate_key like '%%lost%%'")
    assert lost in {line["eventId"] for line in notifies.logs(event="event_lost")}
    assert grant(client, "later").status == 200
    eventually(lambda: statuses(refdata_db, "later") == ["SENT"])
    done = run("verify", "--books", "--config", accepts.config_path, env=accepts.env)
    assert done.returncode == 0, done.stdout
    assert [line.split()[2:] for line in done.stdout.splitlines() if "entitlement.events" in line] == [["3", "3", "0", "0", "0"]]
