"""A process that dies between two steps, and what is left for the next one (R10, R12, R14, O1)."""
import signal

import pytest

from cluster import Cluster
from lib.refdata import item_path, path, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta, status_path, updates_path
from workload import CODES, is_settled

COMMAND, APPLY, RELAY = ["--roles", "command,query"], ["--roles", "apply,query"], ["--roles", "relay,query"]


def died_at(server, failpoint):
    """The process ended itself there."""
    return server.process.poll() == -signal.SIGKILL and f'"failpoint":"{failpoint}"' in server.log()


@pytest.fixture
def cluster(serve, refdata_db):  # noqa: F811
    """A process for each step; none is started."""
    return Cluster(serve, refdata_db, [COMMAND, APPLY, RELAY])


def start(cluster, armed=None, failpoint=None):
    for server in cluster.servers:
        server.env["FRESHET_FAILPOINTS"] = f"{failpoint}=kill#1" if server is armed else ""
        server.start()


def revive(cluster, server):
    assert server.process.poll() is not None
    server.env["FRESHET_FAILPOINTS"] = ""
    server.start()
    return cluster.servers


def all_serve(cluster, bearer, key, payload, version):
    """Every pod comes to this by itself."""
    def serves(server):
        with server.client(bearer) as client:
            answer = client.get(item_path("PLAIN", key))
            return (answer.status == 200 and answer.json()["payload"] == payload
                    and int(answer.headers["x-dict-version"]) == version)
    for server in cluster.servers:
        if server.process.poll() is None:
            eventually(lambda: serves(server))  # pylint: disable=cell-var-from-loop


def test_apply_dies_between_commit_and_notice(cluster, refdata_db, token):  # noqa: F811
    bearer = token("demo")
    command, apply, _ = cluster.servers
    start(cluster, armed=apply, failpoint="apply.after_commit")
    with command.client(bearer) as client:
        for code in CODES:
            client.get(path(code, "/version"))
        body = delta("PLAIN", {"a": 1})
        answer = client.post(updates_path("WAIT_COMMIT", timeout_ms=1000), body)
        assert answer.status in (200, 202)  # who waits may learn it late, but never learns what is not so
        eventually(lambda: died_at(apply, "apply.after_commit"))
        update = client.get(status_path(body["eventId"])).json()
        assert (update["status"], update["committedVersion"]) == ("COMMITTED", 1)
        again = client.post(updates_path("WAIT_COMMIT"), body)
        assert (again.status, again.json()["committedVersion"]) == (200, 1)
    all_serve(cluster, bearer, "a", 1, 1)
    revive(cluster, apply)
    with command.client(bearer) as client:
        assert commit(client, delta("PLAIN", {"a": 2})).status == 200
    all_serve(cluster, bearer, "a", 2, 2)
    eventually(lambda: is_settled(refdata_db))
    assert refdata_db.value("select count(*) from refdata.outbox_event") == 2


def test_apply_dies_before_its_commit(cluster, refdata_db, token):  # noqa: F811
    """Nothing of it is there, and the next one applies it."""
    bearer = token("demo")
    command, apply, _ = cluster.servers
    start(cluster, armed=apply, failpoint="apply.before_commit")
    with command.client(bearer) as client:
        body = delta("PLAIN", {"a": 1})
        answer = client.post(updates_path("WAIT_COMMIT"), body)
        assert (answer.status, answer.json()["status"]) == (202, "PENDING")
        eventually(lambda: died_at(apply, "apply.before_commit"))
        assert client.get(status_path(body["eventId"])).json()["status"] == "PENDING"
        assert client.get(path("PLAIN", "/version")).json()["version"] == 0
        revive(cluster, apply)
        eventually(lambda: client.get(status_path(body["eventId"])).json()["status"] == "COMMITTED")
    all_serve(cluster, bearer, "a", 1, 1)


def test_relay_dies_between_publish_and_finalize(cluster, refdata_db, token):  # noqa: F811
    """The next one publishes again: pods hear of it twice, and nothing comes of the second time."""
    bearer = token("demo")
    command, _, relay = cluster.servers
    start(cluster, armed=relay, failpoint="relay.after_publish")
    with command.client(bearer) as client:
        assert commit(client, delta("PLAIN", {"a": 1})).status == 200
        eventually(lambda: died_at(relay, "relay.after_publish"))
        assert refdata_db.value("select count(*) from refdata.outbox_event where published") == 0
        all_serve(cluster, bearer, "a", 1, 1)  # it was published
        # The dead one's lease must not hold up the next version for longer than the pods' own look at the database.
        assert commit(client, delta("PLAIN", {"a": 2})).status == 200
        all_serve(cluster, bearer, "a", 2, 2)
    revive(cluster, relay)
    eventually(lambda: is_settled(refdata_db))  # after the lease
    assert refdata_db.value("select count(*) from refdata.outbox_event") == 2
    published = refdata_db.value("select count(*) from platform.bus_message where topic = 'refdata.invalidations'")
    assert published == 3  # the first one twice
