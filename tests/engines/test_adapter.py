"""R9: what other programs put into their own topics becomes updates: once each, in order, garbage aside."""
import contextlib
import json
import uuid

import pytest

from lib import on_engines
from lib.refdata import TENANT
from lib.wait import eventually
from lib.writers import delta, updates_path

SIZES = {"adapter": 2, "command,apply,relay": 1, "query": 1}


class External:
    """Somebody else's topic, written by a client in another language."""

    def __init__(self, name):
        self.name = name
        on_engines.create_topic(name, partitions=2)

    def send(self, *messages, key=b"k", headers=()):
        """Dicts as JSON, bytes and None as they are; in order, since all have one key."""
        for message in messages:
            value = json.dumps(message).encode() if isinstance(message, dict) else message
            on_engines.producer().send(self.name, key=key, value=value, headers=list(headers))
        on_engines.producer().flush(30)

    def dead(self):
        return [(value, {name: text.decode() for name, text in headers.items()})
                for _, _, _, headers, value in on_engines.consume(self.name + ".dlq")]


@pytest.fixture
def external(refdata_db, kafka):  # pylint: disable=unused-argument
    return External(f"{refdata_db.name}.external")


@pytest.fixture
def adapted(make_fleet, external):
    """adapted(**source): a fleet whose adapters read that topic."""

    def run(**source):
        fleet = make_fleet(sizes=SIZES, adapter={"sources": [
            {"topic": external.name, "group": external.name, "tenant": {"fixed": TENANT}, **source}]})
        on_engines.eventually_reads(external.name, external.name)
        return fleet

    return run


def update(items, code="PLAIN", **more):
    return {"dictCode": code, "eventType": "DELTA",
            "items": [{"key": key, "op": "UPSERT", "payload": payload} for key, payload in items.items()], **more}


def effects(database):
    """{key: how often it was written} of COUNTED."""
    return dict(database.query("select k, n from counted"))


@pytest.mark.whole
def test_an_external_message_becomes_an_update(adapted, external):
    """R9, R2: with its own eventId, or one made of where it stands."""
    fleet, event = adapted(), str(uuid.uuid4())
    external.send(update({"a": 1}, eventId=event), update({"b": 2}))
    fleet.reach(2)
    rows = fleet.database.query("select event_id::text, status, requested_by from refdata.update_request"
                                " order by committed_version")
    assert rows[0][:2] == (event, "COMMITTED") and rows[1][1] == "COMMITTED" and len(rows) == 2
    assert rows[0][2] == rows[1][2] and rows[0][2].startswith("kafka:")
    uuid.UUID(rows[1][0])


@pytest.mark.whole
def test_the_same_message_twice_has_one_effect(adapted, external):
    fleet = adapted()
    bodies = [update({f"e{n}": n}, "COUNTED", eventId=str(uuid.uuid4())) for n in range(10)]
    external.send(*bodies, *bodies, *reversed(bodies))
    fleet.reach(10, "COUNTED")
    external.send(update({"last": 1}, "COUNTED"))
    fleet.reach(11, "COUNTED")
    fleet.settled()
    assert set(effects(fleet.database).values()) == {1} and len(effects(fleet.database)) == 11
    assert external.dead() == []


@pytest.mark.whole
def test_a_message_without_an_id_is_the_same_event_each_time_it_is_read(adapted, external):
    """Its id is made of topic, partition and offset: an adapter that reads from the beginning again adds nothing."""
    fleet = adapted()
    external.send(*(update({f"e{n}": n}, "COUNTED") for n in range(10)))
    fleet.reach(10, "COUNTED")
    adapters = fleet.of("adapter")
    for server in adapters:
        server.stop()
    on_engines.forget_offsets(external.name, external.name)
    for server in adapters:
        server.start()
    external.send(update({"last": 1}, "COUNTED"))
    fleet.reach(11, "COUNTED")
    fleet.settled()
    assert set(effects(fleet.database).values()) == {1}


