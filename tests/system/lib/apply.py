"""What the tests of the apply role share: commands put on the bus by SQL, or into Kafka, as an adapter in another language
would."""
import contextlib
import json
import uuid
import zlib

from . import on_engines
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


# A number that becomes too long when it is printed (C6), as Python would not write it.
TOO_LONG = {"n": "too long"}
# A payload that only PostgreSQL refuses, where refuse_payloads() was called.
REFUSED = {"n": "refused"}


def refuse_payloads(database):
    database.query("""alter table refdata.dictionary_item add check (payload <> '{"n": "refused"}')""")


def to_text(sent):
    return json.dumps(sent).replace('"too long"', "1e131071").encode()


def publish(database, commands, *, requests=True, key=None):
    """Commits these on the bus, in order, in one transaction, each with its update_request and the key of its pair unless
    told otherwise. A command may be bytes: then it is published as it is, for the first partition."""
    messages = []
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        for sent in commands:
            text = sent if isinstance(sent, bytes) else to_text(sent)
            own = b"" if isinstance(sent, bytes) else f"{sent['tenantId']}:{sent['dictCode']}".encode()
            own = key or own
            if requests and not isinstance(sent, bytes):
                cursor.execute(
                    "insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash,"
                    " snapshot_id) values (%s, %s, %s, 'PENDING', '', %s) on conflict do nothing",
                    (sent["tenantId"], sent["eventId"], sent["dictCode"], sent.get("snapshotId")))
            messages.append((own, text))
            if not on_engines.carries_commands():
                cursor.execute("select platform.bus_publish(array[%s], array[%s], array[1], array[%s::bytea],"
                               " array['{}'], array[%s::bytea])", (TOPIC, zlib.crc32(own) % PARTITIONS, own, text))
        connection.commit()
    if on_engines.carries_commands():
        on_engines.send_commands(database.name, messages)


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
    if on_engines.carries_commands():
        eventually(lambda: on_engines.is_handled(database.name))
        return
    eventually(lambda: database.value(
        "select count(*) from platform.bus_partition p join platform.bus_cursor c using (topic, partition)"
        " where topic = %s and position < next_offset", (TOPIC,)) == 0)


def dead_letters(database):
    """Headers of each dead command since forget_dead_letters()."""
    if on_engines.carries_commands():
        return on_engines.dead_letters(database.name)
    rows = database.query("select headers from platform.bus_message where topic = 'refdata.commands.dlq'")
    return [dict(zip(headers[::2], headers[1::2])) for headers, in rows]


def forget_dead_letters(database):
    if on_engines.carries_commands():
        on_engines.forget_dead_letters(database.name)
    else:
        database.query("delete from platform.bus_message where topic = 'refdata.commands.dlq'")


def committed_commands(database):
    """How many commands were committed with their update_request, published or not."""
    if on_engines.carries_commands():
        return database.value("select count(*) from refdata.command_outbox")
    return database.value("select count(*) from platform.bus_message where topic = %s", (TOPIC,))


def commands_on_the_bus(database):
    """(key, headers, payload) of each."""
    if on_engines.carries_commands():
        return [(key.decode(), {name: value.decode() for name, value in headers.items()}, payload.decode())
                for _, _, key, headers, payload in on_engines.consume(on_engines.topic(database.name))]
    return [(key, dict(zip(headers[::2], headers[1::2])), payload) for key, headers, payload in database.query(
        "select convert_from(key, 'UTF8'), headers, convert_from(payload, 'UTF8') from platform.bus_message"
        " where topic = %s order by partition, message_offset", (TOPIC,))]


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
    if on_engines.carries_commands():
        eventually(lambda: on_engines.has_group(database.name))
        return
    eventually(lambda: database.value("select count(*) from platform.bus_cursor where topic = %s", (TOPIC,)) > 0)


# ---- two tables of different shapes, one for each snapshot style ----

COUNTRY = {
    "code": "COUNTRY",
    "loadSql": "select code as k, to_jsonb(t) as v from mdm_country t where tenant_id = :tenantId and not deleted",
    "apply": {
        "upsertSql": "insert into mdm_country(tenant_id, code, name, updated_at_epoch, deleted) values (:tenantId, :key,"
                     " cast(:payload->>'name' as text), :eventEpoch, false) on conflict (tenant_id, code) do update"
                     " set name = excluded.name, updated_at_epoch = excluded.updated_at_epoch, deleted = false",
        "deleteSql": "update mdm_country set deleted = true, updated_at_epoch = :eventEpoch"
                     " where tenant_id = :tenantId and code = :key",
        "snapshotReplaceSql": "select refdata_replace_country(:tenantId, :snapshotJson)",
    },
}
COUNTRY_SQL = """
create table mdm_country (tenant_id text, code text, name text not null, updated_at_epoch bigint, deleted boolean,
                          primary key (tenant_id, code));
create function refdata_replace_country(tenant text, items jsonb) returns void language sql as $$
    delete from mdm_country where tenant_id = tenant;
    insert into mdm_country select tenant, x->>'key', x->'payload'->>'name', 0, false from jsonb_array_elements(items) x
$$;
"""
CURRENCY = {
    "code": "CURRENCY",
    "loadSql": "select ccy as k, jsonb_build_object('digits', digits) as v from mdm_currency where tenant_id = :tenantId",
    "apply": {
        "upsertSql": "insert into mdm_currency values (:tenantId, :key, cast(:payload->>'digits' as int), :eventVersion)"
                     " on conflict (tenant_id, ccy) do update set digits = excluded.digits, version = excluded.version",
        "deleteSql": "delete from mdm_currency where tenant_id = :tenantId and ccy = :key",
        "snapshotStageSql": "insert into staging select :tenantId, :snapshotId, :chunkIndex, x->>'key',"
                            " (x->'payload'->>'digits')::int from jsonb_array_elements(:snapshotJson) x",
        "snapshotFinalizeSql": "select refdata_fill_currency(:tenantId, :snapshotId, :eventVersion)",
    },
}
CURRENCY_SQL = """
create table mdm_currency (tenant_id text, ccy text, digits int, version bigint, primary key (tenant_id, ccy));
create table staging (tenant_id text, id text, part int, ccy text, digits int);
create function refdata_fill_currency(tenant text, snapshot text, version bigint) returns void language sql as $$
    delete from mdm_currency where tenant_id = tenant;
    insert into mdm_currency select tenant, ccy, digits, version from staging s where s.id = snapshot;
    delete from staging where id = snapshot
$$;
"""


def countries(database, tenant="demo"):
    return dict(database.query("select code, name from mdm_country where tenant_id = %s and not deleted", (tenant,)))


def currencies(database):
    return {ccy: (digits, version) for ccy, digits, version in database.query("select ccy, digits, version from mdm_currency")}
