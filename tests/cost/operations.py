"""The operations whose costs are counted, one function each, and the servers they run on.

An operation is called again and again, each time with work of the same size: ids have a fixed width, payloads a fixed length. It
returns when its client has what it asked for, or False when time ran out before; what goes on in the background afterwards is waited
for, and counted, by the caller.
"""
import itertools
import json
import time
from dataclasses import dataclass, field

from lib.chat import Session
from lib.chat import path as chat_path
from lib.refdata import TENANT, item_path, keys_path
from lib.tokens import mint
from lib.wire import RawConnection, request_bytes
from lib.writers import updates_path

CODE = "ITEMS"
HYDRATED = "HYDRATED"  # a dictionary with an item that a consumer holds a copy of
ITEMS = 1000
SCOPES = "entitlement:write entitlement:read notification:read"
SUBJECT = "reader"
SKU = "sku-granted"
BURST = 64

# No clock in an operation's way, and none beside it: what looks now and then although nothing was announced looks once an hour.
# One loop, so that the number of processors does not matter.
SELDOM = {"outbox": {"poll-interval": "1h"}}
STILL = {
    "http": {"loops": 1, "limits": {"requestTimeout": "60s"}},
    "bus": {"postgres": {"pollInterval": "1h"}},
    "refdata": {**SELDOM, "cache": {"preload": [f"{TENANT}/{CODE}", f"{TENANT}/{HYDRATED}"], "sweepInterval": "1h", "jitter": "0ms", "debounce": "0ms",
                                    "driftCheckInterval": "1h", "digestCheckInterval": "0ms"},
                "consistency": {"waitCommitTimeoutMs": 1000},
                "dictionaries": [{"code": CODE}, {"code": HYDRATED}]},
    "intake": SELDOM, "chat": {**SELDOM, "stream": {"heartbeat": "1h"}}, "entitlement": SELDOM,
    "notification": {"delivery": {"poll-interval": "1h"}, "hydration": {"wait_timeout_ms": 60000}},
    "hydration": {"wait_timeout_ms": 60000, "retry_backoff_ms": 60000, "in_flight_window_ms": 600000},
}
# As delivered, but for the loops.
DEFAULTS = {"http": {"loops": 1}, "refdata": {"cache": {"preload": [f"{TENANT}/{CODE}"]}, "dictionaries": [{"code": CODE}]}}

FILL_SQL = f"""
insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)
select '{TENANT}', code, 'k' || lpad(i::text, 6, '0'), jsonb_build_object('i', lpad(i::text, 6, '0'), 'filler', repeat('x', 100))
  from unnest('{{{CODE}, {HYDRATED}}}'::text[]) code, generate_series(0, {ITEMS - 1}) i;
insert into refdata.dictionary_meta (tenant_id, dict_code, version, updated_at)
select '{TENANT}', code, 100000, now() from unnest('{{{CODE}, {HYDRATED}}}'::text[]) code;
insert into intake.items (id, tenant_id, sku, title, attributes, created_by, created_at)
select gen_random_uuid(), '{TENANT}', sku, 'Sample item', '', 'cost', now()
  from (select 'sku-' || lpad(i::text, 6, '0') from generate_series(0, 999) i union all select '{SKU}') t (sku);
analyze;
"""


def key_of(number):
    return f"k{number % ITEMS:06d}"


