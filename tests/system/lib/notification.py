"""What the tests of notifications share: events put on the bus by hand, a receiver of webhooks that misbehaves as it is told,
and what became of everything in the tables."""
import hashlib
import hmac
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

from . import nats, on_engines
from .wait import eventually

TOPIC = "entitlement.events"
ROLE = ["--roles", "notification"]
# Nobody waits long; nothing is ever decided by these numbers.
FAST = {"bus": {"postgres": {"pollInterval": "50ms"}}, "debug": {"enabled": True},
        "notification": {"delivery": {"poll-interval": "50ms", "backoff-base": "10ms", "backoff-max": "50ms"}}}


# ---- events ----

def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def encode(**fields):
    """api/entitlement.proto, written by somebody else's few lines."""
    names = ["event_id", "event_type", "occurred_at", "user_id", "stock_keeping_unit", "source", "source_id", "version",
             "tenant_id"]
    out = b""
    for number, name in enumerate(names, 1):
        value = fields.get(name)
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value % (1 << 64))
        elif value is not None:
            data = value if isinstance(value, bytes) else value.encode()
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def event(user="u_1", sku="item1", **changes):
    return {"event_id": str(uuid.uuid4()), "event_type": "EntitlementGranted", "occurred_at": "2026-02-27T12:00:00Z",
            "user_id": user, "stock_keeping_unit": sku, "source": "purchase", "source_id": "p_1", "version": 1,
            "tenant_id": "demo", **changes}


def message(fields, **headers):
    """(key, headers, payload) as the publisher of entitlements writes it."""
    return (f"{fields['tenant_id']}/{fields['user_id']}/{fields['stock_keeping_unit']}".encode(),
            {"event-id": fields["event_id"], "event_type": fields["event_type"], "tenant_id": fields["tenant_id"],
             "occurred_at": fields["occurred_at"], **headers}, encode(**fields))


def publish(database, *messages, partition=0):
    """Messages (key, headers, payload), or fields of events, in one commit to one partition; or to JetStream."""
    if on_engines.IS_ON:
        _publish_to_nats(database, [message(each) if isinstance(each, dict) else each for each in messages])
        return
    eventually(lambda: database.value("select count(*) from platform.bus_partition where topic = %s", (TOPIC,)))
    rows = [message(each) if isinstance(each, dict) else each for each in messages]
    headers = [[text for pair in head.items() for text in pair] for _, head, _ in rows]
    literals = ["{" + ",".join(json.dumps(text, ensure_ascii=False) for text in head) + "}" for head in headers]
    database.query("select platform.bus_publish(array[%s], array[%s], array[%s], %s::bytea[], %s::text[], %s::bytea[])",
                   (TOPIC, partition, len(rows), [row[0] for row in rows], literals, [row[2] for row in rows]))


def _publish_to_nats(database, messages):
    name = f"{database.name}_entitlement"
    with nats.Nats(on_engines.engines().nats.address) as client:
        def there():
            try:
                return client.stream(name)
            except nats.Refused:
                return None
        eventually(there)
        for _, headers, payload in messages:
            client.publish(f"{database.name}.entitlement", payload,
                           {"Nats-Msg-Id" if header == "event-id" else header: value for header, value in headers.items()})


# ---- what became of them ----

def inbox(client, user, debug=False, **query):
    path = f"/debug/notification/inbox/{quote(user, safe='')}" if debug else f"/v1/users/{quote(user, safe='')}/notifications"
    return client.get(path + ("?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else ""))


def rows(database, user):
    """[(event_id, status, attempt_count, last_error)] oldest first."""
    return database.query("select event_id::text, status, attempt_count, last_error from notification.notifications"
                          " where user_id = %s order by sequence", (user,))


def statuses(database, user):
    return [row[1] for row in rows(database, user)]


def letters(database, **wanted):
    """Dead letters of the bus as dicts."""
    found = database.query("select to_jsonb(d) || jsonb_build_object('payload', encode(payload, 'hex'))"
                           " from notification.notification_nats_dlq d order by dlq_id")
    return [row for row, in found if all(row[name] == value for name, value in wanted.items())]


def dead_deliveries(database, user):
    return [row for row, in database.query("select to_jsonb(d) from notification.notification_dlq d where user_id = %s", (user,))]


def audit(database):
    return [row for row, in database.query("select to_jsonb(a) from notification.dlq_audit a order by audit_id")]


# ---- a handler that fails ----

def break_sku(database, sku):
    """The database refuses this one, as long as the trigger is there."""
    database.query(f"""
        create function public.refuse_{sku}() returns trigger language plpgsql as
            $$ begin raise exception 'no room for %', new.stock_keeping_unit; end $$;
        create trigger refuse_{sku} before insert on notification.notifications
            for each row when (new.stock_keeping_unit = '{sku}') execute function public.refuse_{sku}()""")


def mend_sku(database, sku):
    database.query(f"drop trigger refuse_{sku} on notification.notifications; drop function public.refuse_{sku}()")


# ---- a receiver of webhooks ----

class Receiver:
    """Answers as `behave(call)` says: a status, "hang" (until released), "drop" (200, and the connection dies before the
    body does), or None for 200."""

    def __init__(self, port=0):
        self.calls, self.lock = [], threading.Lock()
        self.behave = lambda call: None
        self.release = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802
                body = self.rfile.read(int(self.headers["Content-Length"]))
                call = {"key": self.headers["Idempotency-Key"], "body": body, "headers": dict(self.headers),
                        "at": time.monotonic()}
                with receiver.lock:
                    receiver.calls.append(call)
                receiver.answer(self, receiver.behave(call))

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def answer(self, handler, what):
        if what == "hang":
            self.release.wait(30)
            what = 200
        handler.send_response(200 if what in (None, "drop") else what)
        handler.send_header("Content-Length", "100" if what == "drop" else "2")
        handler.end_headers()
        handler.wfile.write(b"ok")
        if what == "drop":
            handler.wfile.flush()
            handler.close_connection = True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def of(self, user):
        with self.lock:
            return [call for call in self.calls if json.loads(call["body"])["user_id"] == user]

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def webhook(receiver, **delivery):
    """Changes over FAST for a server that tells this receiver."""
    return {**FAST, "notification": {"delivery": {
        **FAST["notification"]["delivery"], "channel": "webhook", **delivery,
        "webhook": {"url": receiver if isinstance(receiver, str) else receiver.url, "timeout": "700ms", **delivery.get("webhook", {})}}}}


def is_signed(call, secret):
    parts = dict(part.split("=", 1) for part in call["headers"]["X-Freshet-Signature"].split(","))
    wanted = hmac.new(secret.encode(), parts["t"].encode() + b"." + call["body"], hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, parts["v1"]) and abs(int(parts["t"]) - time.time()) < 120
