"""Read after write: what a writer was told is committed, no reader who asks for it misses; every answer is of one version;
nobody sees another tenant (R1, R4, R5, R7, R13, C11). Writers and readers in threads, servers in two processes."""
import json
import random
import threading
import time

import pytest

from lib.refdata import TENANT, item_path, lines_of, make_table, path, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes
from lib.writers import Threads, chunks, delta, snapshot, status_path, updates_path

SECONDS = 3
GENERATION_KEYS = [f"g{i:02}" for i in range(40)]
# The same data by SQL, reloaded whole.
REPLACE = """
create function replace_t(tenant text, items jsonb) returns void language sql as $$
    delete from t where tenant_id = tenant;
    insert into t select tenant, item->>'key', item->'payload' from jsonb_array_elements(items) item;
$$
"""
FULL = {
    "code": "FULL", "reloadOnEvent": "FULL",
    "loadSql": "select k, v from t where tenant_id = :tenantId",
    "apply": {"upsertSql": "insert into t values (:tenantId, :key, :payload)"
                           " on conflict (tenant_id, k) do update set v = excluded.v",
              "deleteSql": "delete from t where tenant_id = :tenantId and k = :key",
              "snapshotReplaceSql": "select replace_t(:tenantId, :snapshotJson)"},
}


def make_tables(database):
    make_table(database, "t")
    database.query(REPLACE)


@pytest.fixture
def servers(serve, refdata_db):  # noqa: F811
    """Two processes with every role on one database."""
    make_tables(refdata_db)
    return [serve(refdata_db, pod("BUILTIN", FULL, cache={"sweepInterval": "1s"})) for _ in range(2)]


def commit(client, body, tenant=TENANT):
    """Sends, waits for the commit, however long, and returns the version."""
    answer = client.post(updates_path("WAIT_COMMIT", tenant, 1000), body)
    while answer.status == 503:  # a machine too busy to answer in time: what a sender does then is send it again
        answer = client.post(updates_path("WAIT_COMMIT", tenant, 1000), body)
    assert answer.status in (200, 202), (answer.status, answer.body)
    if answer.status == 200:
        return answer.json()["committedVersion"]

    def decided():
        update = client.get(status_path(body["eventId"], tenant)).json()
        return update if update["status"] != "PENDING" else None
    update = eventually(decided)
    assert update["status"] == "COMMITTED", update
    return update["committedVersion"]


class Board:
    """What writers know to be committed: (version, value) by key."""

    def __init__(self):
        self.lock = threading.Lock()
        self.known = {}

    def put(self, key, version, value):
        with self.lock:
            assert self.known.get(key, (0, 0))[0] < version, "versions ascend"
            self.known[key] = (version, value)

    def any(self, choice):
        with self.lock:
            return choice.choice(list(self.known.items())) if self.known else None


def run_for(seconds, *works):
    with Threads() as threads:
        for work, *args in works:
            threads.add(work, *args)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not threads.stopping.wait(0.05):
            pass


@pytest.mark.tsan
@pytest.mark.parametrize("code", ["BUILTIN", "FULL"])
def test_no_reader_who_demands_a_version_gets_less(servers, token, code):
    board, reads = Board(), []

    def write(stopping, number):
        with servers[number % 2].client(token()) as client:
            for value in range(1, 1 << 30):
                if stopping.is_set():
                    return
                version = commit(client, delta(code, {f"k{number}": value}))
                board.put(f"k{number}", version, value)

    def read(stopping, number):
        """Demands what somebody was told, and what it has seen itself: then no key may ever go back."""
        choice, seen_version, seen, count = random.Random(number), 0, {}, 0
        with servers[number % 2].client(token()) as client:
            while not stopping.is_set():
                entry = board.any(choice)
                if entry is None:
                    continue
                key, (version, value) = entry
                answer = client.get(item_path(code, key), X_Min_Version=str(max(version, seen_version)))
                if answer.status == 503:  # not now: never instead of a 409, and never with data
                    continue
                assert answer.status == 200, (answer.status, answer.body)
                got, served = answer.json()["payload"], int(answer.headers["x-dict-version"])
                assert served >= max(version, seen_version)
                assert got >= max(value, seen.get(key, 0)), f"{key}: {got} at {served}, {value} is in {version}"
                seen[key], seen_version = got, served
                count += 1
        reads.append(count)

    run_for(SECONDS, *[(write, n) for n in range(4)], *[(read, n) for n in range(6)])
    assert min(reads) > 0 and len(board.known) == 4


