"""Every role and every engine is killed in turn under mixed load, as they are run for real: each role in processes of its own, on
Kafka, Redis Cluster and NATS (C1, C7, R10–R14, O1, N1). Others take over or the load waits, it comes back by itself, and at the end
everything that was accepted is accounted for."""
import json
import time

import kafka.errors as kafka_errors
import pytest

from events import ADVISORIES, DURABLE
from fleet import Fleet
from lib import on_engines
from lib.config import merge
from lib.refdata import TENANT, own_refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import Threads, delta
from mixed import Mixed, kept, settings
from test_promotion import KINDS, all_kinds_succeed
from workload import GOOD, Sent

pytestmark = [pytest.mark.whole, pytest.mark.engines]

SIZES = {"adapter": 2, "command": 2, "apply": 2, "relay": 2, "query": 2, "intake": 2, "chat": 2, "entitlement": 2, "notification": 2,
         "hydration": 2}
DOWN_S = 2.0  # until something dead is started again, as a supervisor does
STEADY_S = 1.0  # without a failure, before the next one dies


def on_nats(database):
    """What notification needs to know of NATS; the rest is in the settings of every server on the engines."""
    return {"notification": {"nats": {"durable": DURABLE, "ack-wait": "1s", "stream": f"{database.name}_entitlement", **ADVISORIES}}}


def victims(fleet, database, engines):
    """(name, kill, start again) of everything there is, one process of each role."""
    for role in SIZES:
        server = fleet.of(role)[0]
        yield f"a process of the role {role}", server.kill, server.spawn
    for number, node in enumerate(engines.redis.nodes, 1):
        yield f"Redis master {number}", node.kill, node.start
    yield "NATS", engines.nats.kill, engines.nats.start
    yield "Kafka", engines.kafka.kill, engines.kafka.start
    yield "PostgreSQL", lambda: database.server.stop("immediate"), database.server.start


class External:
    """A program that writes updates into a topic of its own, which the role adapter reads (R9). A message that Kafka has not
    acknowledged is sent again, with its eventId."""

    def __init__(self, database, load):
        self.name, self.load = f"{database.name}.external", load
        on_engines.create_topic(self.name, partitions=2)

    def run(self, stopping):
        while not stopping.wait(0.1):
            body = delta("COUNTED", {})
            body["items"] = [{"key": body["eventId"], "op": "UPSERT", "payload": {"writer": "external"}}]
            while not self._is_sent(json.dumps(body).encode()):
                pass
            self.load.updates.sent.append(Sent(body["eventId"], "COUNTED", GOOD))

    def _is_sent(self, value):
        try:
            on_engines.producer().send(self.name, key=b"k", value=value).get(10)
        except kafka_errors.KafkaError:
            self.load.timeline.note("external message", TimeoutError())
            return False
        self.load.timeline.note("external message", 200)
        return True

    def is_read(self):
        committed = on_engines.group_offsets(self.name, self.name)
        return all(committed.get(partition, 0) >= end for partition, end in on_engines.ends(self.name).items())


def is_steady(timeline, since):
    """Each kind succeeds, and nothing has failed for a while."""
    recent = timeline.now() - STEADY_S
    kinds = timeline.kinds()
    return recent > since and len(kinds) >= KINDS and all(timeline.since(recent, kind) for kind in kinds) and not any(
        at >= recent and outcome != "ok" for at, _, outcome in timeline.attempts[-500:])


def test_each_role_and_engine_dies_in_turn_and_nothing_is_lost(serve, own_refdata_db, token, kafka, engines, receiver,  # noqa: F811
                                                               timeline, report):
    assert kafka
    changes = merge(settings(receiver), on_nats(own_refdata_db))
    source = {"topic": f"{own_refdata_db.name}.external", "group": f"{own_refdata_db.name}.external", "tenant": {"fixed": TENANT}}
    fleet = Fleet(serve, own_refdata_db, token, sizes=SIZES, adapter={"sources": [source]}, **changes)
    load = Mixed({role: fleet.of(role) for role in SIZES}, token, timeline, receiver)
    external = External(own_refdata_db, load)
    fleet.start()
    on_engines.eventually_reads(external.name, external.name)
    kept(fleet.of("command")[0], fleet.pods, load.bearer)
    windows = {}
    with Threads() as threads:
        load.start(threads)
        threads.add(external.run)
        all_kinds_succeed(timeline, timeline.now(), 5, threads)
        for name, kill, start in victims(fleet, own_refdata_db, engines):
            died = timeline.fault(name)
            kill()
            time.sleep(DOWN_S)
            start()
            since = timeline.now()
            eventually(lambda: threads.errors or is_steady(timeline, since))  # pylint: disable=cell-var-from-loop
            assert not threads.errors, (name, threads.errors[0])
            windows[name] = (died, timeline.now())
    eventually(external.is_read)
    fleet.settled()
    found = load.audit(own_refdata_db)
    report.add("Each role and engine is killed in turn, on Kafka, Redis and NATS", timeline, windows,
               {what: (count, count, 0) for what, count in found.items()},
               [f"Two processes of each role. What died is started again {DOWN_S:.0f} s later; the next one dies when every kind of"
                f" request has succeeded for {STEADY_S:.0f} s without a failure."])
    assert on_engines.is_handled(own_refdata_db.name)
