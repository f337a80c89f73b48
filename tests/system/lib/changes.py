"""Changes as the apply role commits them, made by SQL: data, version and outbox row in one transaction; and the messages
that tell pods of them, which a test may lose, repeat, reorder or spoil.
"""
import contextlib
import json
import uuid

from . import on_engines
from .refdata import TENANT, raise_version
from .wait import eventually

ALL = object()  # "perhaps all keys changed": what a snapshot leaves in the outbox


class Changes:
    """The writer of one pair in the built-in table. write(tell=False) is an invalidation that got lost."""

    def __init__(self, database, code, tenant=TENANT):
        self.database, self.code, self.tenant = database, code, tenant
        self.connection = database.connect()
        self.connection.autocommit = False
        self.teller = None  # tells by a connection of its own, which commits at once
        self.open = False
        self.events = {}  # by version

    @contextlib.contextmanager
    def together(self):
        """What is written inside becomes visible at once: several versions, one commit."""
        if self.open:
            yield
            return
        self.open = True
        try:
            with self.connection:
                yield
        finally:
            self.open = False

    def execute(self, sql):
        with self.together(), self.connection.cursor() as cursor:
            cursor.execute(sql)

    def close(self):
        self.connection.close()
        if self.teller:
            self.teller.close()

    def write(self, items=(), *, keys=None, outbox=True, tell=True, sql=None):
        """items maps keys to payloads, None deletes; keys is what the outbox says changed (default: exactly that)."""
        items = dict(items)
        with self.together(), self.connection.cursor() as cursor:
            event = str(uuid.uuid4())
            version, previous = raise_version(cursor, self.code, event, self.tenant)
            self.events[version] = event
            for key, payload in items.items():
                self._put(cursor, key, payload)
            if sql:
                cursor.execute(sql)
            if outbox:
                self._leave(cursor, version, previous, list(items) if keys is None else keys)
        if tell:
            self.tell(version)
        return version

    def _put(self, cursor, key, payload):
        if payload is None:
            cursor.execute("delete from refdata.dictionary_item where tenant_id = %s and dict_code = %s and item_key = %s",
                           (self.tenant, self.code, key))
            return
        cursor.execute("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                       " values (%s, %s, %s, %s) on conflict (tenant_id, dict_code, item_key)"
                       " do update set payload = excluded.payload, deleted = false",
                       (self.tenant, self.code, key, json.dumps(payload)))

    def _leave(self, cursor, version, previous, keys):
        cursor.execute("insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, keys, published,"
                       " previous_event_id) values (%s, %s, %s, %s, %s, %s::text[], true, %s)",
                       (self.tenant, self.events[version], self.code, version, json.dumps(self.message(version)),
                        None if keys is ALL else keys, previous))

    def message(self, version, **other):
        """Seed §8.2."""
        return {"eventId": self.events.get(version) or str(uuid.uuid4()), "tenantId": self.tenant, "dictCode": self.code, "version": version,
                "committedAt": "2026-02-27T12:00:01Z", **other}

    def tell(self, version, **other):
        if not self.teller:
            eventually(lambda: listens(self.database))
            self.teller = self.database.connect()
        publish(self.teller, [json.dumps(self.message(version, **other))])


def tell(database, *payloads, partition=0):
    """Publishes to the topic of invalidations, which some pod has made by now or soon will, and wakes the pods."""
    eventually(lambda: listens(database))
    with contextlib.closing(database.connect()) as connection:
        publish(connection, payloads, partition)


def publish(connection, payloads, partition=0):
    if on_engines.carries_invalidations():
        on_engines.tell(connection.info.dbname, payloads)
        return
    encoded = [payload.encode() if isinstance(payload, str) else payload for payload in payloads]
    with connection.cursor() as cursor:
        cursor.execute("select platform.bus_publish(array['refdata.invalidations'], array[%s], array[%s], %s::bytea[],"
                       " %s::text[], %s::bytea[])",
                       (partition, len(encoded), [b"key"] * len(encoded), ["{}"] * len(encoded), encoded))
        cursor.execute("notify freshet_bus")


def listens(database):
    """Is the topic there? A pod whose subscription has not begun yet will find by its sweep what it is not told."""
    if on_engines.carries_invalidations():
        return on_engines.listens(database.name)
    return database.value("select count(*) from platform.bus_partition where topic = 'refdata.invalidations'") > 0


def loads(server, code, mode):
    """How many loads of this mode have succeeded."""
    return int(server.metrics().get(f'cache_reload_duration_count{{dict_code="{code}",mode="{mode}"}}', 0))


def content(client, code, tenant=TENANT):
    """(version, {key: payload}) of everything, from one answer."""
    answer = client.get(f"/v1/tenants/{tenant}/dictionaries/{code}/all?limit=10000")
    assert answer.status == 200, answer.body
    body = answer.json()
    assert body["nextCursor"] is None
    return body["version"], {item["key"]: item["payload"] for item in body["items"]}
