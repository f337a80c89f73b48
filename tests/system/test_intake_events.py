"""I8, O1–O5: an item's event is committed with it and published behind it, in order, at least once."""
import signal
import uuid

import pytest

from lib import on_engines
from lib.items import INTAKE, effects, fresh, item, post, told
from lib.wait import eventually
from lib.wire import Client

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LABELS = '{module="intake",event_type="item_created"}'
FAST = {"intake": {"outbox": {"poll-interval": "50ms", "lease": "1s", "backoff-base": "1ms"}}}


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, FAST, args=INTAKE)


@pytest.fixture
def client(server, token):
    with Client(server.port, token("demo")) as one:
        yield one


def states(database, sku):
    return [row[0] for row in database.query("select status from intake.event_outbox where sku = %s order by sequence", (sku,))]


@pytest.mark.tsan
def test_an_event_tells_of_the_item_as_it_is_read(server, client, module_database):
    body = item(f"a/b%{fresh()}", price=1.50)
    made = post(client, body, fresh("key"), traceparent=TRACEPARENT)
    assert made.status == 201
    eventually(lambda: states(module_database, body["sku"]) == ["PUBLISHED"])
    event_id, at = module_database.query("select event_id::text, platform.rfc3339(created_at) from intake.event_outbox"
                                         " where sku = %s and published_at is not null and claim_id is null", (body["sku"],))[0]
    assert server.metrics()["outbox_publish_success_total" + LABELS] >= 1
    (key, headers, event), = told(module_database, body["sku"])
    assert key == "demo/" + body["sku"].replace("%", "%25").replace("/", "%2F")
    assert event == {"event_id": event_id, "event_type": "item_created", "occurred_at": at, "tenant_id": "demo",
                     "item": made.json()}
    assert uuid.UUID(event_id) and made.json()["created_at"] == at
    headers = {name: value for name, value in headers.items() if not name.startswith(("Nats-", "Freshet-"))}
    assert headers == {"event-id": event_id, "event_type": "item_created", "aggregate_key": key, "occurred_at": at,
                       "tenant_id": "demo", "trace_id": TRACEPARENT.split("-")[1], "traceparent": TRACEPARENT}


def test_replays_and_refusals_tell_nothing(client, module_database):
    body, key = item(), fresh("key")
    for sent, with_key in ((body, key), (body, key), (body, None), ({**body, "x": 1}, key)):
        post(client, sent, with_key)
    eventually(lambda: states(module_database, body["sku"]) == ["PUBLISHED"])
    assert len(told(module_database, body["sku"])) == 1


def test_a_payload_that_is_no_event_fails_at_once_and_alerts(server, module_database):
    """O4."""
    sku = fresh()
    for payload in ("not json", "[]", '{"event_id":"x","item":1}'):
        module_database.query("insert into intake.event_outbox (event_id, tenant_id, sku, event_type, payload, created_at)"
                              " values (gen_random_uuid(), 'demo', %s, 'item_created', %s, now())", (sku, payload))
    eventually(lambda: states(module_database, sku) == ["FAILED"] * 3)
    assert module_database.query("select distinct attempt_count, last_error from intake.event_outbox where sku = %s", (sku,)) == [
        (1, "the payload is not an event")]
    eventually(lambda: len(server.logs(event="outbox_event_dead_lettered", module="intake", tenantId="demo")) == 3)
    assert server.metrics()["outbox_dead_lettered_total" + LABELS] == 3


@pytest.mark.parametrize("place, published", [("intake.after_claim", 0), ("intake.after_publish", 1),
                                              ("outbox.after_settle", 1)])
def test_a_publisher_that_dies_leaves_its_events_to_the_next(serve, database, token, place, published):
    """O1: nothing lost; what was published and not settled is published again."""
    armed = serve(database, FAST, args=INTAKE, env={"FRESHET_FAILPOINTS": f"{place}=kill#1"})
    body = item()
    with Client(armed.port, token("demo")) as client:
        try:
            assert post(client, body).status == 201
        except OSError:
            pass  # it may have died before it could answer
    eventually(lambda: armed.process.poll() == -signal.SIGKILL)
    assert effects(database, body["sku"])[:2] == (1, 1)
    assert len(told(database, body["sku"])) == published
    serve(database, FAST, args=INTAKE)
    eventually(lambda: states(database, body["sku"]) == ["PUBLISHED"])
    heard = told(database, body["sku"])
    assert len({event["event_id"] for _, _, event in heard}) == 1
    assert len(heard) == (2 if place == "intake.after_publish" and not on_engines.IS_ON else 1)  # NATS drops the second