def test_garbage_goes_to_the_dead_letters_with_its_reason_and_the_rest_goes_on(adapted, external):
    fleet = adapted()
    garbage = [b"\x00\xff", b"{", b"[]", b'"text"', b"{}", b'{"dictCode":7}', b"9" * 10_000,
               json.dumps(update({"a": 1}, "NO_SUCH")).encode(), json.dumps(update({"a": 1}, eventId="no uuid")).encode(),
               json.dumps(update({"a": "\u0000"})).encode()]
    external.send(update({"a": 1}))
    external.send(*garbage)
    external.send(update({"a": 2}))
    fleet.reach(2)
    eventually(lambda: {value for value, _ in external.dead()} == set(garbage))  # at least once
    for value, headers in external.dead():
        assert headers["dlq-reason"] and headers["dlq-topic"] == external.name and headers["dlq-offset"].isdigit(), value
    assert fleet.database.value("select payload from refdata.dictionary_item where item_key = 'a' and dict_code = 'PLAIN'") == 2


def test_a_topic_of_another_shape_is_mapped(adapted, external):
    """R9: the field mapping, the tenant from a header."""
    fleet = adapted(tenant={"header": "tenant"}, dictCode={"fixed": "PLAIN"}, tombstones="DELETE", mapping={
        "eventId": {"field": "/meta/id"}, "eventIdForm": "ANY", "eventType": {"fixed": "DELTA"},
        "items": {"field": ""}, "key": {"field": "/sku"}, "op": {"field": "/action"}, "upsertWords": ["PUT"],
        "deleteWords": ["GONE"], "payload": {"field": "/body"}})
    tenant = [("tenant", TENANT.encode())]
    external.send({"meta": {"id": "n-1"}, "sku": "x", "action": "PUT", "body": {"price": 1.10}}, headers=tenant)
    external.send({"meta": {"id": "n-2"}, "sku": "y", "action": "PUT", "body": [1]}, headers=tenant)
    external.send({"meta": {"id": "n-3"}, "sku": "y", "action": "GONE"}, headers=tenant)
    external.send({"meta": {"id": "n-4"}, "sku": "z", "action": "PUT", "body": 1})  # whose?
    fleet.reach(3)
    items = dict(fleet.database.query("select item_key, payload from refdata.dictionary_item where not deleted"))
    assert items == {"x": {"price": 1.1}}
    eventually(lambda: len(external.dead()) == 1)


def test_sources_that_wait_for_a_lock_leave_posts_their_threads(make_fleet, refdata_db, kafka):  # pylint: disable=unused-argument
    """R10: however many sources there are, their messages are handled by threads of their own."""
    topics = [External(f"{refdata_db.name}.external{number}") for number in range(12)]
    fleet = make_fleet(sizes={"command,adapter": 1}, kafka={"handlers": 2}, adapter={"handlers": 2, "sources": [
        {"topic": topic.name, "group": topic.name, "tenant": {"fixed": TENANT}} for topic in topics]})
    for topic in topics:
        on_engines.eventually_reads(topic.name, topic.name)
    events = [str(uuid.uuid4()) for _ in topics for _ in range(8)]
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with contextlib.closing(refdata_db.connect()) as connection:
        connection.autocommit = False
        for event in events:
            connection.cursor().execute(
                "insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash)"
                " values (%s, %s, 'PLAIN', 'PENDING', '')", (TENANT, event))
        for number, event in enumerate(events):
            topics[number % len(topics)].send(update({"a": 1}, eventId=event), key=f"{number}".encode())
        eventually(lambda: refdata_db.value(waiting) >= 2)
        with fleet.of("command")[0].client(fleet.token) as client:
            for number in range(5):
                assert client.post(updates_path("ASYNC"), delta("PLAIN", {"b": number})).status == 202
        assert refdata_db.value(waiting) == 2
        connection.rollback()
    eventually(lambda: refdata_db.value("select count(*) from refdata.update_request") == len(events) + 5)


@pytest.mark.whole
def test_adapters_are_killed_under_load(adapted, external):
    """Nothing lost, one effect each, whichever of the two was in the middle of it."""
    fleet, sent = adapted(), 0
    for round_ in range(6):
        external.send(*(update({f"r{round_}n{n}": n}, "COUNTED") for n in range(50)), key=b"a")
        external.send(*(update({f"R{round_}n{n}": n}, "COUNTED") for n in range(50)), key=b"c")
        sent += 100
        victim = fleet.of("adapter")[round_ % 2]
        victim.kill()
        victim.start()
    eventually(lambda: len(effects(fleet.database)) == sent)
    fleet.settled()
    assert set(effects(fleet.database).values()) == {1}
    assert external.dead() == []
