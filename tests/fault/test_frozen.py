"""A process that does not run for a while, as on a machine that swaps or a container that is paused (R7, R13, R14)."""
import os
import signal
import threading
import time

import pytest

from cluster import Cluster
from failpoints import reached
from lib.refdata import item_path, path, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import Patient, Threads, commit, delta, status_path, updates_path
from workload import CODES, Workload, audit, is_settled

WRITES = 50


def freeze(server):
    os.kill(server.process.pid, signal.SIGSTOP)


def thaw(server):
    os.kill(server.process.pid, signal.SIGCONT)


def test_a_frozen_pod_is_right_as_soon_as_it_runs_again(serve, refdata_db, token, whole):  # noqa: F811
    bearer = token("demo", ttl=3600)
    cluster = Cluster(serve, refdata_db, [[], ["--roles", "query"]]).start()
    writing, pod = cluster.servers
    writer, reader = writing.client(bearer), pod.client(bearer)
    assert commit(writer, delta("PLAIN", {"a": 0})).status == 200
    for code in CODES:
        assert reader.get(path(code, "/version")).status == 200
    freeze(pod)
    try:
        thawing = time.monotonic() + (5 if whole else 1.5)
        for value in range(1, WRITES + 1):
            body = delta("PLAIN", {"a": value, f"k{value}": value})
            answer = commit(writer, body)
            assert answer.status == 200, answer.body
        version = answer.json()["committedVersion"]
        assert version == WRITES + 1
        time.sleep(max(0.0, thawing - time.monotonic()))
    finally:
        thaw(pod)
    answer = reader.get(item_path("PLAIN", "a"), X_Min_Version=str(version))
    assert (answer.status, answer.json()["payload"]) == (200, WRITES)
    assert int(answer.headers["x-dict-version"]) == version
    keys = ",".join(f"k{value}" for value in range(1, WRITES + 1))
    several = reader.get(path("PLAIN", f"/items?keys={keys}"), X_Min_Version=str(version)).json()
    assert (several["version"], len(several["items"])) == (version, WRITES)
    assert eventually(lambda: reader.get(path("PLAIN", "/version")).json()["version"] == version)
    digests = {client.get(path("PLAIN", "/version"), X_Min_Version=str(version)).json()["digest"]
               for client in (writer, reader)}
    assert len(digests) == 1


def test_others_take_over_from_a_frozen_process_and_it_repeats_nothing(serve, refdata_db, token, whole):  # noqa: F811
    """It may hold locks and open transactions at the moment it freezes, and believes that it still does."""
    bearer = token("demo", ttl=3600)
    cluster = Cluster(serve, refdata_db, [[], []]).start()
    workload = Workload([cluster.servers[0]], bearer)
    with Threads() as threads:
        workload.start(threads)
        for _ in range(6 if whole else 2):
            accepted = len(workload.sent)
            eventually(lambda: threads.errors or len(workload.sent) > accepted + 50)
            freeze(cluster.servers[1])
            time.sleep(5 if whole else 1.5)
            thaw(cluster.servers[1])
    audit(refdata_db, workload, cluster.servers, bearer)


def test_a_process_that_freezes_in_its_own_commit_loses_its_locks(serve, refdata_db, token, whole):  # noqa: F811
    """It holds the partition and the pair; PostgreSQL ends a transaction that is idle for 30 s."""
    if not whole:
        pytest.skip("takes half a minute")
    bearer = token("demo", ttl=3600)
    cluster = Cluster(serve, refdata_db, [[], []])
    frozen, other = cluster.servers
    frozen.env["FRESHET_FAILPOINTS"] = "command.before_direct_commit=stop#1"
    cluster.start()
    client = Patient([frozen], bearer)
    first, second = delta("PLAIN", {"a": 1}), delta("PLAIN", {"a": 2})
    answers = []
    asking = threading.Thread(target=lambda: answers.append(client.post(first, "WAIT_COMMIT")))
    asking.start()
    try:
        eventually(lambda: "command.before_direct_commit" in reached(frozen))
        with other.client(bearer) as writer:
            assert writer.post(updates_path("WAIT_COMMIT"), second).status == 202
            eventually(lambda: writer.get(status_path(second["eventId"])).json()["status"] == "COMMITTED", timeout=60)
    finally:
        thaw(frozen)
        asking.join()
    eventually(lambda: is_settled(refdata_db))
    versions = refdata_db.query("select event_id, committed_version from refdata.update_request order by 2")
    assert [(str(event), version) for event, version in versions] == [(second["eventId"], 1), (first["eventId"], 2)]
    assert answers[0].status in (200, 202)
