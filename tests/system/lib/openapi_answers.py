"""Every answer of every operation: collect() asks the servers of test_openapi_answers.py for all that api/openapi.yaml describes."""
import json

from lib.openapi_client import OPERATIONS, Asking, committed, event, item, raw, target_of, update
from lib.wait import eventually
from lib.wire import request_bytes


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
    yield Asking(servers.limited, servers.token).ask(operation)


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


def dictionaries_answers(servers):
    """Of one database that answers, and of one that does not; pages; questions that are none."""
    operation = OPERATIONS["getDictionaries"]
    for server in (servers.working, servers.cut_off):
        yield Asking(server, servers.token).get(target_of(operation))
    with servers.working.client(servers.token) as client:
        for query in ("limit=1", "limit=0", "cursor=a%20b", "stray=1"):
            yield client.get(f"{operation.path.replace('{tenantId}', 'demo')}?{query}")


def version_answers(servers):
    with servers.working.client(servers.token) as client:
        yield client.get(target_of(OPERATIONS["getVersion"]) + "?stray=1")


def watch_answers(servers):
    operation = OPERATIONS["watch"]
    client = Asking(servers.working, servers.token)
    for after in (0, 1, 2, "x"):
        yield client.get(target_of(operation, after=after))
    yield client.get(target_of(operation), Accept="text/event-stream")
    yield client.get(target_of(operation), Last_Event_ID="x")
    yield client.get(target_of(operation) + "?stray=1")


# ---- updates ----

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


def console_answers(servers, name):
    """Issue 15: every type of file, unchanged ones, and what is not there."""
    target = target_of(OPERATIONS[name])
    with servers.working.client() as client:
        yield client.get(target, If_None_Match="*")
        yield client.get(f"{target}?stray=1")
        if name == "getConsoleFile":
            for file in ("index.html", "app.css", "icon.svg", "none.js"):
                yield client.get(f"/console/{file}")


def health_answers(servers, operation):
    yield raw(servers.cut_off, request_bytes("GET", operation.path))


OWN = {
    "getDictionaries": dictionaries_answers,
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
    "getConsole": lambda servers: console_answers(servers, "getConsole"),
    "getConsoleFile": lambda servers: console_answers(servers, "getConsoleFile"),
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
