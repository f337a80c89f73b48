"""The mixed load: updates of reference data and reads that demand their version, reads from memory, grants, items with an
Idempotency-Key, messages of chats with readers of their streams, lookups of hydration. Each part knows what it was answered, so
that afterwards everything accepted can be accounted for (R1, R7, E2, E3, I2, M1, M3, H2, O1).

The parts of reference data and entitlements are those of tests/fault.
"""
import functools
import itertools
import random
import time

import grants
import workload
from lib import chat, entitlement, hydration, items
from lib.config import merge
from lib.refdata import TENANT, item_path
from lib.wait import PATIENCE, eventually
from lib.writers import commit, delta
from timeline import Watched

KEPT = "kept"  # an item of PLAIN that no writer changes
PROCESSING = "IDEMPOTENCY_KEY_PROCESSING"


def settings(receiver):
    """Short waits for everything that the load uses; nothing is decided by these numbers."""
    patient = {"hydration": {"wait_timeout_ms": 2000, "in_flight_window_ms": 1000, "negative_cache_ttl_ms": 1000}}
    streams = {"chat": {"stream": {"heartbeat": "1s"}}}
    return functools.reduce(merge, (grants.settings(receiver), chat.FAST, streams, patient))


def kept(writer, pods, bearer):
    """Writes the item that readers find in memory, and waits until every pod has it."""
    with writer.client(bearer) as client:
        assert commit(client, delta("PLAIN", {KEPT: {"is": "here"}})).status == 200
    for server in pods:
        with server.client(bearer) as client:
            eventually(lambda: client.get(item_path("PLAIN", KEPT)).status == 200)  # pylint: disable=cell-var-from-loop


class Part:
    """One kind of load: `servers` answer it."""

    method_kinds = {}

    def __init__(self, servers, bearer, timeline, pause):
        self.servers, self.bearer, self.timeline, self.pause = servers, bearer, timeline, pause

    def client(self, number):
        return Watched(self.servers, self.bearer, number, timeline=self.timeline, kinds=self.method_kinds)

    def keyed(self, client, where, body):
        """A POST with a key of its own, sent until it is answered."""
        deadline, headers = time.monotonic() + PATIENCE, {"Idempotency-Key": entitlement.new_key(), "Content-Type": "application/json"}
        while True:
            answer = client.request("POST", where, body, headers)
            is_busy = answer.status == 409 and PROCESSING.encode() in answer.body  # the attempt before this one
            if not is_busy:
                return answer
            assert time.monotonic() < deadline, "the key stays in use"
            time.sleep(0.02)


class MemoryReads(Part):
    """Answered whatever is away: these never fail at a pod that runs (R21)."""

    method_kinds = {"GET": "read from memory"}

    def run(self, stopping, number):
        client = self.client(number)
        while not stopping.wait(self.pause):
            answer = client.request("GET", item_path("PLAIN", KEPT))
            assert (answer.status, answer.headers["x-data-source"]) == (200, "memory"), answer.body
        client.close()


class Items(Part):
    """`sent`: {sku: id} of every item that was answered."""

    method_kinds = {"POST": "item"}

    def __init__(self, *args):
        super().__init__(*args)
        self.sent, self.skus = {}, []

    def run(self, stopping, number):
        client = self.client(number)
        while not stopping.wait(self.pause):
            body = items.item()
            answer = self.keyed(client, items.PATH, body)
            assert answer.status == 201, (answer.status, answer.body)
            self.sent[body["sku"]] = answer.json()["id"]
            self.skus.append(body["sku"])
        client.close()

    def audit(self, database):
        """Each has one row, one event and one stored answer, and no other item is there (I2, I5, I8)."""
        found = dict(database.query("select sku, id::text from intake.items where tenant_id = %s", (TENANT,)))
        assert found == self.sent, f"{len(found)} items, {len(self.sent)} answers"
        wrong = [sku for sku in self.sent if items.effects(database, sku) != (1, 1, 1)]
        assert not wrong, wrong[:3]


class Lookups(Part):
    """An item that was accepted is found (H2)."""

    method_kinds = {"GET": "hydration"}

    def __init__(self, known, *args):
        super().__init__(*args)
        self.known, self.answers = known, 0

    def run(self, stopping, number):
        client, choice = self.client(number), random.Random(number)
        while not stopping.wait(self.pause):
            if not self.known.skus:
                continue
            sku = choice.choice(self.known.skus[-200:])
            answer = client.request("GET", hydration.path("item", sku))
            assert answer.status == 200 and answer.json()["entity_id"] == sku, (sku, answer.status, answer.body)
            self.answers += 1
        client.close()


