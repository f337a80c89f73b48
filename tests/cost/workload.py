"""Each operation once, in steps: after every step more exists, and no step has more to do than the one before.

What is read stays as large as it is. What is added belongs to others: users, chats and items of their own.
"""
import itertools
from contextlib import closing

from lib.chat import Session
from lib.chat import path as chat_path
from lib.refdata import TENANT
from lib.tokens import mint
from lib.watcher import Watcher
from lib.writers import chunks, delta, status_path, updates_path
from operations import CODE, HYDRATED, SKU, Client

SNAPSHOT = "CHUNKED"
SCOPES = "entitlement:write entitlement:read notification:read ops:read ops:all-tenants"
BURST, CHUNKS, KEYS = 8, 4, 10
HYDRATED_PATH = f"/v1/hydration/dictionary_item/{HYDRATED}/k0"
QUIET = "user-quiet"  # has as much from the first step on as in the last one
CALLS_OF_QUIET = (f"/v1/users/{QUIET}/entitlements", f"/v1/users/{QUIET}/notifications", f"/v1/tenants/{TENANT}/dictionaries")
LISTS_OF_OPERATORS = (
    "overview", "pods", "dictionaries", f"dictionaries/{TENANT}/{CODE}/keys?limit=5",
    f"dictionaries/{TENANT}/{CODE}/items/k1/history?limit=5", "updates?limit=5", "updates?status=FAILED&limit=5", "outboxes",
    "outboxes/intake.event_outbox/events?limit=5", "dead-letters", "idempotency-keys?limit=5", "hydration?limit=5", "streams", "lag",
    "audit?limit=5")
SETTINGS = {
    "http": {"loops": 1, "limits": {"requestTimeout": "60s"}},
    "refdata": {"cache": {"preload": [f"{TENANT}/{CODE}", f"{TENANT}/{HYDRATED}"]}, "consistency": {"waitCommitTimeoutMs": 1000},
                "dictionaries": [{"code": code} for code in (CODE, HYDRATED, SNAPSHOT)]},
    "hydration": {"wait_timeout_ms": 60000}, "notification": {"hydration": {"wait_timeout_ms": 60000}},
}


class Workload:
    """`server` serves all of it; the updates may be applied by another process."""

    def __init__(self, server, key):
        self.server, self.key = server, key
        self.numbers = itertools.count(1)
        self.client = Client(server, key)
        self.client.bearer = self._token("writer")
        self.burst = [Client(server, key) for _ in range(BURST)]
        self.quiet = Session(server, self._token(QUIET))
        self.busy = Session(server, self._token("busy"))
        self.stream = None

    def _token(self, subject):
        return mint(self.key, TENANT, subject=subject, scope=SCOPES)

    def begin(self):
        """What is there before the first step."""
        self._post_item(SKU)
        self._change_grant("grants", QUIET)
        self._commit(delta(HYDRATED, {"k0": {"n": 0}}))
        self.client.get(HYDRATED_PATH)
        self.quiet.say("hello")
        self.busy.say("hello")
        self.stream = self.busy.stream()
        self.stream.until(2)

    def step(self):
        number = next(self.numbers)
        self._update(number)
        self._entities(number)
        self._grants(number)
        self._chat()
        self._lists()

    # ---- updates ----

    def _commit(self, body):
        request = self.client.bytes("POST", updates_path("WAIT_COMMIT", timeout_ms=1000), body)
        while (answer := self.client.raw.exchange(request)).status == 202:
            pass  # time ran out before the commit
        assert answer.status == 200 and answer.json()["status"] == "COMMITTED", answer
        return answer.json()

    def _update(self, number):
        body = delta(CODE, {f"k{number % KEYS}": {"n": number}})
        version = self._commit(body)["committedVersion"]
        self.client.get(status_path(body["eventId"]))
        self.client.get(f"/v1/ops/updates/{TENANT}/{body['eventId']}")
        with closing(Watcher(self.server, self.client.bearer, TENANT, CODE, after=max(version - BURST, 0))) as watcher:
            watcher.lines_to(version)
        self._commit(delta(HYDRATED, {"k0": {"n": number}}))
        for client in self.burst:
            client.raw.send(client.bytes("POST", updates_path("ASYNC"), delta(CODE, {f"k{number % KEYS}": {"n": -number}})))
        assert {client.raw.read_response().status for client in self.burst} == {202}
        for chunk in chunks(SNAPSHOT, {f"k{key}": {"n": number} for key in range(CHUNKS)}, CHUNKS):
            self.client.post(updates_path("ASYNC"), chunk, 202)

    # ---- the modules ----

    def _post_item(self, sku):
        self.client.post("/api/v1/items", {"sku": sku, "title": "Sample item"}, 201, Idempotency_Key=f"item-{sku}")

    def _entities(self, number):
        sku = f"sku-{number}"
        self._post_item(sku)
        self._post_item(sku)  # is replayed
        self.client.get(f"/v1/hydration/item/{sku}")
        self.client.get(f"/v1/hydration/item/no-{sku}", 404)
        self.client.get(HYDRATED_PATH)

    def _change_grant(self, change, user):
        self.client.post(f"/v1/entitlements/{change}", {"user_id": user, "stock_keeping_unit": SKU, "reason": "purchase",
                                                        "purchase_id": "p-1"}, Idempotency_Key=f"{change}-{user}")

    def _grants(self, number):
        for change in ("grants", "revokes"):
            self._change_grant(change, f"user-{number}")

    def _chat(self):
        self.busy.say("hello")
        self.stream.until(self.stream.seen[-1] + 2)

    def _lists(self):
        for path in (*CALLS_OF_QUIET, *(f"/v1/ops/{name}" for name in LISTS_OF_OPERATORS)):
            self.client.get(path)
        project = self.quiet.project
        for path in (chat_path(project, self.quiet.session, "/messages"), f"/my/projects/{project}/events"):
            assert self.quiet.client.get(path).status == 200

    def close(self):
        for each in (self.client, *self.burst, self.quiet, self.busy, self.stream):
            if each:
                each.close()
