"""Rows of refdata.outbox_event as apply leaves them, and what the relay made of them on the bus."""
import json
import uuid

from . import on_engines


def leave(database, code, first, last, tenant="demo", payload=None):
    """Events of versions first … last, in one commit."""
    with database.connect() as connection, connection.cursor() as cursor:
        for version in range(first, last + 1):
            event_id = str(uuid.uuid4())
            body = payload if payload is not None else json.dumps({
                "eventId": event_id, "tenantId": tenant, "dictCode": code, "version": version,
                "committedAt": "2026-02-27T12:00:01Z"})
            cursor.execute("insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, traceparent)"
                           " values (%s, %s, %s, %s, %s, %s)", (tenant, event_id, code, version, body,
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


def told(database, code=None, tenant="demo"):
    """[(key, headers, body)] of the invalidations topic in the order of each partition."""
    if on_engines.carries_invalidations():
        return [row for row in on_engines.told(database.name) if code is None or row[0] == f"{tenant}:{code}"]
    rows = database.query("select key, headers, payload from platform.bus_message where topic = 'refdata.invalidations'"
                          " order by partition, message_offset")
    found = [(bytes(key).decode(), dict(zip(headers[::2], headers[1::2])), json.loads(bytes(payload)))
             for key, headers, payload in rows]
    return [row for row in found if code is None or row[0] == f"{tenant}:{code}"]


def versions(database, code, tenant="demo"):
    return [body["version"] for _, _, body in told(database, code, tenant)]


def live(database):
    return database.value("select count(*) from refdata.outbox_event where not published and failed_at is null")
