"""P2, C3-C6, R3-R7: routes, api/openapi.yaml and the answers of a running program agree, in both directions.

Every operation is asked for every answer it describes. Each answer must be as described, with no header or field more,
and every status described must come, but for 500: there is no known way to one.
"""
import json
import re
from functools import lru_cache
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from conftest import ROOT
from lib.freshet import run
from lib.openapi import Document
from lib.refdata import make_table, module_refdata_db, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually, free_port
from lib.wire import RawConnection, request_bytes

DOCUMENT = Document(ROOT / "api/openapi.yaml")
OPERATIONS = DOCUMENT.operations
TENANT = "demo"
CONNECTIONS = 4


def test_every_route_is_described_and_every_described_one_exists():
    routes = {tuple(line.split()[:2]) for line in run("routes").stdout.splitlines()}
    assert {(operation.method, operation.path) for operation in OPERATIONS.values()} == routes


# ---- servers ----

def fill(server):
    """Takes every connection the server gives, and holds on to them."""
    def is_full():
        connection = server.raw()
        return connection.exchange(request_bytes("GET", "/actuator/health/liveness")).status == 503
    eventually(is_full)


@pytest.fixture(scope="module")
def servers(module_serve, module_refdata_db, token):
    """One that works, one with little patience, one that is full, and one whose PostgreSQL is not there."""
    write_builtin(module_refdata_db, "COUNTRY", {"DE": {"name": "Germany"}, "JP": ["Japan"], "ключ, / 🔑": None},
                  version=1, tenant=TENANT)
    broken = {"code": "BROKEN", "loadSql": "select 1 as nothing", "shared": True}
    strict = {"code": "STRICT", "loadSql": "select k, v from strict where tenant_id = :tenantId",
              "apply": {"upsertSql": "insert into strict select :tenantId, :key, to_jsonb((:payload #>> '{}')::int)"}}
    make_table(module_refdata_db, "strict")
    read_only = {"code": "READ_ONLY", "loadSql": "select k, v from strict where tenant_id = :tenantId"}
    working = pod("COUNTRY", "EMPTY", "FEATURE", "LINES", broken, strict, read_only)  # one for all: any of them may apply an update
    working["refdata"]["updates"] = {"snapshotExpiry": "300ms"}
    working["debug"] = {"enabled": True}
    cut_off = pod("COUNTRY", "FEATURE", cache={"preload": ["demo/COUNTRY"]})
    cut_off["refdata"]["postgres"] = {"jdbcUrl": f"jdbc:postgresql://127.0.0.1:{free_port()}/none"}
    group = SimpleNamespace(
        database=module_refdata_db,
        working=module_serve(module_refdata_db, working),
        impatient=module_serve(module_refdata_db, {**working, "http": {"limits": {"headerTimeout": "200ms"}},
                                                   "entitlement": {"hydration": {"enabled": True}}}),
        full=module_serve(module_refdata_db, {**working, "http": {"limits": {"connections": CONNECTIONS}}}),
        cut_off=module_serve.make(module_refdata_db, cut_off).start(ready=False),
        token=token(TENANT, scope="entitlement:write entitlement:read notification:read"), strange_token=token("other"),
        homeless_token=token(None))
    fill(group.full)
    eventually(lambda: "serving" in group.cut_off.log())
    group.answers_of = lru_cache(None)(lambda name: collect(group, name))
    return group


# ---- asking ----

def target_of(operation, **values):
    """The operation's path and query, of the examples of its required parameters unless told otherwise."""
    path, query = operation.path, []
    for parameter in operation.parameters:
        value = values.get(parameter["name"], parameter.get("example") if parameter.get("required") else None)
        if value is None:
            continue
        text = ",".join(quote(part, safe="") for part in value) if isinstance(value, list) else quote(str(value), safe="")
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", text)
        elif parameter["in"] == "query":
            query.append(f"{parameter['name']}={text}")
    return path + ("?" + "&".join(query) if query else "")


