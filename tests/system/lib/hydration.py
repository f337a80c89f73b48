"""Hydration as a module outside of the program sees it: its three events on whichever bus carries them, an owner of entities that
does as a test says, and the questions that were asked."""
import json
import select
import socket
import struct
import threading
import uuid
import zlib
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import quote

from . import nats, on_engines
from .wait import eventually
from .wire import RawConnection

ROLE = ("--roles", "hydration")
KINDS = ("unknown", "updated", "not-found")
PARTITIONS = 4
OWNER = "warehouse"  # source_module of the owner outside

# Nothing here is decided by time: an owner has a minute, and the retry is later than that.
PATIENT = {"wait_timeout_ms": 60000, "in_flight_window_ms": 600000, "retry_backoff_ms": 60000}
# What ends by itself ends soon.
HASTY = {"wait_timeout_ms": 250, "in_flight_window_ms": 600, "max_retries": 0}
BRIEF = {"wait_timeout_ms": 60000, "in_flight_window_ms": 200, "max_retries": 0, "negative_cache_ttl_ms": 200, "copy_ttl_ms": 200}
KEEN = {"wait_timeout_ms": 60000, "in_flight_window_ms": 600000, "max_retries": 2, "retry_backoff_ms": 20}


def fresh(prefix="e"):
    """An id that nobody else has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def path(entity_type, entity_id, **query):
    """mode=, fields=, failure_mode=."""
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/v1/hydration/{entity_type}/{quote(entity_id, safe='')}{'?' if text else ''}{text}"


@dataclass
class Event:
    """One of the three."""

    kind: str
    payload: bytes
    headers: dict = field(default_factory=dict)

    def json(self):
        return json.loads(self.payload)

    @property
    def correlation_id(self):
        return self.headers.get("correlation_id")

    def is_about(self, entity_id):
        try:
            return self.json()["entity_id"] == entity_id
        except (ValueError, KeyError, TypeError):
            return False


def _answer(kind, question, headers, **payload):
    asked = question.json()
    headers = {"correlation_id": question.headers["correlation_id"], "tenant_id": question.headers["tenant_id"], **headers}
    body = {"entity_type": asked["entity_type"], "entity_id": asked["entity_id"], "source_module": OWNER, **payload}
    return Event(kind, json.dumps(body).encode(), {name: str(value) for name, value in headers.items() if value is not None})


def updated(question, data, **headers):
    """An answer; headers of None are left out."""
    return _answer("updated", question, {"version": 1, **headers}, data=data)


def not_found(question, reason="deleted_or_never_existed", **headers):
    return _answer("not-found", question, {"version": 0, **headers}, reason=reason)


# ---- the bus ----

class _Tables:
    """The embedded bus: topics are tables, and a notice wakes who reads them."""

    def __init__(self, database):
        self.database = database
        self.reading, self.writing = database.connect(), database.connect()
        self.seen = {}
        self.poll(None)  # not what was before

    def send(self, event):
        topic, place = f"entity.{event.kind}", zlib.crc32(str(event.headers.get("tenant_id")).encode()) % PARTITIONS
        headers = [text for pair in event.headers.items() for text in pair]
        with self.writing.cursor() as cursor:
            cursor.execute("select platform.bus_publish(array[%s], array[%s], array[1], array['outside'::bytea],"
                           " array[(%s::text[])::text], array[%s::bytea])", (topic, place, headers, event.payload))
            cursor.execute("select pg_notify('freshet_bus', 'outside:' || %s)", (topic,))

    def poll(self, on_event):
        """Whether something came."""
        with self.reading.cursor() as cursor:
            cursor.execute("select topic, partition, message_offset, headers, payload from platform.bus_message"
                           " where topic in ('entity.unknown', 'entity.updated', 'entity.not-found')"
                           " order by created_at, topic, partition, message_offset")
            found = [row for row in cursor.fetchall() if row[2] >= self.seen.get(row[:2], 0)]
        for topic, partition, offset, headers, payload in found:
            self.seen[topic, partition] = offset + 1
            if on_event:
                on_event(Event(topic.removeprefix("entity."), bytes(payload), dict(zip(headers[::2], headers[1::2]))))
        return bool(found)

    def interrupt(self):
        """Nobody waits for long."""

    def letters(self):
        """Payloads of the dead letters of all three."""
        return [bytes(payload) for payload, in self.database.query(
            "select payload from platform.bus_message where topic like 'entity.%.dlq' order by created_at")]

    def close(self):
        self.reading.close()
        self.writing.close()


class _Subjects:
    """NATS, by a plain client and nothing else."""

    def __init__(self, address):
        self.address = address
        self.reading, self.writing = nats.Nats(address), nats.Nats(address)
        self.reading.subscribe("entity.*")
        self.reading.socket.settimeout(None)

    def send(self, event):
        self.writing.send(f"entity.{event.kind}", event.payload, event.headers)

    def poll(self, on_event):
        subject, headers, payload = self.reading.read()
        if subject.removeprefix("entity.") in KINDS:
            on_event(Event(subject.removeprefix("entity."), payload, headers))
        return True

    def letters(self):
        with nats.Nats(self.address) as client:
            return [payload for stream in ("entity_updated_dlq", "entity_not-found_dlq")
                    for _, _, payload in client.messages(stream)]

    def interrupt(self):
        """Whoever reads is let go."""
        self.reading.socket.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.reading.close()
        self.writing.close()


class Outside:
    """A module outside: hears everything, and answers questions as it was told to, entity by entity."""

    def __init__(self, database):
        self.database = database
        self.bus = _Subjects(on_engines.engines().nats.address) if on_engines.IS_ON else _Tables(database)
        self.events, self.ways, self.errors = [], {}, []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stopping.is_set():
            try:
                if not self.bus.poll(self._hear):
                    self.stopping.wait(0.01)
            except Exception as error:  # pylint: disable=broad-exception-caught
                if not self.stopping.is_set():
                    self.errors.append(error)
                return

    def _hear(self, event):
        self.events.append(event)
        if event.kind == "unknown":
            for answer in self.ways.get(event.json()["entity_id"], lambda question: [])(event):
                self.bus.send(answer)

    def owns(self, entity_id, way):
        """way(question) says which events answer it."""
        self.ways[entity_id] = way

    def send(self, *events):
        for event in events:
            self.bus.send(event)

    def change(self, kind, entity_type, entity_id, tenant="demo", headers=None, **payload):
        """Tells of a change: no answer to anybody."""
        body = {"entity_type": entity_type, "entity_id": entity_id, "source_module": OWNER, **payload}
        self.send(Event(kind, json.dumps(body).encode(), {"tenant_id": tenant, **(headers or {})}))

    def asked(self, entity_id):
        """Every entity/unknown about it, in order."""
        assert not self.errors, self.errors
        return [event for event in list(self.events) if event.kind == "unknown" and event.is_about(entity_id)]

    def question(self, entity_id, number=1):
        """The first one, or a later one, when it has come."""
        return eventually(lambda: self.asked(entity_id)[number - 1:number])[0]

    def told(self, entity_id):
        """Every other event about it."""
        return [event for event in list(self.events) if event.kind != "unknown" and event.is_about(entity_id)]

    def letters(self):
        return self.bus.letters()

    def close(self):
        self.stopping.set()
        self.bus.interrupt()
        self.thread.join()
        self.bus.close()
        assert not self.errors, self.errors


# ---- who asks ----

class Asking:
    """A request that is under way while the test goes on: the socket has its answer when it comes."""

    def __init__(self, server, bearer, target):
        self.target = target
        self.raw = RawConnection(server.port, timeout=90)
        self.raw.send(f"GET {target} HTTP/1.1\r\nHost: freshet\r\nAuthorization: Bearer {bearer}\r\n"
                      "Connection: close\r\n\r\n".encode())

    def answer(self):
        with closing(self.raw):
            return self.raw.read_response()

    def is_answered(self):
        """Or cut off."""
        return bool(select.select([self.raw.socket], [], [], 0)[0])

    def leave(self):
        """The client goes away without its answer: it resets the connection, since an end of it might only be of its half."""
        self.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.raw.close()


def waiters(*servers):
    return sum(server.metrics()["hydration_waiters"] for server in servers)


def count(name, *servers, **labels):
    """A counter over servers and labels that are not given."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(value for server in servers for text, value in server.metrics().items()
               if text.split("{")[0] == f"hydration_{name}" and all(label in text for label in wanted))


def ignored(*servers, reason=None):
    return count("ignored_total", *servers, **({"reason": reason} if reason else {}))


def is_empty(*servers):
    """Nobody waits."""
    eventually(lambda: waiters(*servers) == 0)
    return True


def rows(database, table, entity_id, **where):
    """Rows of the ledger about it."""
    more = "".join(f" and {name} = %({name})s" for name in where)
    return database.value(f"select count(*) from hydration.{table} where entity_id = %(entity_id)s{more}",
                          {"entity_id": entity_id, **where})
