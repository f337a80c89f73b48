"""kill -9 at every step, under load: nothing accepted is lost, nothing has its effect twice (R1, R10, R11, R12)."""
import collections

import pytest

import failpoints
from cluster import APART, TOGETHER, Cluster, Killer
from lib.refdata import own_refdata_db, refdata_db  # noqa: F401
from lib.writers import Threads
from workload import Workload, audit, check_books

KILLS = {"whole": {"together": 100, "apart": 60}, "short": {"together": 8, "apart": 6}}  # beside those at each step
ROLES = {"together": TOGETHER, "apart": APART}
# What this workload comes to: engines' own places are tried by tests/engines, those of events by test_events.py. A POST is
# applied in its own commit only where the process applies too.
OWN = failpoints.names_of("command", "apply", "relay", "query", "outbox")
NOT_THERE = {"together": set(), "apart": {name for name in OWN if "direct" in name}}


def test_every_failpoint_has_a_name_of_its_own():
    places = failpoints.places()
    wrong = [name for name, _ in places if not failpoints.NAME.fullmatch(name)]
    assert not wrong
    repeated = [name for name, count in collections.Counter(name for name, _ in places).items() if count > 1]
    assert not repeated
    assert {name.split(".")[0] for name, _ in places} >= {"command", "apply", "relay", "query"}


@pytest.mark.parametrize("sharing", ["together", "apart"])
def test_kills_under_load_lose_and_repeat_nothing(serve, refdata_db, token, whole, sharing):  # noqa: F811
    """First at every failpoint, one after the other, then here and there; one audit of it all."""
    bearer = token("demo", ttl=3600)
    cluster = Cluster(serve, refdata_db, ROLES[sharing]).start()
    workload = Workload(cluster.writable, bearer)
    killer = Killer(cluster, workload, sorted(OWN - NOT_THERE[sharing]))
    with Threads() as threads:
        workload.start(threads)
        for name in killer.names:
            killer.kill_all_at(name, should_stop=threads.stopping.is_set)
        check_books(cluster.servers[0])
        kills = cluster.kills + KILLS["whole" if whole else "short"][sharing]
        killer.run(kills, should_stop=threads.stopping.is_set)
        check_books(cluster.servers[0])
        cluster.heal()
    versions = audit(refdata_db, workload, cluster.servers, bearer)
    assert cluster.kills == kills and len(workload.sent) > kills
    print(f"\n{sharing}: {kills} kills, {len(workload.sent)} updates accepted, {workload.refusals} refusals,"
          f" versions {versions}")
