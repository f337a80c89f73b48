"""E4, N1, N2, O1: NATS is killed, or loses all it had; PostgreSQL is away; a process dies with a message. Nothing is lost,
and everything has one effect."""
import time

import pytest

from events import DURABLE, Events
from grants import Grants
from lib.entitlement import grant
from lib.freshet import run
from lib.notification import encode, event
from lib.refdata import own_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import Threads

OUTAGE_S = 5  # several times ack-wait


def test_n1_a_database_that_is_away_uses_up_no_delivery(serve, own_refdata_db, token, engines):  # noqa: F811
    """max-deliver is 3, and an outage lasts for five ack-waits."""
    events = Events(serve, own_refdata_db, token).start()
    with events.client() as client:
        assert grant(client, "u_before").status == 200
    eventually(lambda: events.notified("u_before"))
    own_refdata_db.server.stop("immediate")
    with events.nats as nats:
        for number in range(30):
            fields = event(f"u_{number}")
            nats.publish(events.subject, encode(**fields), {"Nats-Msg-Id": fields["event_id"]})
    time.sleep(OUTAGE_S)
    own_refdata_db.server.start()
    events.all_sent(31)
    assert events.letters() == []


@pytest.fixture
def events(serve, refdata_db, token, engines):  # noqa: F811
    return Events(serve, refdata_db, token).start()


@pytest.mark.whole
def test_o1_nats_killed_under_load_loses_and_repeats_nothing(events, engines):
    workload = Grants(events.entitlements, events.bearer)
    with Threads() as threads:
        workload.start(threads)
        for _ in range(5):
            sent = len(workload.sent)
            eventually(lambda: threads.errors or len(workload.sent) > sent + 50)
            engines.nats.kill()
            time.sleep(0.5)
            engines.nats.start()
        sent = len(workload.sent)
        eventually(lambda: threads.errors or len(workload.sent) > sent + 50)
    eventually(lambda: not events.database.value(
        "select count(*) from entitlement.outbox_events where status <> 'PUBLISHED'"), timeout=120)
    for letter in events.letters():  # a server that restarts uses up a delivery of what is in hand
        assert letter["kind"] == "max_deliver", letter
    if events.letters():
        done = run("dlq", "requeue", "--all", "--config", events.notifications[0].config_path, env=events.notifications[0].env)
        assert done.returncode == 0, done.stderr
    events.all_sent(len(workload.sent))


@pytest.mark.whole
def test_o4_what_nats_lost_is_published_again_and_has_one_effect(events, engines):
    """Some of it was handled, some was not; all of it is published again."""
    with events.client() as client:
        for number in range(10):
            assert grant(client, f"u_handled{number}").status == 200
        events.all_sent(10)
        for server in events.notifications:
            server.stop()
        for number in range(10):
            assert grant(client, f"u_lost{number}").status == 200
    eventually(lambda: not events.database.value(
        "select count(*) from entitlement.outbox_events where status <> 'PUBLISHED'"))
    engines.nats.lose_data()
    for server in events.notifications:
        server.spawn()
    eventually(lambda: events.consumer()["name"] == DURABLE)
    assert len(events.notified()) == 10
    since = events.database.value("select to_char((min(created_at) - interval '1 s') at time zone 'UTC',"
                                  " 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') from entitlement.outbox_events")
    done = run("outbox", "republish", "--table", "entitlement.outbox_events", "--since", since, "--config",
               events.entitlements[0].config_path, env=events.entitlements[0].env)
    assert done.returncode == 0, done.stderr
    events.all_sent(20)
    eventually(lambda: events.consumer()["num_pending"] == events.consumer()["num_ack_pending"] == 0)
    assert len(events.notified()) == 20 and events.letters() == []


@pytest.mark.whole
def test_n2_what_another_client_ended_is_in_the_dlq_and_comes_back(events):
    """Somebody takes a message of our consumer's and terminates it, while nobody of ours runs."""
    for server in events.notifications:
        server.stop()
    with events.client() as client:
        assert grant(client, "u_ended").status == 200
    eventually(events.published)
    with events.nats as nats:
        nats.send(f"$JS.API.CONSUMER.MSG.NEXT.{events.stream}.{DURABLE}", b'{"batch": 1}', reply=nats.inbox)
        reply = nats.await_message()
        nats.send(reply, b"+TERM")
        nats.stream(events.stream)
    for server in events.notifications:
        server.spawn()
    letter = eventually(events.letters)[0]
    assert (letter["stream_seq"], letter["event_id"]) == (1, events.published()[0][1]["Nats-Msg-Id"])
    assert letter["reason"] == "terminated by another client" and letter["payload"]
    done = run("dlq", "requeue", letter["dlq_id"], "--config", events.notifications[0].config_path,
               env=events.notifications[0].env)
    assert done.returncode == 0, done.stderr
    events.all_sent(1)