def raw(server, data, method="GET"):
    """The answer; of a stream without an end, what comes first."""
    with RawConnection(server.port) as connection:
        connection.send(data)
        if not re.search(rb"/(watch|stream)\b", data.split(b"\r\n")[0]):
            return connection.read_response(method)
        answer = connection.read_head()
        if method != "HEAD":
            is_stream = "transfer-encoding" in answer.headers
            answer.body = connection.read_chunk() if is_stream else connection.read_exactly(int(answer.headers["content-length"]))
        return answer


class Asking:
    """A client whose requests go by raw(): each on a connection of its own, and streams may be endless."""

    def __init__(self, server, bearer=None):
        self.server, self.token = server, bearer

    def request(self, method, target, body=b"", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.token}"
        if body:
            headers.setdefault("Content-Type", "application/json")
        return raw(self.server, request_bytes(method, target, headers, body), method)

    def get(self, target, **headers):
        return self.request("GET", target, **headers)

    def post(self, target, value, **headers):
        return self.request("POST", target, value if isinstance(value, bytes) else json.dumps(value).encode(), **headers)

    def ask_with_key(self, operation, **query):
        """A POST with its own example, and the key of its example where one is required."""
        key = {"Idempotency_Key": parameter["example"] for parameter in operation.parameters
               if parameter["name"] == "Idempotency-Key" and parameter.get("required")}
        return self.post(target_of(operation, **query), operation.body, **key)

    def ask(self, operation, tenantId=None, **headers):  # pylint: disable=invalid-name
        """The operation with its own examples."""
        target = target_of(operation, **({"tenantId": tenantId} if tenantId else {}))
        return self.request(operation.method, target, json.dumps(operation.body).encode() if operation.body else b"", **headers)


