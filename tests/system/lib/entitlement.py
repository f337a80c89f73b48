"""What the tests of entitlements share: requests as the seed shows them, and what they left in tables and on the bus."""
import re
import uuid
from urllib.parse import quote

from . import on_engines

TOPIC = "entitlement.events"
ROLE = ["--roles", "entitlement"]
SCOPES = "entitlement:write entitlement:read"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
GRANTS, REVOKES = "/v1/entitlements/grants", "/v1/entitlements/revokes"
TYPES = {"ACTIVE": "EntitlementGranted", "REVOKED": "EntitlementRevoked"}


def body(user="u_123", sku="item1", reason="purchase", purchase="p_456"):
    return {"user_id": user, "stock_keeping_unit": sku, "reason": reason, "purchase_id": purchase}


def new_key():
    return uuid.uuid4().hex


def grant(client, user="u_123", sku="item1", *, key=None, **more):
    return client.post(GRANTS, body(user, sku, **more), Idempotency_Key=key or new_key())


def revoke(client, user="u_123", sku="item1", *, key=None, reason="refund", purchase="p_457"):
    return client.post(REVOKES, body(user, sku, reason, purchase), Idempotency_Key=key or new_key())


def listed(client, user):
    return client.get(f"/v1/users/{quote(user, safe='')}/entitlements")


# ---- what it left ----

NAMES = {1: "event_id", 2: "event_type", 3: "occurred_at", 4: "user_id", 5: "stock_keeping_unit", 6: "source", 7: "source_id",
         8: "version", 9: "tenant_id"}


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def decode(data):
    """api/entitlement.proto, read by somebody else's few lines."""
    fields, at = {}, 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 2:
            value, at = data[at:at + value].decode(), at + value
        fields[NAMES[tag >> 3]] = value
    return fields


def published(database):
    """[(key, headers, event)] on the bus, in the order of each partition."""
    if on_engines.IS_ON:
        from . import nats  # pylint: disable=import-outside-toplevel
        with nats.Nats(on_engines.engines().nats.address) as client:
            return [(headers["aggregate_key"], headers, decode(payload))
                    for _, headers, payload in client.messages(stream(database))]
    rows = database.query("select key, headers, payload from platform.bus_message where topic = %s"
                          " order by partition, message_offset", (TOPIC,))
    return [(bytes(key).decode(), dict(zip(headers[::2], headers[1::2])), decode(bytes(payload)))
            for key, headers, payload in rows]


def stream(database):
    """What on_engines.settings() call it."""
    return f"{database.name}_entitlement"


def versions_published(database, key="demo/u_123/item1"):
    return [event["version"] for found, _, event in published(database) if found == key]


def live(database):
    return database.value("select count(*) from entitlement.outbox_events where status in ('PENDING', 'IN_FLIGHT')")


def agree(database, tenant="demo", is_exact=True):
    """E2, E3, O3: entitlements, audit, outbox and bus tell the same story to the last row. Its number of changes. Not `is_exact`: the
    bus may know of more, which a database that lost its last commits does not."""
    truth = {(user, sku): (version, status) for user, sku, version, status in database.query(
        "select user_id, stock_keeping_unit, version, status from entitlement.entitlements where tenant_id = %s", (tenant,))}
    audit = database.query("select user_id, stock_keeping_unit, version, action, event_id::text"
                           " from entitlement.entitlement_audit where tenant_id = %s order by 1, 2, 3", (tenant,))
    outbox = database.query("select payload::json->>'user_id', payload::json->>'stock_keeping_unit', sequence, event_type,"
                            " event_id::text from entitlement.outbox_events where tenant_id = %s order by 1, 2, 3", (tenant,))
    names = {"GRANT": "EntitlementGranted", "REVOKE": "EntitlementRevoked"}
    assert [(*row[:3], names[row[3]], row[4]) for row in audit] == outbox
    for (user, sku), (version, status) in truth.items():
        own = [row for row in audit if row[:2] == (user, sku)]
        assert [row[2] for row in own] == list(range(1, version + 1))
        assert [row[3] for row in own] == ["GRANT" if number % 2 else "REVOKE" for number in range(1, version + 1)]
        assert status == ("ACTIVE" if version % 2 else "REVOKED")
    assert sum(version for version, _ in truth.values()) == len(audit)
    told = [event for _, _, event in published(database) if event["tenant_id"] == tenant
            and (is_exact or event["event_id"] in {row[4] for row in audit})]
    seen = {}
    for event in told:  # at least once, and never a later one before an earlier one's first time
        number = seen.get((event["user_id"], event["stock_keeping_unit"]), 0)
        assert event["version"] <= number + 1
        seen[event["user_id"], event["stock_keeping_unit"]] = max(number, event["version"])
    assert seen == {name: version for name, (version, _) in truth.items()}
    assert {event["event_id"] for event in told} == {row[4] for row in audit}
    return len(audit)
