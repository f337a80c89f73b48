"""Issue 15, 4, C6: what api/openapi.yaml calls invalid the server refuses, and what it calls valid the server does not.

Bodies and parameters that are right become wrong in one place; the description and the program must judge each alike. What no
schema can say is listed in BEYOND and INTERPRETED, and is tried too.
"""
import copy
import json
import uuid

import pytest

from lib.openapi_client import DOCUMENT, OPERATIONS, TENANT, Asking, target_of
from lib.refdata import module_refdata_db, pod, write_builtin  # noqa: F401

REFUSED = (400, 413)
STRANGE = [None, True, False, 0, 1, 2, -1, 1.5, 1 << 31, 1 << 63, "", " ", "x", "DELETE", "a\u0000b", "a\u0001b", "x" * 2000, [], {}, [1]]


@pytest.fixture(scope="module")
def client(module_serve, module_refdata_db, token):
    write_builtin(module_refdata_db, "COUNTRY", {"DE": 1}, version=1, tenant=TENANT)
    server = module_serve(module_refdata_db, {**pod("COUNTRY", "FEATURE"), "debug": {"enabled": True}})
    asking = Asking(server, token(TENANT, scope="entitlement:write entitlement:read notification:read"))
    for name in ("postMessage", "createItem"):
        assert asking.ask(OPERATIONS[name]).status in (200, 201)
    return asking


# ---- bodies ----

def snapshot(**members):
    return {"dictCode": "FEATURE", "eventType": "SNAPSHOT", "items": [{"key": "a", "payload": {"n": 1}}], **members}


CHUNK = {"snapshotId": "0b7a1b52-74a4-4a0e-8d3c-2f0c1d8f7a01", "chunkIndex": 1, "chunksTotal": 3}
ALL = {"eventId": "e", "tenantId": TENANT, "source": "REST", "sourceRevision": None, "occurredAt": "2026-02-27T12:00:00Z"}
DELTA = {"dictCode": "FEATURE", "eventType": "DELTA", "snapshotId": None, "chunkIndex": 1, "chunksTotal": 1, **ALL,
         "items": [{"key": "a", "op": "UPSERT", "payload": 1}, {"key": "b", "op": "DELETE"}]}
GRANT = {"user_id": "u", "stock_keeping_unit": "s", "reason": "r", "purchase_id": "p"}
BODIES = {
    "delta": ("postUpdate", {**DELTA, "sourceRevision": 1}),
    "snapshot": ("postUpdate", snapshot(**ALL) | {"sourceRevision": 1}),
    "chunk": ("postUpdate", snapshot(**CHUNK)),
    "item": ("createItem", {"sku": "s", "title": "t", "more": {"n": 1}}),
    "message": ("postMessage", {"content": "c", "more": 1}),
    "grant": ("grantEntitlement", {**GRANT, "more": 1}),
    "revoke": ("revokeEntitlement", {**GRANT, "more": 1}),
}
# Refused, though the schema allows it: no schema counts bytes, compares two members, or knows the tenant of the path.
BEYOND = {
    "delta": [{"tenantId": "other"}, {"items": [{"key": "я" * 600, "op": "DELETE"}]},
              {"items": [{"key": "a", "op": "UPSERT", "payload": 10 ** 4000}]},
              {"items": [{"key": "a", "op": "UPSERT", "payload": "x" * (1 << 20)}]},
              {"items": [{"key": "a", "op": "UPSERT", "payload": {"deep": "a\u0000b"}}]}, {"source": "a\u0000b"}],
    "chunk": [{"chunkIndex": 4}],
    "item": [{"more": "a\u0000b"}],
    "message": [{"content": "я" * 20_000}, {"more": "a\u0000b"}],
    "grant": [{"more": "a\u0000b"}],
}


