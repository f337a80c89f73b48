"""The publisher of entitlements and the deliverer of notifications are killed and frozen under load: nothing is lost, each
event has one effect, and a zombie changes nothing (E3, O1, O3, N1, N3)."""
import os
import signal
import time

import pytest

import failpoints
from cluster import Killer, Processes
from grants import ROLES, Grants, audit, settings
from lib.entitlement import SCOPES
from lib.notification import Receiver
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import Threads
from workload import check_books

KILLS = {"whole": 200, "short": 10}
# Dead letters and what is done with them have tests of their own: nothing here ever becomes one.
STEPS = sorted(failpoints.names_of("entitlement", "idempotency", "notification", "delivery", "outbox")
               - {name for name in failpoints.names() if ".dead_" in name or "requeue" in name})
ZOMBIES = {"entitlement.after_claim": True, "entitlement.after_publish": False, "delivery.after_claim": True,
           "delivery.after_send": False}  # is it only for whole runs?


@pytest.fixture
def receiver():
    one = Receiver()
    yield one
    one.close()


@pytest.fixture
def cluster(serve, refdata_db, receiver):  # noqa: F811
    return Processes(lambda args: serve.make(refdata_db, settings(receiver), args=args), [ROLES, ROLES]).start()


@pytest.fixture
def workload(cluster, token):
    return Grants(cluster.servers, token("demo", subject="shop", scope=SCOPES, ttl=3600))


def test_kills_under_load_lose_and_repeat_nothing(cluster, workload, refdata_db, receiver, whole):  # noqa: F811
    kills = KILLS["whole" if whole else "short"]
    killer = Killer(cluster, workload, STEPS)
    with Threads() as threads:
        workload.start(threads)
        for name in STEPS if whole else []:
            killer.kill_all_at(name, should_stop=threads.stopping.is_set)
        kills += cluster.kills
        killer.run(kills, should_stop=threads.stopping.is_set)
        check_books(cluster.servers[0])
        cluster.heal()
    changes = audit(refdata_db, workload, receiver)
    check_books(cluster.servers[0])
    assert not any(server.logs(event="event_lost") for server in cluster.servers)
    assert cluster.kills == kills and changes > kills
    print(f"\n{kills} kills, {changes} changes, {workload.refusals} refusals, {len(receiver.calls)} calls")


@pytest.mark.parametrize("place", ZOMBIES)
def test_a_zombie_changes_nothing(cluster, workload, refdata_db, receiver, whole, place):  # noqa: F811
    """It freezes with a batch in its hands, others take that over when the lease is out, and it comes back."""
    if ZOMBIES[place] and not whole:
        pytest.skip("in whole runs")
    zombie, other = cluster.servers
    workload.servers = [other]
    cluster.kill(zombie)
    cluster.restart(zombie, f"{place}=stop#{3 if whole else 1}")
    with Threads() as threads:
        workload.start(threads, writers=2)
        eventually(lambda: threads.errors or failpoints.reached(zombie))
        time.sleep(0.2)
    try:
        # Everything is told while it sleeps, what it holds included.
        changes = audit(refdata_db, workload, receiver)
        before = _rows(refdata_db)
    finally:
        os.kill(zombie.process.pid, signal.SIGCONT)
    eventually(lambda: zombie.logs(event="outbox_claim_lost"))
    assert audit(refdata_db, workload, receiver) == changes
    assert _rows(refdata_db) == before


def _rows(database):
    """Both tables as they are, but for nothing."""
    return [database.query("select md5(string_agg(e::text, ',' order by event_id)) from entitlement.outbox_events e"),
            database.query("select md5(string_agg(n::text, ',' order by event_id)) from notification.notifications n")]


def test_frozen_again_and_again_nothing_is_lost(cluster, workload, refdata_db, receiver, whole):  # noqa: F811
    """Wherever it happens to be, for longer than its leases; the other one goes on."""
    workload.servers = cluster.servers[:1]
    with Threads() as threads:
        workload.start(threads)
        for _ in range(6 if whole else 1):
            sent = len(workload.sent)
            eventually(lambda: threads.errors or len(workload.sent) > sent + 50)  # pylint: disable=cell-var-from-loop
            os.kill(cluster.servers[1].process.pid, signal.SIGSTOP)
            time.sleep(3 if whole else 1.5)
            os.kill(cluster.servers[1].process.pid, signal.SIGCONT)
    audit(refdata_db, workload, receiver)
