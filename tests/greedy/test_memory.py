"""One memory budget (C6): all kinds of users of memory flood a process at once, on many connections and for several tenants. Its
memory stays within limits.memory and a tenth, and reads of another tenant all succeed.

It is the released program: the debug build's memory is mostly the sanitizers'."""
import contextlib
import itertools
import os
import time

from flood import Crowd, Loop, Resident, bearer_header, dictionaries, half_a_body, half_a_head, raise_descriptors, sample, update
from lib.chat import Session, fresh
from lib.chat import path as chat_path
from lib.refdata import item_path, path, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import PATIENCE, eventually
from lib.watcher import Writer
from lib.wire import Client, RawConnection, request_bytes
from lib.writers import delta

MIB = 1024 * 1024
LIMIT = 80 * MIB
FLOODERS = ["greedy1", "greedy2", "greedy3"]
WATCHED = [f"WATCHED{number}" for number in range(6)]
BIG = {"code": "BIG", "loadSql": "select 'k' || i as k, to_jsonb(repeat(md5(i::text || n), 30)) as v from generate_series(1, 4000) i,"
                                 " big where :tenantId <> ''"}
SETTINGS = pod("SMALL", "WRITTEN", "LARGE", *WATCHED, BIG, limits={"memory": LIMIT},
               http={"limits": {"headerTimeout": "1h", "bodyTimeout": "1h", "writeTimeout": "1h", "unsent": "1MiB", "body": "2MiB"}})
ACCOUNTS = {"requests", "bodies", "unsent", "writes", "streams", "versions", "queues", "hydration", "tokens"}
ACCOUNTS_FULL = 4  # at least, at some time: which of them fill up depends on who comes first, and on the kernel's buffers


def refusals(server, *accounts):
    samples = sample(server) or {}
    return sum(samples.get(f'freshet_memory_refused_total{{account="{name}"}}', 0) for name in accounts)


def refused_accounts(server):
    samples = sample(server) or {}
    return {name for name in ACCOUNTS if samples.get(f'freshet_memory_refused_total{{account="{name}"}}')}