@pytest.mark.parametrize("code", ["BUILTIN", "FULL"])
def test_what_was_committed_before_another_was_sent_is_seen_before_it(servers, token, code):
    """A is committed at one server, only then B is sent to the other: who sees B sees A, and C behind B sees both."""
    reads = []

    def write(stopping):
        first, second = (server.client(token()) for server in servers)
        for value in range(1, 1 << 30):
            if stopping.is_set():
                return
            commit(first, delta(code, {"a": value}))
            assert second.post(updates_path("ASYNC"), delta(code, {"b": value})).status in (200, 202)
            commit(second, delta(code, {"c": value}))

    def read(stopping, number):
        with servers[number % 2].client(token()) as client:
            count = 0
            while not stopping.is_set():
                order = []
                for key in "cba":  # the last written is read first
                    answer = client.get(item_path(code, key))
                    order.append(answer.json()["payload"] if answer.status == 200 else 0)
                assert order == sorted(order), f"c, b, a = {order}"
                items = client.get(path(code, "/items?keys=a,b,c")).json()["items"]
                together = [item["payload"] for item in items]
                assert together == sorted(together, reverse=True), together
                count += 1
            reads.append(count)

    run_for(SECONDS, (write,), *[(read, n) for n in range(4)])
    assert min(reads) > 0


def pages(client, code, limit):
    """All pages, each with the generations in it."""
    cursor, last = "", None
    while cursor is not None:
        page = client.get(path(code, f"/all?limit={limit}{cursor}")).json()
        assert page.get("versionChanged", False) == (last is not None and page["version"] != last)
        last = page["version"]
        yield page
        cursor = page["nextCursor"] and f"&cursor={page['nextCursor']}"


@pytest.mark.tsan
@pytest.mark.parametrize("code", ["BUILTIN", "FULL"])
def test_every_answer_shows_exactly_one_version(servers, token, code):
    """Each update writes its number into all keys; every answer must hold one number, and that of its version."""
    written, seen = {0: None}, []

    def write(stopping):
        choice = random.Random(1)
        with servers[0].client(token()) as client:
            for generation in range(1, 1 << 30):
                if stopping.is_set():
                    return
                items = {key: generation for key in GENERATION_KEYS}
                kind = choice.choice(["delta", "delta", "snapshot", "chunks"])
                if kind == "chunks":
                    *others, last = chunks(code, items, 4)
                    for body in others:
                        assert client.post(updates_path(), body).status == 202
                    written[commit(client, last)] = generation
                else:
                    body = delta(code, items) if kind == "delta" else snapshot(code, items)
                    written[commit(client, body)] = generation

    def note(version, payloads):
        """An answer: all of one number, to be compared with the writer's when that is known."""
        assert len(set(payloads)) <= 1, f"version {version} shows {sorted(set(payloads))}"
        assert len(payloads) in (0, len(GENERATION_KEYS)), len(payloads)
        seen.append((version, payloads[0] if payloads else None))

    def read(stopping, number):
        with servers[number % 2].client(token()) as client:
            while not stopping.is_set():
                whole = client.get(path(code, "/all")).json()
                note(whole["version"], [item["payload"] for item in whole["items"]])
                batch = client.get(path(code, "/items?keys=" + ",".join(GENERATION_KEYS))).json()
                note(batch["version"], [item["payload"] for item in batch["items"]])
                stream = client.get(path(code, "/all"), Accept="application/x-ndjson")
                note(int(stream.headers["x-dict-version"]), [item["payload"] for item in lines_of(stream.body)])
                for page in pages(client, code, 7):
                    assert len({item["payload"] for item in page["items"]}) <= 1

    run_for(SECONDS, (write,), *[(read, n) for n in range(4)])
    assert len(written) > 2 and len(seen) > 10
    assert sorted(written) == list(range(len(written))), "versions without gaps"
    wrong = [(version, value) for version, value in seen if version in written and written[version] != value]
    assert not wrong, wrong[:5]


# ---- tenants ----

ALICE, BOB = "alice", "bob"
SHARED_EVENT = "11111111-2222-4333-8444-555555555555"


def mark(tenant, what):
    """Bytes that belong to one tenant and occur nowhere else."""
    return f"{tenant.upper()}-only-{what}"


def all_bytes(server, method, target, bearer, headers=None, body=b""):
    """Everything a server answers: status line, headers and body. Of a stream without an end, what comes at once."""
    headers = {"Authorization": f"Bearer {bearer}", "Connection": "close", **(headers or {})}
    with RawConnection(server.port) as connection:
        connection.send(request_bytes(method, target, headers, body))
        data = b""
        try:
            while more := connection.socket.recv(65536):
                data += more
                if "/watch" in target and b"\r\n\r\n" in data:
                    connection.socket.settimeout(0.3)
        except (TimeoutError, ConnectionResetError):
            pass
    return data


