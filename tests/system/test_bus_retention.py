"""The embedded bus keeps what a group has still to read, also when no process of that group has ever run (R1, N1)."""
import pytest

from lib import entitlement, notification
from lib.entitlement import SCOPES, grant
from lib.refdata import TENANT, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, status_path, updates_path

QUICK = {"bus": {"postgres": {"keep": "1s", "pollInterval": "50ms"}}}


def age(database, topic, interval="1 hour"):
    database.query("update platform.bus_message set created_at = created_at - %s::interval where topic = %s", (interval, topic))


def count(database, topic):
    return database.value("select count(*) from platform.bus_message where topic = %s", (topic,))


def wait_for_retention(database, witness):
    """Until retention has passed every topic before `witness`, one that no group reads: its message is old, and goes."""
    database.query("select platform.bus_publish(array[%s], array[0], array[1], array[null::bytea], array['{}'], array[''::bytea])",
                   (witness,))
    age(database, witness, "1 year")
    eventually(lambda: count(database, witness) == 0)


def test_updates_answered_202_are_applied_by_an_apply_that_first_starts_much_later(serve, refdata_db, token):  # noqa: F811
    client = serve(refdata_db, pod("B", **QUICK), args=("--roles", "command")).client(token(TENANT))
    bodies = [delta("B", {f"k{number}": number}) for number in range(3)]
    for body in bodies:
        assert client.post(updates_path("ASYNC"), body).status == 202
    age(refdata_db, "refdata.commands")
    wait_for_retention(refdata_db, "refdata.invalidations")
    serve(refdata_db, pod("B", **QUICK), args=("--roles", "apply"))
    for body in bodies:
        eventually(lambda: client.get(status_path(body["eventId"])).json()["status"] == "COMMITTED")


def test_grants_are_notified_by_a_notification_role_that_first_starts_much_later(serve, refdata_db, token):  # noqa: F811
    client = serve(refdata_db, QUICK, args=entitlement.ROLE).client(token(TENANT, scope=SCOPES))
    assert grant(client, "late").status == 200
    eventually(lambda: count(refdata_db, notification.TOPIC) == 1)
    age(refdata_db, notification.TOPIC)
    wait_for_retention(refdata_db, "entity.updated.dlq")
    serve(refdata_db, notification.FAST, args=notification.ROLE)
    eventually(lambda: notification.statuses(refdata_db, "late") == ["SENT"])


@pytest.fixture
def late(serve, refdata_db):  # noqa: F811
    """Events of entitlements are kept for two seconds at most, and nobody reads them."""
    settings = {"bus": {"postgres": {**QUICK["bus"]["postgres"], "keepUnread": "2s"}}}
    return serve(refdata_db, settings, args=entitlement.ROLE)


def test_what_a_group_never_read_goes_after_keep_unread_and_that_is_logged(late, refdata_db, token):  # noqa: F811
    client = late.client(token(TENANT, scope=SCOPES))
    assert grant(client, "unread").status == 200
    eventually(lambda: count(refdata_db, notification.TOPIC) == 1)
    age(refdata_db, notification.TOPIC)
    eventually(lambda: count(refdata_db, notification.TOPIC) == 0)
    line, = eventually(lambda: late.logs(event="bus_unread_deleted"))
    assert (line["topic"], line["group"], line["count"]) == (notification.TOPIC, "notification", 1)