def wire_answers(servers, operation):
    """What every route has in common."""
    target, server, method = target_of(operation), servers.working, operation.method
    auth = {} if operation.is_public else {"Authorization": f"Bearer {servers.token}"}
    body = b""
    if operation.body:
        body = json.dumps(operation.body).encode()
        auth["Content-Type"] = "application/json"
    get = request_bytes(method, target, auth, body)
    head = request_bytes(method, target, auth)
    separator = "&" if "?" in target else "?"
    yield raw(server, get)
    yield raw(server, request_bytes(method, target, {**auth, "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}, body))
    yield raw(server, request_bytes(method, target, {**auth, "traceparent": "nonsense"}, body))
    yield raw(server, request_bytes(method, target, {"Content-Length": "1", "Transfer-Encoding": "chunked"}))
    yield raw(server, request_bytes("DELETE", target, auth))
    yield raw(servers.impatient, head[:-2])
    yield raw(server, request_bytes(method, target, {**auth, "Content-Length": str(8 * 1024 * 1024 + 1)}))
    yield raw(server, request_bytes(method, f"{target}{separator}long={'x' * 70_000}", auth))
    yield raw(server, request_bytes(method, target, {**auth, "Expect": "a miracle"}))
    yield raw(server, request_bytes(method, target, {**auth, "X-Long": "x" * 40_000}))
    yield raw(server, request_bytes(method, target, {**auth, **{f"X-{i}": "x" for i in range(200)}}))
    yield raw(server, request_bytes("BREW", target, auth))
    yield raw(server, request_bytes(method, target, {**auth, "Transfer-Encoding": "gzip"}))
    yield raw(server, request_bytes(method, target, auth, version="HTTP/2.0"))
    yield raw(servers.full, get)


def gate_answers(servers, operation):
    """C5: who is asking?"""
    client = Asking(servers.working, servers.token)
    yield client.ask(operation, tenantId="other")
    yield client.ask(operation, Authorization="Bearer nonsense")
    yield client.ask(operation, Authorization=f"Bearer {servers.strange_token}")
    yield Asking(servers.working).ask(operation)


def dictionary_answers(servers, operation):
    """R3-R7: what the routes of a dictionary have in common."""
    server, target = servers.working, target_of(operation)
    client = Asking(server, servers.token)
    yield client.get(target, X_Min_Version="1")
    yield client.get(target, X_Min_Version="7")
    yield client.get(target, X_Min_Version="-1")
    for name in ("EMPTY", "NONE", "BROKEN", "a b"):
        yield client.get(target_of(operation, dictCode=name))


def item_answers(servers):
    operation = OPERATIONS["getItem"]
    with servers.working.client(servers.token) as client:
        tag = client.get(target_of(operation)).headers["etag"]
        yield client.get(target_of(operation), If_None_Match=tag)
        for key in ("ключ, / 🔑", "JP", "none", "k" * 1025):
            yield client.get(target_of(operation, key=key))


def items_answers(servers):
    operation = OPERATIONS["getItems"]
    with servers.working.client(servers.token) as client:
        for keys in (["none"], ["JP", "ключ, / 🔑", "JP"], ["k"] * 1001, [""]):
            yield client.get(target_of(operation, keys=keys))
        yield client.get(target_of(operation) + "&stray=1")


def all_answers(servers):
    operation = OPERATIONS["getAll"]
    with servers.working.client(servers.token) as client:
        for values in ({"limit": 1}, {"limit": 0}, {"cursor": "1.4445"}, {"cursor": "9.4445"}, {"cursor": "x"}):
            yield client.get(target_of(operation, **values))
        for name in ("COUNTRY", "EMPTY"):
            yield client.get(target_of(operation, dictCode=name), Accept="application/x-ndjson")
        yield client.get(target_of(operation) + "?stray=1")


def version_answers(servers):
    with servers.working.client(servers.token) as client:
        yield client.get(target_of(OPERATIONS["getVersion"]) + "?stray=1")


def watch_answers(servers):
    operation = OPERATIONS["watch"]
    client = Asking(servers.working, servers.token)
    for after in (0, 1, 2, "x"):
        yield client.get(target_of(operation, after=after))
    yield client.get(target_of(operation) + "?stray=1")


# ---- updates ----

def event(number):
    return f"00000000-0000-4000-8000-{number:012}"


def update(number, code="FEATURE", items=(), **members):
    return {"eventId": event(number), "dictCode": code, "eventType": "DELTA", "items": list(items), **members}


def item(key, payload=1):
    return {"key": key, "op": "UPSERT", "payload": payload}


def update_answers(servers):
    """R1, R8: accepted, committed, known already, contradicting, failed, refused."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["postUpdate"]
    target, waiting = target_of(operation), target_of(operation, consistencyMode="WAIT_COMMIT", timeoutMs=1000)
    yield client.post(target, update(1, items=[item("a")]))
    yield committed(client, waiting, update(2, items=[item("a")]))
    yield client.post(target, update(2, items=[item("a")]))
    yield client.post(target, update(2, items=[item("b")]))
    for body in (update(3), update(4)):
        yield client.post(target, body, Idempotency_Key="one")
    yield client.post(target, update(3), Idempotency_Key="one")
    yield client.post(target, update(5), Idempotency_Key="not valid")
    for revision in (2, 1):
        yield committed(client, waiting, update(6 + revision, sourceRevision=revision))
    yield committed(client, waiting, update(10, "STRICT", [item("k", "not a number")]))
    yield client.post(target, update(11, "READ_ONLY", [item("k")]))
    yield client.post(target, update(12, "NONE"))
    yield client.post(target, update(13, "BROKEN"))
    for bad in (b"{", b"[]", {}, {"dictCode": "FEATURE"}, update(14, eventType="ALL"), update(15, items=[{"key": "k"}]),
                {"dictCode": "FEATURE", "eventType": "DELTA"}, update(16, tenantId="other"), update(17, items=[item("k" * 1025)])):
        yield client.post(target, bad)
    yield client.post(target, update(18, items=[item("k", "x" * (1 << 20))]))
    yield client.post(target, update(19), Content_Type="text/plain")
    for query in ("?consistencyMode=SOON", "?timeoutMs=49", "?stray=1"):
        yield client.post(target + query, update(20))
    yield Asking(servers.cut_off, servers.token).post(target, update(21))
    yield from chunk_answers(client, target)


def committed(client, target, body):
    """Its decision; on a slow machine the wait may have to be repeated."""
    return eventually(lambda: (answer := client.post(target, body)).status != 202 and answer)


def chunk_answers(client, target):
    chunk = update(30, eventType="SNAPSHOT", items=[item("a")], snapshotId=event(31), chunkIndex=1, chunksTotal=2)
    yield client.post(target, chunk)
    yield client.post(target, {**chunk, "items": [item("b")]})
    yield eventually(lambda: (answer := client.post(target, chunk)).status != 202 and answer)


def status_answers(servers):
    """R2, of those that update_answers() left, and of none."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["getUpdate"]
    servers.answers_of("postUpdate")
    for number in (0, 2, 7, 10, 30):
        yield client.get(target_of(operation, eventId=event(number)))
    for bad in (target_of(operation, eventId="x"), target_of(operation) + "?stray=1"):
        yield client.get(bad)
    held = update(40, eventType="SNAPSHOT", snapshotId=event(41), chunkIndex=1, chunksTotal=2)
    client.post(target_of(OPERATIONS["postUpdate"]), held)
    yield client.get(target_of(operation, eventId=event(40)))


# ---- intake ----

def create_answers(servers):
    """I8, I1-I4: created, taken, replayed, refused."""
    client, target = Asking(servers.working, servers.token), OPERATIONS["createItem"].path
    body = {"sku": "a/b", "title": "Sample", "size": 1.50}
    for key in ("one", "one", "two"):
        yield client.post(target, body, Idempotency_Key=key)
    yield client.post(target, {**body, "title": "Another"}, Idempotency_Key="one")
    yield client.post(target, body, Idempotency_Key="not valid")
    for bad in (b"{", b"[]", {}, {**body, "sku": ""}, {**body, "id": 1}, {**body, "note": "x" * 600_000}):
        yield client.post(target, bad)
    yield client.post(target, body, Content_Type="text/plain")
    yield client.post(target + "?stray=1", body)
    yield Asking(servers.working, servers.homeless_token).post(target, body)
    yield Asking(servers.cut_off, servers.token).post(target, body, Idempotency_Key="one")


def read_answers(servers):
    client, operation = Asking(servers.working, servers.token), OPERATIONS["readItem"]
    servers.answers_of("createItem")
    for sku in ("a/b", "none"):
        yield client.get(target_of(operation, sku=sku))
    yield client.get(target_of(operation) + "?stray=1")
    yield Asking(servers.working, servers.homeless_token).get(target_of(operation))
    yield Asking(servers.cut_off, servers.token).get(target_of(operation))


# ---- entitlements ----

def change_answers(servers, name):
    """E1, E2, I1-I4: changed, refused and replayed; keys and bodies that are none."""
    client, target = Asking(servers.working, servers.token), OPERATIONS[name].path
    body = {**OPERATIONS[name].body, "user_id": f"u_{name}"}
    if name == "revokeEntitlement":
        yield client.post(target, body, Idempotency_Key="too-early")
        client.post(OPERATIONS["grantEntitlement"].path, body, Idempotency_Key="first")
    for key in ("one", "one", "two", "two"):
        yield client.post(target, body, Idempotency_Key=key)
    yield client.post(target, {**body, "reason": "another"}, Idempotency_Key="one")
    yield client.post(target, body, Idempotency_Key="not valid")
    for bad in (b"{", b"[]", {}, {**body, "user_id": ""}, {**body, "reason": 7}, {**body, "note": "x" * 70_000}):
        yield client.post(target, bad, Idempotency_Key="bad")
    yield client.post(target, body, Idempotency_Key="plain", Content_Type="text/plain")
    yield Asking(servers.cut_off, servers.token).post(target, body, Idempotency_Key="one")
    if name == "grantEntitlement":
        checking = Asking(servers.impatient, servers.token)
        for _ in range(2):
            yield checking.post(target, {**body, "stock_keeping_unit": "none"}, Idempotency_Key="none")


def entitlements_answers(servers):
    client, operation = Asking(servers.working, servers.token), OPERATIONS["getEntitlements"]
    servers.answers_of("grantEntitlement")
    for user in ("u_grantEntitlement", "nobody", "a/b", "shop"):
        yield client.get(target_of(operation, user_id=user))
    yield client.get(target_of(operation) + "?stray=1")
    yield Asking(servers.cut_off, servers.token).get(target_of(operation))


# ---- notifications ----

def inbox_answers(servers, name):
    """N5: somebody's, nobody's, a page of them; questions that are none; another's without the scope; debug that is off."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS[name]
    servers.answers_of("grantEntitlement")
    for user in ("u_grantEntitlement", "nobody", "a/b", "shop"):
        yield client.get(target_of(operation, user_id=user))
    for query in ("stray=1", "limit=0", "cursor=x"):
        yield client.get(f"{target_of(operation)}?{query}")
    yield Asking(servers.working, servers.homeless_token).get(target_of(operation))
    yield Asking(servers.cut_off, servers.token).get(target_of(operation))


# ---- chat ----

def message_answers(servers):
    """M1, I1-I3: answered, replayed, refused; another's session."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["postMessage"]
    target = target_of(operation)
    for content, key in (("hello", "one"), ("hello", "one"), ("other", "one"), ("hello", "not valid")):
        yield client.post(target, {"content": content}, Idempotency_Key=key)
    for bad in (b"{", b"[]", {}, {"content": ""}, {"content": "x" * 40_000}, {"content": "x" * 1_100_000}):
        yield client.post(target, bad)
    yield client.post(target, operation.body, Content_Type="text/plain")
    yield client.post(target_of(operation, session_id="x"), operation.body)
    yield client.post(target_of(operation, project_id=event(1)), operation.body)
    yield Asking(servers.working, servers.homeless_token).post(target, operation.body)
    yield Asking(servers.cut_off, servers.token).post(target, operation.body)


def messages_answers(servers):
    client, operation = Asking(servers.working, servers.token), OPERATIONS["getMessages"]
    servers.answers_of("postMessage")
    for values in ({}, {"limit": 1}, {"limit": 0}, {"cursor": "x"}, {"session_id": event(1)}, {"session_id": "x"}):
        yield client.get(target_of(operation, **values))
    yield client.get(target_of(operation) + "?stray=1")
    yield Asking(servers.working, servers.homeless_token).get(target_of(operation))
    yield Asking(servers.cut_off, servers.token).get(target_of(operation))


def stream_answers(servers):
    """M3: from the start, from somewhere, from nowhere; and from what is not kept any more."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["getStream"]
    servers.answers_of("postMessage")
    for values in ({}, {"after": 1}, {"after": 99999}, {"after": "x"}, {"session_id": event(1)}):
        yield client.get(target_of(operation, **values))
    yield client.get(target_of(operation), Accept="text/event-stream")
    yield client.get(target_of(operation), Last_Event_ID="x")
    yield Asking(servers.working, servers.homeless_token).get(target_of(operation))
    yield Asking(servers.cut_off, servers.token).get(target_of(operation))
    session = event(50)
    client.post(target_of(OPERATIONS["postMessage"], session_id=session), {"content": "old"})
    eventually(lambda: servers.database.value("select count(*) from chat.event_log where session_id = %s", (session,)) == 2)
    servers.database.query("delete from chat.event_log where session_id = %s", (session,))
    yield client.get(target_of(operation, session_id=session, after=0))


def events_answers(servers):
    client, operation = Asking(servers.working, servers.token), OPERATIONS["getEvents"]
    servers.answers_of("postMessage")
    target = target_of(operation)
    eventually(lambda: len(client.get(target).json()["events"]) > 1)
    yield client.get(target + "?limit=1")
    cursor = client.get(target + "?limit=1").json()["next_cursor"]
    for query in (f"cursor={cursor}", "event_type=none", "from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", "from=x", "to=x",
                  "limit=0", "cursor=x", "stray=1"):
        yield client.get(f"{target}?{query}")
    yield client.get(target_of(operation, project_id="x"))
    yield Asking(servers.working, servers.homeless_token).get(target)
    yield Asking(servers.cut_off, servers.token).get(target)


# ---- hydration ----

def entity_answers(servers, name, **absent):
    """H5, H6: there, absent, of a type that nobody has; all three ways to fail; questions that are none."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS[name]
    Asking(servers.working, servers.token).ask(OPERATIONS["createItem"])
    target = target_of(operation)
    yield eventually(lambda: (answer := client.get(target)).status == 200 and answer)
    for query in ("mode=existence", "mode=partial&fields=title,none"):
        yield client.get(f"{target}?{query}")
    yield client.get(target_of(operation, **absent))
    for mode in ("fail-fast", "defer", "degrade"):
        yield client.get(target_of(operation, entity_type="nobody_has") + f"?failure_mode={mode}")
    for query in ("mode=partial", "mode=some", "fields=a", "failure_mode=x", "stray=1", "mode=partial&fields="):
        yield client.get(f"{target}?{query}")
    yield client.get(target_of(operation, entity_type="Item"))
    yield Asking(servers.working, servers.homeless_token).get(target)
    yield Asking(servers.cut_off, servers.token).get(target)


def openapi_answers(servers):
    with servers.working.client() as client:
        yield client.get("/openapi.yaml", If_None_Match="*")


def health_answers(servers, operation):
    yield raw(servers.cut_off, request_bytes("GET", operation.path))


OWN = {
    "getItem": item_answers,
    "getItems": items_answers,
    "getAll": all_answers,
    "getVersion": version_answers,
    "watch": watch_answers,
    "postUpdate": update_answers,
    "getUpdate": status_answers,
    "createItem": create_answers,
    "readItem": read_answers,
    "grantEntitlement": lambda servers: change_answers(servers, "grantEntitlement"),
    "revokeEntitlement": lambda servers: change_answers(servers, "revokeEntitlement"),
    "getEntitlements": entitlements_answers,
    "getNotifications": lambda servers: inbox_answers(servers, "getNotifications"),
    "getDebugInbox": lambda servers: inbox_answers(servers, "getDebugInbox"),
    "postMessage": message_answers,
    "getMessages": messages_answers,
    "getStream": stream_answers,
    "getEvents": events_answers,
    "getEntity": lambda servers: entity_answers(servers, "getEntity", entity_id="none"),
    "getEntityOfTwo": lambda servers: entity_answers(servers, "getEntityOfTwo", second="none"),
    "getOpenapi": openapi_answers,
    "getHealth": lambda servers: health_answers(servers, OPERATIONS["getHealth"]),
    "getReadiness": lambda servers: health_answers(servers, OPERATIONS["getReadiness"]),
}


def collect(servers, name):
    operation = OPERATIONS[name]
    answers = list(wire_answers(servers, operation))
    if not operation.is_public:
        answers += gate_answers(servers, operation)
    if "{dictCode}" in operation.path:
        answers += dictionary_answers(servers, operation)
    if name in OWN:
        answers += OWN[name](servers)
    return answers


# ---- the comparison ----

@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_as_described_and_every_described_one_comes(servers, name):
    responses = OPERATIONS[name].responses
    answers = servers.answers_of(name)
    for answer in answers:
        assert answer.status in responses, f"{answer.status} is not described: {answer.body!r}"
        DOCUMENT.check(responses[answer.status], answer)
    assert {answer.status for answer in answers} == set(responses) - {500}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].method == "GET"])
