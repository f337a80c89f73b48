"""A standby becomes the primary under mixed load (R10, R14, C7): with synchronous commits nothing that was answered is lost; a lost
tail is noticed, and everything converges."""
import time

import pytest

from cluster import Cluster
from lib import on_engines
from lib.apply import version_of
from lib.refdata import migrated, path
from lib.wait import eventually
from lib.writers import Threads
from mixed import Mixed, kept, settings
from tail import Tail, wait_for_loss

EVERYTHING = "command", "query", "intake", "chat", "entitlement", "notification", "hydration"
OUTAGE_S = 1.0  # from the primary's death to the promotion: what a failover manager needs to be sure
KINDS = 8  # of requests in the mixed load
ALONE = [pytest.mark.whole, pytest.mark.embedded]


def on():
    return ", on Kafka, Redis and NATS" if on_engines.IS_ON else ""


def start(serve, pair, jwks_path, folder, receiver, token, timeline):
    """Two processes with all roles and a pod, on a database of the pair: (cluster, database, a Mixed)."""
    database = migrated(pair, jwks_path, folder)
    cluster = Cluster(serve, database, [[], [], ["--roles", "query"]], **settings(receiver)).start()
    roles = {role: cluster.writable for role in EVERYTHING} | {"query": cluster.servers}
    load = Mixed(roles, token, timeline, receiver)
    kept(cluster.servers[0], cluster.servers, load.bearer)
    return cluster, database, roles, load


def hold(whole):
    """In whole runs the load goes on for a while, for the plots."""
    time.sleep(5 if whole else 0)


def all_kinds_succeed(timeline, since, times, threads):
    """Waits until each kind of request has succeeded so often since a moment."""
    def is_so():
        assert not threads.errors, threads.errors[0]
        counts = {kind: timeline.since(since, kind) for kind in timeline.kinds()}
        return len(counts) >= KINDS and min(counts.values()) >= times
    eventually(is_so)


def fail_over(pair, timeline):
    """Kills the primary and promotes the standby; the moment of the death."""
    died = timeline.fault("primary killed")
    pair.kill()
    time.sleep(OUTAGE_S)
    pair.promote()
    timeline.fault("standby promoted")
    return died


@pytest.mark.parametrize("by", ["jdbc hosts", pytest.param("libpq hosts", marks=ALONE), pytest.param("address", marks=ALONE)])
def test_a_synchronous_standby_is_promoted_and_nothing_answered_is_lost(serve, make_pair, jwks_path, tmp_path, token,
                                                                        receiver, timeline, report, whole, by):
    pair = make_pair(by)
    cluster, database, _, load = start(serve, pair, jwks_path, tmp_path, receiver, token, timeline)
    pair.synchronise()
    with Threads() as threads:
        load.start(threads)
        all_kinds_succeed(timeline, timeline.now(), 20, threads)
        hold(whole)
        died = fail_over(pair, timeline)
        all_kinds_succeed(timeline, timeline.now(), 20, threads)
        hold(whole)
        ended = timeline.now()
    assert pair.ask(pair.now, "select pg_is_in_recovery()") is False and pair.now is pair.standby
    found = load.audit(database)
    report.add(f"A synchronous standby is promoted ({by}{on()})", timeline, {"primary killed": (died, ended)},
               {what: (count, count, 0) for what, count in found.items()})
    assert regressions(cluster.servers) == 0, "nothing went back"


def regressions(servers):
    return sum(value for server in servers for name, value in server.metrics().items()
               if name.startswith("dict_version_regressions_total"))


# ---- a lost tail ----

@pytest.mark.whole
@pytest.mark.parametrize("by", ["jdbc hosts", pytest.param("address", marks=ALONE)])
def test_a_lost_tail_is_noticed_and_everything_converges(serve, make_pair, jwks_path, tmp_path, token, receiver,
                                                         timeline, report, whole, by):
    """R14: the standby is cut off before the primary dies. What was answered before is kept, what the new primary answered is
    kept, what was lost in between is lost whole; updates sent again by their eventId are applied once."""
    pair = make_pair(by)
    cluster, database, roles, before = start(serve, pair, jwks_path, tmp_path, receiver, token, timeline)
    with Threads() as threads:
        before.start(threads)
        all_kinds_succeed(timeline, timeline.now(), 20, threads)
    pair.catch_up()
    pair.cut()
    cut = timeline.fault("standby cut off")
    cut_version = version_of(database, "COUNTED")
    tail = Tail(cluster.writable, before.bearer, timeline)
    after = Mixed(roles, token, timeline, receiver, number=1)
    with Threads() as threads:
        tail.start(threads)
        wait_for_loss(tail, cut, 20, threads)
        eventually(lambda: lowest_version(cluster.servers, before.bearer) > cut_version)
        died, promoted = fail_over(pair, timeline), timeline.now()
        wait_for_loss(tail, promoted, 20, threads)
        after.start(threads)
        all_kinds_succeed(timeline, timeline.now(), 20, threads)
        hold(whole)
        ended = timeline.now()
    result = tail.settle(database, promoted)
    assert all(lost for _, lost in result.values()), {kind: len(lost) for kind, (_, lost) in result.items()}
    tail.send_again(tail.client(0), result["update"][1])
    tail.absorb_into(after, result)
    after.absorb(before)
    found = after.audit(database, lost_some=True)
    for server in cluster.servers:  # each held the lost versions
        assert regressions([server]) >= 1
        assert server.logs(event="dictionary_version_went_back") or server.logs(event="dictionary_history_replaced")
    accounts = {what: (count, count, 0) for what, count in found.items()}
    accounts |= {f"{kind}s in the tail": (len(found) + len(lost), len(found), len(lost)) for kind, (found, lost) in result.items()}
    report.add(f"A standby that was cut off is promoted ({by}{on()})", timeline, {"primary killed": (died, ended)}, accounts,
               ["The standby was cut off before the primary died: what was answered in between is the lost tail. The updates of it"
                " were sent again by their eventIds and have one effect each."])


def lowest_version(servers, bearer):
    """That any of the pods serves."""
    found = []
    for server in servers:
        with server.client(bearer) as client:
            found.append(client.get(path("COUNTED", "/version")).json()["version"])
    return min(found)
