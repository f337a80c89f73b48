"""Items of intake: posting them, many at once, and what is left in the tables."""
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from . import nats, on_engines
from .wire import Client

PATH = "/api/v1/items"
INTAKE = ("--roles", "intake")
ROUTE = '{route="/api/v1/items"}'

PROCESSING = "Request with this idempotency key is already being processed"
CONFLICT = "Idempotency key already used with different request body"
INVALID = ("Invalid idempotency key format. Key must be 1-255 characters long and contain only letters, numbers, hyphens,"
           " and underscores")


def fresh(prefix="item"):
    """A name nobody else has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def item(sku=None, **members):
    return {"sku": sku or fresh("SKU"), "title": "Sample Item", **members}


def post(client, body, key=None, **headers):
    """The body as JSON, or the very bytes."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers.setdefault("Content-Type", "application/json")
    if key is not None:
        headers["Idempotency-Key"] = key
    return client.request("POST", PATH, body if isinstance(body, bytes) else json.dumps(body), headers)


def at_once(ports, bearer, body, key, count):
    """`count` duplicates of one POST, each on a connection of its own, let go together; their answers."""
    gate = threading.Barrier(count)

    def one(number):
        with Client(ports[number % len(ports)], bearer) as client:
            client.connection.connect()
            gate.wait()
            return post(client, body, key)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def effects(database, sku, tenant="demo"):
    """(items, events, stored answers that speak of it): all one, or all none."""
    return database.query(
        "select (select count(*) from intake.items where tenant_id = %(t)s and sku = %(s)s),"
        " (select count(*) from intake.event_outbox where tenant_id = %(t)s and sku = %(s)s),"
        " (select count(*) from intake.idempotency_keys where tenant_id = %(t)s and response_body::json ->> 'sku' = %(s)s)",
        {"t": tenant, "s": sku})[0]


def told(database, sku):
    """[(key, headers, event)] of the topic that tell of this item, in the order of each partition."""
    if on_engines.IS_ON:
        with nats.Nats(on_engines.engines().nats.address) as client:
            found = [(unquote(headers["aggregate_key"]), {name: unquote(value) for name, value in headers.items()}, payload)
                     for _, headers, payload in client.messages("intake_events")]  # there '%' is written %25
    else:
        rows = database.query("select key, headers, payload from platform.bus_message where topic = 'intake.events'"
                              " order by partition, message_offset")
        found = [(bytes(key).decode(), dict(zip(headers[::2], headers[1::2])), bytes(payload)) for key, headers, payload in rows]
    return [(key, headers, event) for key, headers, payload in found if (event := json.loads(payload))["item"]["sku"] == sku]