def test_head_answers_as_described_without_the_body(servers, name):
    operation = OPERATIONS[name]
    for made in ("postUpdate", "postMessage", "createItem"):  # what is asked for below
        Asking(servers.working, servers.token).ask(OPERATIONS[made])
    for bearer in (servers.token, None):
        auth = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        answer = raw(servers.working, request_bytes("HEAD", target_of(operation), auth), "HEAD")
        assert answer.status == (200 if bearer or operation.is_public else 401)
        DOCUMENT.check(operation.responses[answer.status], answer, "HEAD")


def test_every_example_of_an_error_was_really_answered(servers):
    said = [answer.json() for name in OPERATIONS for answer in servers.answers_of(name) if answer.status >= 400]
    examples = {name: response["content"]["application/json"]["example"]
                for name, response in DOCUMENT.root["components"]["responses"].items()}
    errors = {name: example for name, example in examples.items() if "code" in example}
    never = {name for name, example in errors.items() if example not in said}
    assert never == {"InternalError"} and len(errors) > 15


def test_every_media_type_and_every_code_came(servers):
    """A schema with a choice: each branch was seen."""
    answers = [answer for name in OPERATIONS for answer in servers.answers_of(name)]
    kinds = {answer.headers.get("content-type") for answer in answers} - {None}
    described = {kind for operation in OPERATIONS.values() for response in operation.responses.values()
                 for kind in response.get("content", {})}
    assert kinds == described
    codes = {answer.json()["code"] for answer in answers if answer.status >= 400 and b'"code"' in answer.body}
    written = set(re.findall(r"code: \{const: (\w+)\}", DOCUMENT.text)) | {"OVERLOADED"}
    assert codes == written - {"INTERNAL_ERROR"}


