"""What the tests of the apply role share: commands put on the bus by SQL, as an adapter in another language would."""
import contextlib
import json
import uuid
import zlib

from .refdata import TENANT, pod
from .wait import eventually

TOPIC = "refdata.commands"
PARTITIONS = 4


def applier(*dictionaries, updates=None, **more):
    """Changes over base_config for a process that applies what it finds on the bus, and looks often."""
    changes = pod(*dictionaries, bus={"postgres": {"partitions": PARTITIONS, "pollInterval": "20ms"}}, **more)
    changes["refdata"]["updates"] = updates or {}
    return changes


def event_id():
    return str(uuid.uuid4())


def command(code, items=(), kind="DELTA", tenant=TENANT, event=None, **more):
    """A command of seed §8.1. Items: {key: payload}, or a list of them as they are to be sent."""
    if isinstance(items, dict):
        items = [{"key": key, "op": "UPSERT", "payload": payload} for key, payload in items.items()]
    return {"eventId": event or event_id(), "tenantId": tenant, "source": "REST", "dictCode": code,
            "eventType": kind, "occurredAt": "2026-02-27T12:00:00Z", "items": list(items), **more}


def delta(code, upserts=None, deletes=(), **more):
    items = [{"key": key, "op": "UPSERT", "payload": payload} for key, payload in (upserts or {}).items()]
    return command(code, items + [{"key": key, "op": "DELETE"} for key in deletes], **more)


def snapshot(code, items, **more):
    return command(code, items, "SNAPSHOT", **more)


def chunks(code, parts, snapshot_id=None, **more):
    """The chunks of one snapshot, a dict of items each."""
    snapshot_id = snapshot_id or event_id()
    return [snapshot(code, items, snapshotId=snapshot_id, chunkIndex=index + 1, chunksTotal=len(parts), **more)
            for index, items in enumerate(parts)]


# JSON to everybody else, but no number of PostgreSQL's: a payload that is refused as late as can be.
NO_NUMBER = {"n": "no number"}


def to_text(sent):
    return json.dumps(sent).replace('"no number"', "1e200000").encode()


def publish(database, commands, *, requests=True):
    """Commits these on the bus, in order, in one transaction, each with its update_request unless told otherwise. A
    command may be bytes: then it is published as it is, for the first partition."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        for sent in commands:
            text = sent if isinstance(sent, bytes) else to_text(sent)
            key = b"" if isinstance(sent, bytes) else f"{sent['tenantId']}:{sent['dictCode']}".encode()
            if requests and not isinstance(sent, bytes):
                cursor.execute(
                    "insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash,"
                    " snapshot_id) values (%s, %s, %s, 'PENDING', '', %s) on conflict do nothing",
                    (sent["tenantId"], sent["eventId"], sent["dictCode"], sent.get("snapshotId")))
            cursor.execute("select platform.bus_publish(array[%s], array[%s], array[1], array[%s::bytea],"
                           " array['{}'], array[%s::bytea])", (TOPIC, zlib.crc32(key) % PARTITIONS, key, text))
        connection.commit()


def statuses(database, commands):
    """(status, version or error code) of each."""
    rows = dict((str(event), (status, code if status == "FAILED" else version))
                for event, status, version, code in database.query(
                    "select event_id, status, committed_version, error_code from refdata.update_request"))
    return [rows.get(sent["eventId"]) for sent in commands]


def decided(database, commands):
    """Waits until all of them are, and gives statuses()."""

    def all_are():
        found = statuses(database, commands)
        assert all(status and status[0] != "PENDING" for status in found), found
        return found

    return eventually(all_are)


def handled(database):
    """Waits until nothing is left on the bus."""
    eventually(lambda: database.value(
        "select count(*) from platform.bus_partition p join platform.bus_cursor c using (topic, partition)"
        " where topic = %s and position < next_offset", (TOPIC,)) == 0)


def items_of(database, code, tenant=TENANT):
    """The built-in table's, as a reader sees them."""
    return dict(database.query("select item_key, payload from refdata.dictionary_item"
                               " where tenant_id = %s and dict_code = %s and not deleted", (tenant, code)))


def version_of(database, code, tenant=TENANT):
    rows = database.query("select version from refdata.dictionary_meta where tenant_id = %s and dict_code = %s",
                          (tenant, code))
    return rows[0][0] if rows else 0


def outbox_of(database, code, tenant=TENANT):
    """(version, event, keys) in the order of ids."""
    return database.query("select version, event_id::text, keys from refdata.outbox_event"
                          " where tenant_id = %s and dict_code = %s order by id", (tenant, code))


def empty(database, tables=None):
    """As if nothing had ever been sent, for a test that shares its database."""
    handled(database)
    own = ("update_request processed_event dictionary_meta dictionary_item outbox_event snapshot snapshot_chunk"
           " snapshot_delta").split()
    database.query("truncate " + ", ".join([f"refdata.{table}" for table in own] + ([tables] if tables else [])))


def ready(database):
    """Waits until the topic and the group are there."""
    eventually(lambda: database.value("select count(*) from platform.bus_cursor where topic = %s", (TOPIC,)) > 0)
