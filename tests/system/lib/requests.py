"""One request of each role that has any, which must succeed on a process with all roles: each is what a client of that module does
most. Used where what matters is that all of them work: while processes are replaced, with few privileges, on another schema."""
import uuid

from .chat import path as chat_path
from .entitlement import GRANTS, SCOPES, body, new_key
from .items import PATH, item
from .refdata import item_path, path

CODE = "D"  # a dictionary in the built-in table that has the item `a`
SUBJECT = "developer"
SCOPE = SCOPES + " notification:read"
UPDATES = "/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000"


class Requests:
    """Of one client: send(method, path, body, headers) returns (status, body)."""

    def __init__(self, send):
        self.send = send
        self.sku = None
        self.user = f"u-{uuid.uuid4().hex[:12]}"
        self.project, self.session = str(uuid.uuid4()), str(uuid.uuid4())

    def query(self):
        return self.send("GET", item_path(CODE, "a"), None, {}), {200}

    def query_all(self):
        return self.send("GET", path(CODE, "/all"), None, {"Accept": "application/x-ndjson"}), {200}

    def command(self):
        update = {"dictCode": CODE, "eventType": "DELTA",
                  "items": [{"key": uuid.uuid4().hex, "op": "UPSERT", "payload": {"made": "by a test"}}]}
        return self.send("POST", UPDATES, update, {}), {200, 202}

    def intake(self):
        wanted = item()
        answer = self.send("POST", PATH, wanted, {"Idempotency-Key": new_key()})
        self.sku = wanted["sku"]
        return answer, {201}

    def chat(self):
        return self.send("POST", chat_path(self.project, self.session, "/message"), {"content": "hello"},
                         {"Idempotency-Key": new_key()}), {200}

    def chat_history(self):
        return self.send("GET", chat_path(self.project, self.session, "/messages"), None, {}), {200}

    def entitlement(self):
        return self.send("POST", GRANTS, body(self.user, new_key()), {"Idempotency-Key": new_key()}), {200}

    def notification(self):
        return self.send("GET", f"/v1/users/{self.user}/notifications", None, {}), {200}

    def hydration(self):
        return self.send("GET", f"/v1/hydration/item/{self.sku}", None, {}), {200}

    def all(self):
        """(name, request), in an order in which each finds what it needs."""
        return [(each.__name__, each) for each in
                (self.query, self.query_all, self.command, self.intake, self.chat, self.chat_history, self.entitlement,
                 self.notification, self.hydration)]