def test_a_path_that_is_not_described_is_404(servers):
    answer = raw(servers.working, request_bytes("GET", "/v1/tenants/demo/dictionaries/COUNTRY"))
    assert answer.status == 404
    DOCUMENT.check(DOCUMENT.root["components"]["responses"]["NotFound"], answer)


def test_the_comparison_finds_what_is_not_described(servers):
    """The checker itself: an answer with one header or field more, less or other is refused."""
    response = OPERATIONS["getItem"].responses[200]
    good = raw(servers.working, request_bytes("GET", target_of(OPERATIONS["getItem"]),
                                              {"Authorization": f"Bearer {servers.token}"}))
    DOCUMENT.check(response, good)
    bad_headers = [{**good.headers, "x-new": "1"}, {**good.headers, "x-dict-version": "one"},
                   {**good.headers, "content-type": "text/html"},
                   {name: value for name, value in good.headers.items() if name != "etag"}]
    bad_bodies = [b'{"key":"DE","payload":1,"more":1}', b'{"key":"DE"}', b'{"key":1,"payload":1}', b"[]"]
    for headers, body in [(headers, good.body) for headers in bad_headers] + [(good.headers, body) for body in bad_bodies]:
        with pytest.raises(AssertionError):
            DOCUMENT.check(response, SimpleNamespace(status=200, headers=headers, body=body))