class Client:
    """One connection and the requests that it sends, as few writes as can be."""

    def __init__(self, server, key):
        self.raw = RawConnection(server.port, timeout=60)
        self.bearer = mint(key, TENANT, subject=SUBJECT, scope=SCOPES)

    def bytes(self, method, path, body=None, token=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        content = json.dumps(body).encode() if body is not None else b""
        if content:
            headers["Content-Type"] = "application/json"
        return request_bytes(method, path, {"Authorization": f"Bearer {token or self.bearer}", **headers}, content)

    def ask(self, status, *args, **options):
        answer = self.raw.exchange(self.bytes(*args, **options))
        assert answer.status == status, answer
        return answer

    def get(self, path, status=200, **headers):
        return self.ask(status, "GET", path, **headers)

    def post(self, path, body, status=200, **headers):
        return self.ask(status, "POST", path, body, **headers)

    def close(self):
        self.raw.close()


class Operations:
    """The operations on one rig. `numbers` makes every call's work new."""

    def __init__(self, rig, key):
        self.rig, self.key = rig, key
        self.client = Client(rig.servers[0], key)
        self.clients = []
        self.numbers = itertools.count(1)
        self.unasked = iter(range(900))  # items that nobody has asked for
        self.chat = self.stream = None
        self.etag = None
        self.is_hydrated = False
        self.replayed = None

    def close(self):
        for client in (self.client, self.chat, self.stream, *self.clients):
            if client:
                client.close()

    # ---- reads ----

    def get_item(self):
        self.client.get(item_path(CODE, key_of(7)))

    def get_items_pipelined(self):
        request = self.client.bytes("GET", item_path(CODE, key_of(7)))
        self.client.raw.send(request * 16)
        assert [self.client.raw.read_response().status for _ in range(16)] == [200] * 16

    def get_keys(self):
        answer = self.client.get(keys_path(CODE, [key_of(number) for number in range(100)]))
        assert answer.body.count(b'"filler"') == 100

    def get_unchanged(self):
        self.etag = self.etag or self.client.get(item_path(CODE, key_of(7))).headers["etag"]
        self.client.get(item_path(CODE, key_of(7)), 304, If_None_Match=self.etag)

    def refuse_token(self):
        """A new one each time: whatever is remembered of a token does not help."""
        token = mint(self.key, TENANT, subject=f"{next(self.numbers):06d}")
        head, _, signature = token.rpartition(".")
        forged = f"{head}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"
        self.client.get(item_path(CODE, key_of(7)), 401, token=forged)

    # ---- updates ----

    def _delta(self, code=CODE, key=None):
        number = next(self.numbers)
        return {"eventId": f"00000000-0000-4000-8000-{number:012d}", "dictCode": code, "eventType": "DELTA",
                "items": [{"key": key or key_of(number), "op": "UPSERT", "payload": {"n": f"{number:08d}", "filler": "y" * 100}}]}

    def wait_commit(self):
        return self._wait_commit(self._delta())

    def wait_commit_hydrated(self):
        """Of an item that a consumer asked for: the consumer is sent its new content."""
        if not self.is_hydrated:
            self.client.get(f"/v1/hydration/dictionary_item/{HYDRATED}/{key_of(7)}")
            self.is_hydrated = True
        return self._wait_commit(self._delta(HYDRATED, key_of(7)))

    def _wait_commit(self, delta):
        answer = self.client.raw.exchange(self.client.bytes("POST", updates_path("WAIT_COMMIT", timeout_ms=1000), delta))
        assert answer.status in (200, 202), answer
        return answer.status == 200 and answer.json()["status"] == "COMMITTED"

    def async_burst(self):
        """All of them are in the process before the first one's commit is answered: the proxy holds it back."""
        while len(self.clients) < BURST:
            self.clients.append(Client(self.rig.servers[0], self.key))
        requests = [self.client.bytes("POST", updates_path("ASYNC"), self._delta()) for _ in self.clients]
        self.rig.hold_answers()
        for client, request in zip(self.clients, requests):
            client.raw.send(request)
        self.rig.settle_held()
        self.rig.release_answers()
        assert [client.raw.read_response().status for client in self.clients] == [202] * BURST

    # ---- modules ----

    def post_keyed(self):
        number = next(self.numbers)
        self._post_item(f"new-{number:06d}", f"key-{number:08d}")

    def replay_keyed(self):
        if self.replayed is None:
            self.replayed = self._post_item("replayed", "key-replayed")
            self.rig.settle()
        assert self._post_item("replayed", "key-replayed") == self.replayed

    def _post_item(self, sku, key):
        return self.client.post("/api/v1/items", {"sku": sku, "title": "Sample item"}, 201, Idempotency_Key=key).body

    def grant(self):
        number = next(self.numbers)
        self.client.post("/v1/entitlements/grants", {"user_id": f"user-{number:06d}", "stock_keeping_unit": SKU,
                                                     "reason": "purchase", "purchase_id": f"p-{number:06d}"},
                         Idempotency_Key=f"grant-{number:08d}")

    def chat_message(self):
        """Two lines: the message, and the answer of the agent that repeats it."""
        if self.chat is None:
            self.chat = Session(self.rig.servers[0], self.client.bearer)
            self.chat.say("first")
            self.stream = self.chat.stream()
            self.stream.until(2)
        self.client.post(chat_path(self.chat.project, self.chat.session, "/message"), {"content": f"{next(self.numbers):08d}"})
        self.stream.until(self.stream.seen[-1] + 2)

    # ---- hydration ----

    def hydrate_known(self):
        self.client.get("/v1/hydration/item/sku-000999")

    def hydrate_unknown(self):
        self.client.get(f"/v1/hydration/item/sku-{next(self.unasked):06d}")

    def hydrate_absent(self):
        self.client.get("/v1/hydration/item/no-such-sku", 404)

    # ---- nothing ----

    def idle(self):
        time.sleep(10)


# Which roles each process has; none named are all.
ONE_PROCESS = [[]]
TWO_PROCESSES = [["--roles", "command,query"], ["--roles", "apply,relay"]]


@dataclass(frozen=True)
class Operation:
    """A row of the table: how it is done, on which processes, and how often it is measured at least (under strace, callgrind)."""

    run: object
    processes: list = field(default_factory=lambda: ONE_PROCESS)
    settings: dict = field(default_factory=lambda: STILL)
    ends: bool = True  # there is a moment at which nothing of it is under way
    is_exact: bool = True  # it does the same each time
    warm_up: int = 3
    samples: tuple = (7, 4)
    before: object = None  # done before each one of which instructions are counted


OPERATIONS = {
    "GET item": Operation(Operations.get_item),
    "GET item, 16 pipelined": Operation(Operations.get_items_pipelined),
    "GET items, keys= of 100": Operation(Operations.get_keys),
    "GET item, 304": Operation(Operations.get_unchanged),
    "GET item, token refused": Operation(Operations.refuse_token),
    "WAIT_COMMIT direct": Operation(Operations.wait_commit),
    "WAIT_COMMIT direct, hydrated item": Operation(Operations.wait_commit_hydrated),
    "keyed POST": Operation(Operations.post_keyed),
    # A replay skips the last statements, which a connection then does not know yet: another POST has prepared them.
    "keyed POST, replay": Operation(Operations.replay_keyed, before=Operations.post_keyed),
    "grant, event, notification": Operation(Operations.grant),
    "chat message to its line": Operation(Operations.chat_message),
    "hydration hit": Operation(Operations.hydrate_known),
    "hydration miss": Operation(Operations.hydrate_unknown),
    "hydration negative hit": Operation(Operations.hydrate_absent),
    "WAIT_COMMIT queued": Operation(Operations.wait_commit, TWO_PROCESSES),
    "ASYNC, burst of 64": Operation(Operations.async_burst, TWO_PROCESSES, is_exact=False, warm_up=2, samples=(5, 3)),
    "idle process, 10 s": Operation(Operations.idle, settings=DEFAULTS, ends=False, is_exact=False, warm_up=0,
                                    samples=(1, 1)),
}