class Floods:
    """All kinds at once; stopped together."""

    def __init__(self, server, database, token):
        self.server, self.database, self.token = server, database, token
        self.bearers = {tenant: token(tenant, ttl=3600) for tenant in FLOODERS}
        self.tenants = itertools.cycle(FLOODERS)
        self.codes, self.numbers, self.version = itertools.cycle(WATCHED), itertools.count(), 1
        self.writers, self.threads = {}, []

    def request(self, make):
        """make(tenant, bearer) for one tenant after the other."""
        def next_request():
            tenant = next(self.tenants)
            return make(tenant, self.bearers[tenant])
        return next_request

    def start(self):
        port = self.server.port
        crowds = [
            (60, lambda tenant, bearer: half_a_body(tenant, bearer, MIB), 0),
            (1500, lambda tenant, bearer: half_a_head(20000), 0),
            (300, lambda tenant, bearer: request_bytes("GET", "/openapi.yaml") * 50, -1),
            (400, lambda tenant, bearer: update(tenant, bearer, delta("WRITTEN", {"k": "x" * 150_000})), 0),
            (300, self.barrier, 0),
            (40, self.all_items, 2048),
            (60, self.watch, -1),
            (60, self.chat, -1),
        ]
        self.threads = [Crowd(port, count, self.request(make), read) for count, make, read in crowds]
        self.threads += [Loop(step) for step in (self.change_watched, self.change_big, self.say, self.try_token, self.hydrate)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        for thread in self.threads:
            thread.stopping.set()
        for thread in self.threads:
            thread.stop()
        for writer in self.writers.values():
            writer.close()

    # ---- clients that hold on ----

    @staticmethod
    def barrier(tenant, bearer):
        return request_bytes("GET", item_path("SMALL", "k", tenant), bearer_header(bearer, **{"X-Min-Version": 10**9}))

    @staticmethod
    def all_items(tenant, bearer):
        return request_bytes("GET", path("BIG", "/all", tenant), bearer_header(bearer, Accept="application/x-ndjson"))

    def watch(self, tenant, bearer):
        return request_bytes("GET", path(next(self.codes), "/watch", FLOODERS[0]), bearer_header(self.bearers[FLOODERS[0]]))

    def chat(self, tenant, bearer):
        return request_bytes("GET", chat_path("flood", "flood-" + FLOODERS[0], "/stream"),
                             bearer_header(self.bearers[FLOODERS[0]]))

    # ---- changes, and requests that are answered ----

    def change_watched(self):
        for code in WATCHED:
            if code not in self.writers:
                self.writers[code] = Writer(self.database, FLOODERS[0], code)
            self.writers[code].update({f"k{number}": "x" * 100_000 for number in range(2)})

    def change_big(self):
        self.version += 1
        self.database.query("update big set n = %s", (self.version,))
        for tenant in FLOODERS:
            set_version(self.database, "BIG", self.version, tenant)
        time.sleep(0.2)

    def quietly(self, method, target, bearer, body=None):
        with contextlib.suppress(OSError, EOFError), Client(self.server.port, bearer) as client:
            client.request(method, target, body)

    def say(self):
        tenant = FLOODERS[0]
        self.quietly("POST", chat_path("flood", "flood-" + tenant, "/message"), self.bearers[tenant], {"content": "x" * 30_000})

    def try_token(self):
        """Many of them, each once, on one connection."""
        tenant = next(self.tenants)
        bearers = [self.token(tenant, ttl=3600, padding=os.urandom(2500).hex()) for _ in range(20)]
        with contextlib.suppress(OSError, EOFError), RawConnection(self.server.port) as connection:
            connection.send(*[request_bytes("GET", item_path("SMALL", "k", tenant), bearer_header(bearer)) for bearer in bearers])
            for _ in bearers:
                connection.read_response()

    def hydrate(self):
        tenant = FLOODERS[0]
        self.quietly("GET", f"/v1/hydration/dictionary_item/LARGE%2F{next(self.numbers) % 400}", self.bearers[tenant])


class Reader:
    """The other tenant: reads of an item, on connections that stay and on new ones. All must succeed."""

    def __init__(self, server, bearer):
        self.server, self.bearer, self.count, self.failures = server, bearer, 0, []
        self.client = server.client(bearer)
        self.loop = Loop(self.read)

    def read(self):
        client = self.client if self.count % 20 else self.server.client(self.bearer)
        try:
            answer = client.get(item_path("SMALL", "k", "modest"))
            if answer.status != 200:
                self.failures.append((self.count, answer.status, answer.body))
        except (OSError, EOFError) as error:
            self.failures.append((self.count, repr(error)))
        if client is not self.client:
            client.close()
        self.count += 1


def test_requests_with_new_tokens_wait_beside_a_flood_of_half_heads(program, serve, refdata_db, token):  # noqa: F811
    """Heads that are not complete have no tenant. They take half of the account of requests, so that others can be parked."""
    raise_descriptors()
    write_builtin(refdata_db, "SMALL", {"k": 1}, 1, "modest")
    server = serve(refdata_db, SETTINGS)
    flood = Crowd(server.port, 1500, lambda: half_a_head(20000), 0)
    flood.start()
    try:
        eventually(lambda: "requests" in refused_accounts(server), interval=0.2)
        for number in range(20):
            with contextlib.closing(server.client(token("modest", ttl=3600 + number))) as client:
                assert client.get(item_path("SMALL", "k", "modest")).status == 200
    finally:
        flood.stopping.set()
        flood.stop()


def test_the_sum_of_all_floods_stays_within_the_budget_and_another_tenant_reads(  # pylint: disable=too-many-locals
        program, whole, serve, refdata_db, token):  # noqa: F811
    raise_descriptors()
    refdata_db.query("create table big (n integer)")
    refdata_db.query("insert into big values (1)")
    for tenant in [*FLOODERS, "modest"]:
        write_builtin(refdata_db, "SMALL", {"k": 1}, 1, tenant)
    refdata_db.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload) select %s, 'LARGE', i::text,"
                     " to_jsonb(repeat('x', 50000)) from generate_series(0, 399) i", (FLOODERS[0],))
    server = serve(refdata_db, SETTINGS)
    reader = Reader(server, token("modest", ttl=3600))
    reader.read()
    assert not reader.failures
    resident = Resident(server.process.pid)
    floods = Floods(server, refdata_db, token)
    with contextlib.closing(refdata_db.connect()) as blocker:  # updates are parked until their time is up
        blocker.autocommit = False
        blocker.cursor().execute("lock table refdata.update_request in access exclusive mode")
        resident.start()
        reader.loop.start()
        floods.start()
        try:
            eventually(lambda: len(refused_accounts(server)) >= ACCOUNTS_FULL, timeout=4 * PATIENCE, interval=0.5)
            reads = reader.count
            until = time.monotonic() + (60 if whole else 2)
            while time.monotonic() < until or reader.count < reads + 20:
                time.sleep(0.1)
            allowed = 1.1 * (LIMIT + dictionaries(server))
        finally:
            floods.stop()
            reader.loop.stop()
            resident.stop()
    assert reader.failures == []
    assert resident.most <= allowed, f"{resident.most / MIB:.0f} MiB of {allowed / MIB:.0f}"
    eventually(lambda: (sample(server) or {}).get('freshet_memory_used_bytes{account="bodies"}') == 0)
    eventually(lambda: (sample(server) or {}).get("freshet_memory_trims_total", 0) > 0)


def test_long_answers_of_workers_are_within_the_budget_until_they_are_written(program, serve, refdata_db, token):  # noqa: F811
    raise_descriptors()
    server = serve(refdata_db, SETTINGS)
    bearer = token(FLOODERS[0], ttl=3600)
    with contextlib.closing(Session(server, bearer)) as session:
        for _ in range(20):  # the page has 1 MiB
            session.say("x" * 30_000)
        page = request_bytes("GET", chat_path(session.project, session.session, "/messages?limit=1000"), bearer_header(bearer))
    resident = Resident(server.process.pid)
    resident.start()
    readers = Crowd(server.port, 150, lambda: page * 20, -1)
    readers.start()
    try:
        eventually(lambda: refusals(server, "requests", "unsent") > 100)  # answers that wait, and clients that do not read
    finally:
        readers.stop()
        resident.stop()
    assert resident.most <= 1.1 * LIMIT, f"{resident.most / MIB:.0f} MiB of {LIMIT / MIB:.0f}"
    eventually(lambda: server.client(bearer).get(chat_path(session.project, session.session, "/messages?limit=1000")).status == 200)


def test_bodies_of_one_tenant_that_do_not_arrive_leave_room_for_requests_of_another(program, serve, refdata_db, token):  # noqa: F811
    raise_descriptors()
    server = serve(refdata_db, SETTINGS)
    greedy, modest = token(FLOODERS[0], ttl=3600), server.client(token("modest", ttl=3600))
    assert modest.get(chat_path(fresh(), fresh(), "/messages")).status == 404
    senders = Crowd(server.port, 1000, lambda: half_a_body(FLOODERS[0], greedy, 1))
    senders.start()
    try:
        eventually(lambda: "requests" in refused_accounts(server))
        for _ in range(50):  # on a worker
            assert modest.get(chat_path(fresh(), fresh(), "/messages")).status == 404
    finally:
        senders.stop()