def test_r7_what_the_primary_answers_is_as_described(serve, refdata_db, token):
    """Loading takes for ever, so that only the primary can answer what is demanded."""
    make_table(refdata_db, "country", {"DE": "1"})
    refdata_db.query("create table pause(seconds float8)")
    set_version(refdata_db, "COUNTRY", 1)
    slow = {"code": "COUNTRY",
            "loadSql": "select k, v from country, (select pg_sleep(coalesce(max(seconds), 0)) from pause) as p"
                       " where tenant_id = :tenantId",
            "loadKeysSql": "select k, v from country where tenant_id = :tenantId and k = any(:keys)"}
    configuration = pod(slow, cache={"sweepInterval": "1h"})
    configuration["refdata"]["barrier"] = {"waitMs": 20}
    client = serve(refdata_db, configuration).client(token(TENANT))
    assert client.get(target_of(OPERATIONS["getItem"])).status == 200
    refdata_db.query("insert into pause values (20)")
    set_version(refdata_db, "COUNTRY", 2)
    for name, values, status in (("getItem", {}, 200), ("getItem", {"key": "XX"}, 404), ("getItems", {}, 200)):
        answer = client.get(target_of(OPERATIONS[name], **values), X_Min_Version="2")
        assert (answer.status, answer.headers["x-data-source"]) == (status, "postgres_fallback")
        DOCUMENT.check(OPERATIONS[name].responses[status], answer)


