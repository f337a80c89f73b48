"""C9 on the engines: one trace through Kafka, Redis and NATS, by the headers that any other client can read."""
import json
import uuid

import pytest

from fleet import DEAF
from lib import on_engines
from lib.collector import Collector, context
from lib.config import merge
from lib.entitlement import GRANTS, SCOPES, body, new_key
from lib.notification import FAST, Receiver, webhook
from lib.refdata import TENANT
from lib.wait import eventually
from lib.writers import delta, updates_path
from test_adapter import External, update

CALLER = "b7ad6b7169203331"
ROLES = {"command": 1, "apply": 1, "relay": 1, "query": 1}
POST = "POST /v1/tenants/{tenantId}/updates"
SHOP = {name: value for name, value in FAST.items() if name != "bus"}


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def way_of_the_load(collector, trace):
    """The spans from the caller to the swap, when all of them are there."""
    def complete():
        way = collector.way_to(collector.one(trace, "load dictionary"))
        assert way[0].parent == CALLER, way
        return way
    return eventually(complete)


def test_c9_one_trace_from_post_to_swap_by_kafka_and_redis(make_fleet, kafka, collector):  # pylint: disable=unused-argument
    """Four processes. The pod compares nothing with the database; Pub/Sub, which has no headers, mostly comes first."""
    fleet = make_fleet(sizes=ROLES, dictionaries=["PLAIN"], sweep=DEAF, traces=collector.settings()["traces"])
    fleet.is_told()
    trace, update_ = uuid.uuid4().hex, delta("PLAIN", {"a": 1})
    with fleet.of("command")[0].client(fleet.token) as client:
        assert client.post(updates_path("WAIT_COMMIT"), update_, traceparent=context(trace, CALLER)).status in (200, 202)
    way = way_of_the_load(collector, trace)
    assert [span.name for span in way] == [POST, "commit update", "publish event", "apply update", "publish event",
                                           "load dictionary"]
    assert [span.kind for span in way] == ["server", "internal", "producer", "consumer", "producer", "consumer"]
    assert len({span.instance for span in way}) == 4
    assert len(collector.of(trace)) == len(way)
    commands, invalidations = way[2], way[4]
    sent, = [headers for _, _, _, headers, value in on_engines.consume(fleet.topic)
             if json.loads(value)["eventId"] == update_["eventId"]]
    assert sent["traceparent"].decode() == context(trace, commands.id)
    headers, event = [(headers, event) for _, headers, event in on_engines.told(fleet.database.name)
                      if event["eventId"] == update_["eventId"]][0]
    assert headers["traceparent"] == context(trace, invalidations.id)
    assert set(event) == {"eventId", "tenantId", "dictCode", "version", "committedAt"}  # R12


@pytest.mark.whole
def test_c9_a_message_of_another_program_goes_on_with_its_trace(make_fleet, refdata_db, kafka, collector):  # pylint: disable=unused-argument
    """The adapter (R9); a message without a trace begins one, as often as samplePercent says."""
    external = External(f"{refdata_db.name}.external")
    source = {"topic": external.name, "group": external.name, "tenant": {"fixed": TENANT}}
    fleet = make_fleet(sizes={"adapter": 1, "apply,relay": 1, "query": 1}, dictionaries=["PLAIN"], sweep=DEAF,
                       adapter={"sources": [source]}, traces=collector.settings(samplePercent=100)["traces"])
    on_engines.eventually_reads(external.name, external.name)
    trace, not_sampled = uuid.uuid4().hex, uuid.uuid4().hex
    external.send(update({"a": 1}), headers=[("traceparent", context(trace, CALLER).encode())])
    adapter, = eventually(lambda: collector.of(trace, "accept message"))
    assert (adapter.kind, adapter.parent, adapter.attributes["messaging.system"]) == ("consumer", CALLER, "kafka")
    apply, = eventually(lambda: collector.of(trace, "apply update"))
    assert [span.name for span in collector.way_to(apply)] == ["accept message", "publish event", "apply update"]
    external.send(update({"b": 1}), headers=[("traceparent", context(not_sampled, CALLER, False).encode())])
    external.send(update({"c": 1}), headers=[("traceparent", b"00-junk")])
    fleet.reach(3)
    begun = eventually(lambda: [span for span in collector.spans if span.name == "accept message" and span.trace != trace])
    assert len(begun) == 1 and begun[0].parent is None
    assert not collector.of(not_sampled)


def test_c9_a_grant_from_its_post_to_the_webhook_by_nats(engines, serve, refdata_db, token, collector):  # pylint: disable=unused-argument
    receiver = Receiver()
    try:
        settings = merge(merge(SHOP, {"notification": webhook(receiver)["notification"]}), collector.settings())
        shop = serve(refdata_db, settings, args=["--roles", "entitlement"])
        serve(refdata_db, settings, args=["--roles", "notification"])
        trace = uuid.uuid4().hex
        with shop.client(token("demo", subject="shop", scope=SCOPES)) as client:
            assert client.post(GRANTS, body("traced"), Idempotency_Key=new_key(),
                               traceparent=context(trace, CALLER)).status == 200
        call = eventually(lambda: collector.of(trace, "POST"))[0]
        way = eventually(lambda: len(collector.way_to(call)) == 4 and collector.way_to(call))
        assert [span.name for span in way] == ["POST /v1/entitlements/grants", "publish event", "accept event", "POST"]
        assert way[0].parent == CALLER and way[0].instance != way[3].instance
        delivered, = receiver.of("traced")
        assert delivered["headers"]["traceparent"] == context(trace, call.id)
    finally:
        receiver.close()