class Chats(Part):
    """Every writer has a session, which a reader follows: `said` {session: [(message_id, content)]}, `seen` {session: [sequence]}."""

    method_kinds = {"POST": "message"}

    def __init__(self, *args):
        super().__init__(*args)
        self.said, self.seen, self.projects, self.finished = {}, {}, {}, set()
        self.ends = None  # when readers have had time enough for the rest

    def run(self, stopping, number):
        client, session, project = self.client(number), chat.fresh(), chat.fresh()
        self.said[session], self.projects[session] = [], project
        for count in itertools.count(1):
            if stopping.wait(self.pause):
                break
            content = f"message {count}"
            answer = self.keyed(client, chat.path(project, session, "/message"), {"content": content})
            assert answer.status == 200, (answer.status, answer.body)
            self.said[session].append((answer.json()["message_id"], content))
        self.finished.add(session)
        client.close()

    def follow(self, stopping, number):
        """Reads the stream of a session, from another server after each break, until it is told to stop and has everything."""
        eventually(lambda: len(self.said) > number)
        session = list(self.said)[number]
        seen, turn = self.seen.setdefault(session, []), itertools.cycle(range(len(self.servers)))
        eventually(lambda: self.said[session] or stopping.is_set())
        while not self._is_done(stopping, session):
            assert self.ends is None or time.monotonic() < self.ends, f"{session}: {len(seen)} events after {PATIENCE} s"
            server = self.servers[next(turn)]
            try:
                with chat.Stream(server.port, self.bearer, self.projects[session], session, seen[-1] if seen else None) as stream:
                    stream.raw.socket.settimeout(5)
                    self._read(stopping, stream, session)
            except (OSError, EOFError) as error:
                self.timeline.note("stream", error)
                time.sleep(0.05)

    def _is_done(self, stopping, session):
        if stopping.is_set() and self.ends is None:
            self.ends = time.monotonic() + PATIENCE
        return session in self.finished and len(self.seen[session]) >= 2 * len(self.said[session])

    def _read(self, stopping, stream, session):
        if stream.head.status != 200:
            self.timeline.note("stream", stream.head.status)
            assert stream.head.status == 503, stream.refusal()
            time.sleep(0.05)
            return
        while not self._is_done(stopping, session):
            event = stream.event()
            if event is None:
                return  # its proper end: a process that stops
            self.timeline.note("stream", 200)
            if "event_id" in event:
                self.seen[session].append(event["sequence"])

    def audit(self, database):
        """The history is what was answered, in that order, and the stream had each event once (M1, M3)."""
        for session, said in self.said.items():
            rows = database.query("select message_id::text, content from chat.messages where session_id = %s and role = 'user'"
                                  " order by sequence", (session,))
            assert rows == said, f"session {session}: {len(rows)} messages, {len(said)} answers"
            logged = [row for row, in database.query(
                "select sequence from chat.event_log where session_id = %s order by sequence", (session,))]
            assert logged == list(range(1, len(logged) + 1)) and len(logged) >= 2 * len(said)
            assert self.seen[session] == logged[:len(self.seen[session])], f"the stream of {session}: {self.seen[session][-5:]}"
            assert len(self.seen[session]) >= 2 * len(said)


class Mixed:
    """All of it. `roles` has the servers of each role; `number` keeps names apart where one load follows another."""

    def __init__(self, roles, token, timeline, receiver, number=0):
        self.timeline, self.receiver, self.number = timeline, receiver, number
        self.bearer = token(TENANT, subject="shop", scope=entitlement.SCOPES, ttl=3600)

        def watched(**kinds):
            return functools.partial(Watched, timeline=timeline, kinds=kinds)

        def part(make, role, pause, *more):
            return make(*more, roles[role], self.bearer, timeline, pause)

        self.updates = workload.Workload(roles["command"], self.bearer, 0.02, watched(POST="update", GET="read at a version"))
        self.readers = roles["query"]
        self.memory = part(MemoryReads, "query", 0.01)
        self.grants = grants.Grants(roles["entitlement"], self.bearer, 0.03, watched(POST="grant"))
        self.items = part(Items, "intake", 0.03)
        self.lookups = part(Lookups, "hydration", 0.03, self.items)
        self.chats = part(Chats, "chat", 0.05)

    def start(self, threads, chats=2):
        self.updates.start(threads, plain=1, counted=1, whole=1, readers=0)
        threads.add(self._read_updates, 0)
        threads.add(self.memory.run, 0)
        self.grants.start(threads, writers=2, first=2 * self.number)
        threads.add(self.items.run, 0)
        threads.add(self.lookups.run, 0)
        for number in range(chats):
            threads.add(self.chats.run, number)
            threads.add(self.chats.follow, number)

    def _read_updates(self, stopping, number):
        """At the pods, wherever the updates went."""
        reads = workload.Workload(self.readers, self.bearer, self.updates.pause, self.updates.patient)
        reads.sent = self.updates.sent
        reads._read(stopping, number)  # pylint: disable=protected-access

    def absorb(self, earlier):
        """What an earlier load was answered has to be there as well."""
        self.updates.sent[:0] = earlier.updates.sent
        self.updates.last = {**earlier.updates.last, **self.updates.last}
        self.grants.sent += earlier.grants.sent
        self.items.sent.update(earlier.items.sent)
        self.chats.said.update(earlier.chats.said)
        self.chats.seen.update(earlier.chats.seen)

    def audit(self, database, lost_some=False):
        """Accounts for everything, or fails; returns {what: accepted and found}. `lost_some`: the receiver of webhooks was also
        called for changes that PostgreSQL has lost since."""
        workload.audit(database, self.updates, self.readers, self.bearer)
        changes = grants.audit(database, self.grants, self.receiver, is_exact=not lost_some)
        self.items.audit(database)
        self.chats.audit(database)
        return {"updates": len(self.updates.sent), "grants and revokes, each with its notification": changes,
                "items": len(self.items.sent), "messages": sum(map(len, self.chats.said.values())),
                "events of streams": sum(map(len, self.chats.seen.values()))}