def test_r22_lines_of_a_stream_are_as_described(servers):
    """Written, deleted, up to date: each kind of line."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["watch"]
    waiting = target_of(OPERATIONS["postUpdate"], consistencyMode="WAIT_COMMIT")
    items = [item("kept", {"ж": [1.5, None]}), {"key": "gone", "op": "DELETE"}]
    version = committed(client, waiting, update(50, "LINES", items)).json()["committedVersion"]
    answer = client.get(target_of(operation, dictCode="LINES", after=version - 1))
    DOCUMENT.check(operation.responses[200], answer)
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line.get("op") for line in lines] == ["DELETE", "UPSERT", None] and lines[2] == {"upToDate": version}


# ---- examples ----

@pytest.fixture(scope="module")
def demo(module_serve, module_database):
    """`./dev run` as it comes, with the demo's rows."""
    server = module_serve.make(module_database, config=(ROOT / "config/freshet.yaml").read_text(encoding="utf-8"))
    bearer = run("token", "--tenant", TENANT, "--scope", "entitlement:write entitlement:read", env=server.env)
    migrated = run("migrate", "--config", server.config_path, env=server.env)
    assert (bearer.returncode, migrated.returncode) == (0, 0), bearer.stderr + migrated.stderr
    module_database.run_file(ROOT / "config/demo.sql")
    client = Asking(server.start(), bearer.stdout.strip())
    operation = OPERATIONS["postUpdate"]
    committed(client, target_of(operation, consistencyMode="WAIT_COMMIT"), operation.body)
    for name in ("grantEntitlement", "revokeEntitlement"):  # asked again they are replayed, in whatever order
        eventually(lambda: client.ask_with_key(OPERATIONS[name]).status == 200)  # pylint: disable=cell-var-from-loop
    return client


