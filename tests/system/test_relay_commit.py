"""R12, ADR 16: where PostgreSQL carries invalidations, a process that applies and relays publishes a version in the commit that
makes it; the relay publishes what is left."""
import contextlib

import pytest

from lib.outbox import leave, live, versions
from lib.refdata import TENANT, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta

ROLES = {"one": ["command,apply,relay"], "two": ["command", "apply,relay"]}
# A transaction has written both rows: the event's and the message's.
IN_ITS_COMMIT = ("select o.version from refdata.outbox_event o join platform.bus_message m on o.event_id::text = any (m.headers)"
                 " where m.topic = 'refdata.invalidations' and o.xmin = m.xmin and o.published and o.published_at is not null"
                 " order by o.version")


@pytest.fixture(params=ROLES)
def writer(request, serve, refdata_db, token):  # noqa: F811
    """A client of a process whose updates are published in their commits from the third on: the first makes the topic known."""
    servers = [serve(refdata_db, pod("D"), args=("--roles", roles)) for roles in ROLES[request.param]]
    client = servers[0].client(token(TENANT))
    client.servers = servers
    for _ in range(2):
        assert commit(client, delta("D", {"a": 1})).status == 200
        eventually(lambda: live(refdata_db) == 0)
    return client


def test_a_version_is_published_in_its_commit(writer, refdata_db):  # noqa: F811
    for number in range(3, 8):
        assert commit(writer, delta("D", {"a": number})).json()["committedVersion"] == number
        assert live(refdata_db) == 0  # no relay has to claim it
    assert [version for version, in refdata_db.query(IN_ITS_COMMIT)][-5:] == [3, 4, 5, 6, 7]
    assert refdata_db.value("select max(claim_count) from refdata.outbox_event where version > 2") == 0
    assert list(dict.fromkeys(versions(refdata_db, "D"))) == [1, 2, 3, 4, 5, 6, 7]


def test_a_version_is_not_published_before_an_earlier_one_of_its_dictionary(writer, refdata_db):  # noqa: F811
    """O1: whatever an earlier event waits for, a later one waits too, and the relay publishes both in order."""
    leave(refdata_db, "D", 3, 3)
    refdata_db.query("update refdata.outbox_event set next_attempt_at = now() + interval '1 h' where version = 3 and not published")
    refdata_db.query("update refdata.dictionary_meta set version = 3")
    waits = live(refdata_db)  # none, if a relay was quicker
    assert commit(writer, delta("D", {"a": 4})).json()["committedVersion"] == 4
    assert live(refdata_db) == 2 * waits
    refdata_db.query("update refdata.outbox_event set next_attempt_at = null where not published")
    assert commit(writer, delta("D", {"a": 5})).json()["committedVersion"] == 5
    eventually(lambda: live(refdata_db) == 0)
    assert list(dict.fromkeys(versions(refdata_db, "D"))) == [1, 2, 3, 4, 5]


def test_a_topic_whose_partitions_are_gone_is_left_to_the_relay(writer, refdata_db):  # noqa: F811
    for table in ("message", "partition"):
        refdata_db.query(f"delete from platform.bus_{table} where topic = 'refdata.invalidations'")
    assert commit(writer, delta("D", {"a": 3})).json()["committedVersion"] == 3
    eventually(lambda: live(refdata_db) == 0)  # it makes the topic again
    assert set(versions(refdata_db, "D")) == {3}


def test_a_commit_does_not_wait_for_another_one_in_the_same_partition(writer, refdata_db):  # noqa: F811
    """It leaves its version to the relay."""
    with contextlib.closing(refdata_db.connect()) as other:
        cursor = other.cursor()
        cursor.execute("begin")
        cursor.execute("select from platform.bus_partition where topic = 'refdata.invalidations' for update")
        assert commit(writer, delta("D", {"a": 3})).json()["committedVersion"] == 3
        assert live(refdata_db) == 1
        cursor.execute("commit")
    eventually(lambda: live(refdata_db) == 0)
    eventually(lambda: sum(number for server in writer.servers for name, number in server.metrics().items()
                           if name.startswith("outbox_publish_success_total")) == 3)  # once each, whoever published it
    assert list(dict.fromkeys(versions(refdata_db, "D"))) == [1, 2, 3]
