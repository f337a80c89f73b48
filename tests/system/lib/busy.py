"""Work for every role of one process, so that every metric that can have series has some."""
import contextlib
import uuid

from . import entitlement, items
from .chat import Session
from .refdata import item_path, path
from .wait import eventually
from .watcher import Watcher

DICTIONARY = "D"
SETTINGS = {
    "debug": {"enabled": True},
    "chat": {"agents": [{"name": "billing", "keywords": ["invoice"], "reply": "billing"},
                        {"name": "general", "reply": "general"}]},
}


class Work:
    """Has streams open from the first round on; round() makes requests of all kinds."""

    def __init__(self, server, token):
        self.server, self.token = server, token
        self.client = server.client(token(subject="u_1", scope=entitlement.SCOPES))
        self.chat = Session(server, token(subject="u_1"))
        self.open = contextlib.ExitStack()
        self.open.callback(self.chat.close)
        self.user = f"u_{uuid.uuid4().hex[:8]}"

    def begin(self):
        """The first of everything, and the streams."""
        self.chat.say("hello")
        stream = self.chat.stream()
        self.open.callback(stream.close)
        self.update()
        watcher = Watcher(self.server, self.token(), "demo", DICTIONARY, after=0)
        self.open.callback(watcher.close)
        return self

    def update(self):
        answer = self.client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT", {
            "dictCode": DICTIONARY, "eventType": "DELTA",
            "items": [{"key": "k", "op": "UPSERT", "payload": {"at": uuid.uuid4().hex}}]})
        assert answer.status in (200, 202), answer.body
        return answer.json()

    def round(self):
        update = self.update()
        self.client.get(item_path(DICTIONARY, "k"), X_Min_Version=str(update.get("committedVersion", 0)))
        self.client.get(item_path(DICTIONARY, "none"))
        self.client.get(path(DICTIONARY, "/all"))
        key = items.fresh("key")
        body = items.item()
        for _ in range(2):
            items.post(self.client, body, key)
        items.post(self.client, items.item(), key)  # another body: a conflict
        sku = items.fresh("sku")
        assert entitlement.grant(self.client, self.user, sku).status == 200
        assert entitlement.revoke(self.client, self.user, sku).status == 200
        self.chat.say("my invoice, please")
        self.chat.say("hello")
        for entity in (body["sku"], "absent"):
            self.client.get(f"/v1/hydration/item/{entity}?mode=full")

    def delivered(self):
        """Notifications of the grants were sent."""
        samples = self.server.metrics()
        return any(name.startswith('notification_deliveries_total{') and 'result="sent"' in name and value > 0
                   for name, value in samples.items())

    def settle(self):
        eventually(self.delivered)

    def close(self):
        self.open.close()