def described(name):
    """(media type, example, header examples) of the operation's good answer."""
    response = OPERATIONS[name].responses.get(200) or OPERATIONS[name].responses[201]
    entries = {name.lower(): DOCUMENT.resolve(entry) for name, entry in response.get("headers", {}).items()}
    headers = {name: str(entry["example"]) for name, entry in entries.items() if "example" in entry}
    return [(kind, media["example"], headers) for kind, media in response["content"].items() if "example" in media]


def timeless(value):
    """Without what differs each time: times, and ids that the server makes."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", json.dumps(value, sort_keys=True))
    return re.sub(r'"id": "[0-9a-f-]{36}"', '"id": "ID"', text)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if described(name)])
def test_examples_are_what_the_demo_answers(demo, name):
    """Asked with the examples of the parameters, the demo answers the example. Only times differ."""
    operation = OPERATIONS[name]
    query = {parameter["name"]: parameter["example"] for parameter in operation.parameters
             if parameter["in"] == "query" and "example" in parameter}
    for kind, example, headers in described(name):
        if operation.method == "POST":
            answer = demo.ask_with_key(operation, **query)
            said = answer.json()
        elif kind == "application/json":
            answer = demo.get(target_of(operation, **query))
            said = answer.json()
        else:
            answer = demo.get(target_of(operation, **query), Accept=kind)
            said = json.loads(answer.body.split(b"\n")[0])
        assert answer.status in (200, 201)
        assert (answer.headers["content-type"], timeless(said)) == (kind, timeless(example))
        assert {header: answer.headers[header] for header in headers} == headers