def places(value, path=()):
    """Every member, at any depth, that the description knows of."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield (*path, name)
            if name not in ("payload", "more"):
                yield from places(child, (*path, name))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield (*path, number)
            yield from places(child, (*path, number))


def at(value, path):
    for part in path:
        value = value[part]
    return value


def variants(body):
    """The body with one member taken away, added, or strange."""
    yield body
    for path in places(body):
        missing = copy.deepcopy(body)
        del at(missing, path[:-1])[path[-1]]
        yield missing
        for strange in STRANGE:
            changed = copy.deepcopy(body)
            at(changed, path[:-1])[path[-1]] = strange
            yield changed
    for parent in [(), *(path for path in places(body) if isinstance(at(body, path), dict) and path[-1] not in ("payload", "more"))]:
        for name in ("stray", "id", "created_at"):
            changed = copy.deepcopy(body)
            at(changed, parent)[name] = "x"
            yield changed


def sent(client, operation, body):
    """The status, of a request with an eventId and a key of its own."""
    if body.get("eventId") == "e":
        body = {**body, "eventId": str(uuid.uuid4())}
    keyed = any(each["name"] == "Idempotency-Key" and each.get("required") for each in operation.parameters)
    headers = {"Idempotency_Key": str(uuid.uuid4())} if keyed else {}
    return body, client.post(target_of(operation), json.dumps(body).encode(), **headers)


def schema_of(name):
    return next(entry["post"]["requestBody"]["content"]["application/json"]["schema"]
                for entry in DOCUMENT.root["paths"].values() if entry.get("post", {}).get("operationId") == name)


def is_beyond(variant):
    """Another tenant, or NUL inside of what the schema leaves open."""
    texts = json.dumps([variant.get("source"), variant.get("more"), variant.get("items")])
    return "\\u0000" in texts or variant.get("tenantId", TENANT) != TENANT


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_is_refused_where_it_is_invalid_and_nowhere_else(client, kind):
    name, body = BODIES[kind]
    schema, tried, wrong = schema_of(name), [0, 0], []
    for variant in variants(body):
        variant, answer = sent(client, OPERATIONS[name], variant)
        problems = DOCUMENT.problems(schema, variant)
        is_refused = answer.status in REFUSED
        tried[is_refused] += 1
        if is_refused != bool(problems) and not (is_refused and is_beyond(variant)):
            wrong.append((variant, answer.status, answer.body[:200], problems))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert min(tried) > 10


@pytest.mark.parametrize("kind, change", [(kind, change) for kind, changes in BEYOND.items() for change in changes],
                         ids=lambda value: value if isinstance(value, str) else ",".join(value))
def test_what_no_schema_can_say_is_refused_all_the_same(client, kind, change):
    name, body = BODIES[kind]
    variant, answer = sent(client, OPERATIONS[name], {**body, **change})
    assert answer.status in REFUSED and answer.json()
    assert DOCUMENT.problems(schema_of(name), variant) == [], "the schema says it, so it is not beyond it"


# ---- parameters ----

TEXTS = ["x", "-1", "0", "1", "49", "50", "1001", "10001", "1.5", "99999999999", "a b", "A-._1", "x" * 65, "x" * 1101, "é",
         "2026-02-27T12:00:00Z", "2026-02-27T12:00:00+02:00", "2026-02-27", "1.4445", "1.444",
         "3F0C8F0E-6c52-4f9f-9d0c-0d5b2a3c1e77", "full", "existence", "degrade", "WAIT_COMMIT"]
IGNORED = {"traceparent", "X-Tenant-Id", "If-None-Match", "tenantId"}  # an invalid one counts as none; 403 before anything else
# (operation, parameter, text): refused for a reason that no schema knows
INTERPRETED = {
    ("getStream", "after", "49"), ("getStream", "after", "50"), ("getStream", "after", "1001"), ("getStream", "after", "10001"),
    ("getStream", "after", "99999999999"),  # the session has no such sequence yet
}


def value_of(schema, text):
    schema = DOCUMENT.resolve(schema)
    if schema.get("type") == "array":
        return [value_of(schema["items"], part) for part in text.split(",")]
    is_number = schema.get("type") == "integer" and text.lstrip("-").isdigit()
    return int(text) if is_number else text


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_parameter_is_refused_where_it_is_invalid_and_nowhere_else(client, name):
    operation, wrong, tried = OPERATIONS[name], [], 0
    for parameter in operation.parameters:
        if parameter["name"] in IGNORED:
            continue
        for text in TEXTS:
            headers = {}
            if parameter["in"] == "header":
                headers[parameter["name"].replace("-", "_")] = text.encode().decode("latin-1")
                target = target_of(operation)
            else:
                target = target_of(operation, **{parameter["name"]: text})
            if parameter["name"] == "fields":
                target += "&mode=partial"
            if parameter["name"] == "mode" and text == "partial":
                continue
            body = json.dumps(operation.body).encode() if operation.body else b""
            answer = client.request(operation.method, target, body, **headers)
            problems = DOCUMENT.problems(parameter["schema"], value_of(parameter["schema"], text))
            is_refused = answer.status in REFUSED and answer.json().get("field") == parameter["name"]
            is_key = answer.status == 400 and "idempotency_key" in answer.json()
            tried += 1
            if (is_refused or is_key) != bool(problems) and (name, parameter["name"], text) not in INTERPRETED:
                wrong.append((parameter["name"], text, answer.status, answer.body[:150], problems))
    assert not wrong, "\n".join(map(str, wrong))
    assert tried or {each["name"] for each in operation.parameters} <= IGNORED