def tenants_updates(code, tenant, other):
    """Updates of one tenant that try to name the other's things, good and bad."""
    items = {mark(tenant, "key"): {"secret": mark(tenant, "payload")}, "same-key": mark(tenant, "same")}
    yield delta(code, items), {"Idempotency-Key": "the-same-for-both"}
    yield delta(code, items, eventId=SHARED_EVENT), {}
    yield delta(code, items, eventId=SHARED_EVENT, sourceRevision=1), {}  # a conflict with one's own
    yield delta(code, items, tenantId=other), {}
    yield delta("NOBODY", items), {}
    yield delta(code, {**items, mark(tenant, "null"): "\u0000"}), {}
    yield snapshot(code, items, snapshotId=SHARED_EVENT, chunkIndex=1, chunksTotal=2), {}
    yield snapshot(code, {**items, "x": 1}, snapshotId=SHARED_EVENT, chunkIndex=1, chunksTotal=2), {}
    yield delta("PICKY", {"k": "shared-and-unique", mark(tenant, "picky"): mark(tenant, "unique")}), {}
    yield {"eventId": mark(tenant, "event")}, {}
    yield b'{"eventId": "' + mark(tenant, "cut").encode(), {}


def tenants_reads(code, tenant, other):
    for name in (mark(tenant, "key"), mark(other, "key"), "same-key"):
        yield path(code, f"/items/{name}", tenant)
    yield path(code, f"/items?keys={mark(tenant, 'key')},same-key", tenant)
    for rest in ("/all", "/all?limit=1", "/version", "/watch?after=0", "/watch?after=999999", "/all?cursor=x"):
        yield path(code, rest, tenant)
    for event in (SHARED_EVENT, "not-an-id"):
        yield status_path(event, tenant)


@pytest.mark.parametrize("code", ["BUILTIN", "FULL"])
def test_no_byte_of_one_tenant_is_in_any_answer_to_another(serve, refdata_db, token, code):  # noqa: F811
    make_tables(refdata_db)
    refdata_db.query("create table picky (tenant_id text, k text, v jsonb unique, primary key (tenant_id, k))")
    picky = {"code": "PICKY", "loadSql": "select k, v from picky where tenant_id = :tenantId",
             "apply": {"upsertSql": "insert into picky values (:tenantId, :key, :payload)"}}
    server = serve(refdata_db, pod("BUILTIN", FULL, picky))
    markers = {tenant: f"{tenant.upper()}-only-".encode() for tenant in (ALICE, BOB)}
    statuses = {ALICE: set(), BOB: set()}

    def own(stopping, tenant, other):
        """Everything one tenant can ask for, about itself and about the other, with its own token."""
        bearer = token(tenant)
        for _ in range(2):
            for body, headers in tenants_updates(code, tenant, other):
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                for where in (updates_path("WAIT_COMMIT", tenant), updates_path("ASYNC", tenant),
                              updates_path("ASYNC", other)):
                    check(tenant, other, all_bytes(server, "POST", where, bearer,
                                                   {"Content-Type": "application/json", **headers}, raw))
            for target in tenants_reads(code, tenant, other):
                for accept in ("application/json", "application/x-ndjson"):
                    check(tenant, other, all_bytes(server, "GET", target, bearer, {"Accept": accept}))
            for target in tenants_reads(code, other, tenant):
                # The path is the other's: the request itself holds its name, the answer may hold nothing of it.
                check(tenant, other, all_bytes(server, "GET", target, bearer), sent=target)

    def check(tenant, other, data, sent=""):
        assert data.startswith(b"HTTP/1.1 "), data
        statuses[tenant].add(int(data[9:12]))
        assert markers[other] not in data or markers[other] in sent.encode(), data

    with Threads() as threads:
        for tenant, other in ((ALICE, BOB), (BOB, ALICE)):
            threads.add(own, tenant, other)
        for thread in threads.threads:
            thread.join()
    assert statuses[ALICE] >= {200, 202, 400, 403, 404, 409}, statuses
    assert statuses[BOB] >= {200, 202, 400, 403, 404, 409}, statuses
    for target in ("/actuator/prometheus", "/actuator/health", "/openapi.yaml"):
        data = all_bytes(server, "GET", target, token(ALICE))
        assert not any(marker in data for marker in markers.values())
    log = server.log().encode()
    assert not any(marker in log for marker in markers.values()), "payloads and keys are not logged (C9)"
