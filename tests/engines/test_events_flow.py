"""E4, N1, N2: entitlements and notifications over NATS, and what another program finds there and leaves there."""
import uuid

import pytest

from events import DURABLE, Events
from lib.entitlement import grant, revoke
from lib.notification import encode, event, inbox
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually


@pytest.fixture
def events(serve, refdata_db, token, engines):  # noqa: F811
    return Events(serve, refdata_db, token).start()


def test_e4_n1_events_are_read_by_everybody_who_knows_the_names(events):
    with events.client(0) as one, events.client(1) as other:
        assert grant(one).status == 200
        assert revoke(other).status == 200
        eventually(lambda: [status for _, _, status in events.notified("u_123")] == ["SENT", "SENT"])
    with events.notifications[1].client(events.bearer) as client:
        found = inbox(client, "u_123", debug=True).json()["notifications"]
    assert sorted(each["event_type"] for each in found) == ["EntitlementGranted", "EntitlementRevoked"]
    for number, (subject, headers, told) in enumerate(events.published(), 1):
        assert subject == events.subject
        assert headers["Nats-Msg-Id"] == told["event_id"] and str(uuid.UUID(told["event_id"])) == told["event_id"]
        assert (headers["event_type"], headers["aggregate_key"]) == (told["event_type"], "demo/u_123/item1")
        assert headers["occurred_at"] == told["occurred_at"] and len(headers["trace_id"]) == 32
        assert (told["version"], told["user_id"], told["tenant_id"]) == (number, "u_123", "demo")
    with events.nats as nats:
        stream, consumer = nats.stream(events.stream)["config"], nats.consumer(events.stream, DURABLE)["config"]
        letters = nats.stream(f"{events.stream}_dlq")["config"]
    assert stream["subjects"] == [events.subject] and letters["subjects"] == [f"{events.subject}.dlq"]
    assert stream["duplicate_window"] > 1000 * 2e9, "longer than all retries of an event"
    assert consumer["durable_name"] == DURABLE and consumer["ack_policy"] == "explicit"
    assert (consumer["max_deliver"], consumer["ack_wait"]) == (3, 1e9)


def test_n2_garbage_is_terminated_and_kept_and_an_event_of_another_program_counts(events):
    foreign = event("u_foreign")
    with events.nats as nats:
        garbage = nats.publish(events.subject, b"\xff\x00garbage", {"Nats-Msg-Id": "junk-1", "trace_id": "t"})
        nats.publish(events.subject, encode(**foreign), {"Nats-Msg-Id": foreign["event_id"]})
        again = nats.publish(events.subject, encode(**foreign), {"Nats-Msg-Id": foreign["event_id"] + "-requeue-0"})
    eventually(lambda: events.notified("u_foreign"))
    letter = eventually(events.letters)[0]
    assert (letter["stream"], letter["stream_seq"], letter["kind"]) == (events.stream, garbage, "terminated")
    assert bytes.fromhex(letter["payload"]) == b"\xff\x00garbage" and letter["headers"]["trace_id"] == "t"
    eventually(lambda: events.consumer()["ack_floor"]["stream_seq"] == again)
    assert [found for _, found, _ in events.notified("u_foreign")] == [foreign["event_id"]], "it had two effects"
    assert len(events.letters()) == 1


def test_o3_an_event_that_nats_refuses_is_not_overtaken_by_a_later_one_of_its_aggregate(serve, refdata_db, token,  # noqa: F811
                                                                                         engines):  # pylint: disable=unused-argument
    """The stream has room for the second event of a batch, but not for the first: whatever is refused, and for whatever reason,
    those behind it wait until it is stored."""
    events = Events(serve, refdata_db, token)
    server = events.entitlements[0]
    server.start()
    with events.client() as client, events.nats as nats, events.nats as wire:
        assert grant(client, purchase="p" * 200).status == 200
        eventually(lambda: len(events.published()) == 1)
        large = nats.stream(events.stream)["state"]["bytes"]
        assert revoke(client, purchase="p").status == 200
        eventually(lambda: len(events.published()) == 2)
        small = nats.stream(events.stream)["state"]["bytes"] - large
        assert small + 100 < large
        server.stop()
        nats.api(f"STREAM.DELETE.{events.stream}")
        full = {"name": events.stream, "subjects": [events.subject], "discard": "new", "max_bytes": small + 30}
        nats.api(f"STREAM.CREATE.{events.stream}", **full)
        wire.subscribe(events.subject)
        events.database.query("update entitlement.outbox_events set status = 'PENDING', published_at = null")
        server.start()
        sent = []
        while sent.count("EntitlementGranted") < 3:
            sent.append(wire.read()[1]["event_type"])
        nats.api(f"STREAM.UPDATE.{events.stream}", **{**full, "max_bytes": -1, "duplicate_window": int(1e9 * 3600)})
        eventually(lambda: not events.database.value(
            "select count(*) from entitlement.outbox_events where status <> 'PUBLISHED'"))
    assert [told["event_type"] for _, _, told in events.published()] == ["EntitlementGranted", "EntitlementRevoked"]


def advisory_streams(nats):
    """Those of this file's settings, unless somebody before it made the one for all."""
    return [name for name in nats.api("STREAM.NAMES")["streams"] if "advisories" in name]


def test_n2_what_was_terminated_here_is_one_letter_whatever_the_advisories_say(events):
    """They come long after a whole batch was terminated. One process: another that takes over does not know of it."""
    server, other = events.notifications
    server.stop()
    other.stop()
    with events.nats as nats:
        for number in range(600):
            nats.publish(events.subject, b"\xffgarbage %d" % number)
        server.spawn()
        eventually(lambda: len(events.letters()) == 600)

        def heard():
            watch, = [each for kept in advisory_streams(nats) for each in nats.api(f"CONSUMER.LIST.{kept}")["consumers"]
                      if events.stream in each["name"] and DURABLE in each["name"] and each["name"].endswith("MSG_TERMINATED")]
            return watch["ack_floor"]["consumer_seq"] >= 600 and watch["num_pending"] == 0

        eventually(heard)
    assert server.logs(event="nats_dead_letter") == []
    assert server.metrics()[f'bus_dead_letters_total{{topic="entitlement.events",group="{DURABLE}"}}'] == 600


def test_n2_a_letter_without_room_for_its_message_says_so(events):
    with events.nats as nats:
        limit = nats.stream(events.stream)["config"].get("max_msg_size", -1)
        place = nats.publish(events.subject, b"\xff" * ((limit if limit > 0 else 1 << 20) - 10))
    letter, = eventually(events.letters)
    assert (letter["stream_seq"], letter["kind"], letter["payload"]) == (place, "terminated", "")
    assert letter["reason"].endswith("; it was too large to be kept")
