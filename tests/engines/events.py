"""Entitlements and notifications on NATS as they are run for real: processes of their own, two of each, with nothing in
common but PostgreSQL and NATS; and NATS as somebody else sees it."""
import json

from lib import on_engines
from lib.config import merge
from lib.entitlement import SCOPES, decode
from lib.nats import Nats
from lib.wait import eventually

DURABLE = "mailer"
# One pair for every test: streams that keep the same subjects can't stand beside each other in one NATS.
ADVISORIES = {"advisory": {"stream": "advisories_max"}, "terminated-advisory": {"stream": "advisories_term"}}

# Short waits, and few deliveries: nothing here uses one up that is not its own fault.
SETTINGS = {
    "debug": {"enabled": True},
    "entitlement": {"outbox": {"poll-interval": "100ms", "backoff-base": "20ms", "backoff-max": "100ms", "lease": "2s",
                               "max-attempt": 1000}},
    "notification": {"nats": {"durable": DURABLE, "ack-wait": "1s", "max-deliver": 3, **ADVISORIES},
                     "delivery": {"poll-interval": "100ms", "backoff-base": "20ms"}},
}


class Events:
    """The four processes; `entitlements` answer requests, `notifications` consume."""

    def __init__(self, serve, database, token):
        self.database, self.names = database, on_engines.settings(database.name)["entitlement"]["nats"]
        self.bearer = token("demo", subject="shop", scope=f"{SCOPES} notification:read", ttl=3600)
        settings = merge(SETTINGS, {"notification": {"nats": {"stream": self.stream}}})
        self.entitlements, self.notifications = ([serve.make(database, settings, args=["--roles", role]) for _ in range(2)]
                                                 for role in ("entitlement", "notification"))

    def start(self):
        for server in self.all:
            server.spawn()
        for server in self.all:
            eventually(server.is_ready)
        eventually(lambda: self.consumer()["name"] == DURABLE)
        return self

    @property
    def all(self):
        return [*self.entitlements, *self.notifications]

    @property
    def stream(self):
        return self.names["stream"]

    @property
    def subject(self):
        return self.names["subject"]

    @property
    def nats(self):
        """A new connection."""
        return Nats(on_engines.engines().nats.address)

    def client(self, number=0):
        return self.entitlements[number].client(self.bearer)

    # ---- what is there ----

    def published(self):
        """[(subject, headers, event)] of the stream."""
        with self.nats as nats:
            return [(subject, headers, decode(payload)) for subject, headers, payload in nats.messages(self.stream)]

    def consumer(self):
        with self.nats as nats:
            return nats.consumer(self.stream, DURABLE)

    def notified(self, user=None):
        """[(user, event_id, status)], oldest first."""
        return self.database.query("select user_id, event_id::text, status from notification.notifications"
                                   " where %s::text is null or user_id = %s order by sequence", (user, user))

    def letters(self):
        return [row for row, in self.database.query(
            "select to_jsonb(d) || jsonb_build_object('payload', encode(payload, 'hex'))"
            " from notification.notification_nats_dlq d order by dlq_id")]

    def all_sent(self, count):
        """Waits until so many notifications are sent, no more and no fewer."""
        eventually(lambda: [status for _, _, status in self.notified()].count("SENT") >= count, timeout=120)
        assert len(self.notified()) == count, json.dumps(self.notified()[-5:])
