"""A raw reader of GET …/watch."""
import json
import socket
import uuid

from .refdata import path, raise_version
from .wire import RawConnection, request_bytes


class Watcher:
    """A raw reader of one stream."""

    def __init__(self, server, bearer, tenant, code="B", after=None, event=None, method="GET", receive_buffer=None):
        given = {"after": after, "event": event}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value is not None)
        self.raw = RawConnection.__new__(RawConnection)
        self.raw.socket = socket.socket()
        if receive_buffer:
            self.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.raw.socket.settimeout(30)
        self.raw.socket.connect(("127.0.0.1", server.port))
        self.raw.buffer = b""
        self.raw.send(request_bytes(method, path(code, "/watch?" + query, tenant),
                                    {"Authorization": f"Bearer {bearer}"}))
        self.head = self.raw.read_head()
        self.text = b""
        self.ended = False

    def line(self):
        """The next line, or None at the stream's proper end. EOFError when it was cut."""
        assert self.head.status == 200, self.head
        while b"\n" not in self.text:
            chunk = self.raw.read_chunk()
            if not chunk:
                assert self.text == b"", "the last line is not whole"
                self.ended = True
                return None
            self.text += chunk
        line, self.text = self.text.split(b"\n", 1)
        return json.loads(line)

    def lines_to(self, version):
        """Everything up to upToDate of that version or a later one."""
        lines = []
        while True:
            lines.append(self.line())
            assert lines[-1] is not None, lines
            if lines[-1].get("upToDate", -1) >= version:
                return lines

    def close(self):
        self.raw.close()


class Writer:
    """Somebody else's program that does as apply does: items, version and outbox row in one transaction. Remembers the
    content of every version."""

    def __init__(self, database, tenant, code="B", version=0):
        self.connection = database.connect()
        self.connection.autocommit = False
        self.code, self.tenant, self.version = code, tenant, version
        self.content, self.history = {}, {version: {}}

    def update(self, upserts=(), deletes=(), keys=True):
        """keys=None leaves the row's keys null, as a snapshot's are."""
        upserts = dict(upserts)
        with self.connection.cursor() as cursor:
            event = str(uuid.uuid4())
            self.version, previous = raise_version(cursor, self.code, event, self.tenant)
            for key, payload in upserts.items():
                cursor.execute("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                               " values (%s, %s, %s, %s) on conflict (tenant_id, dict_code, item_key)"
                               " do update set payload = excluded.payload",
                               (self.tenant, self.code, key, json.dumps(payload)))
            for key in deletes:
                cursor.execute("delete from refdata.dictionary_item where tenant_id = %s and dict_code = %s"
                               " and item_key = %s", (self.tenant, self.code, key))
            cursor.execute("insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, keys,"
                           " published, published_at, previous_event_id) values (%s, %s, %s, %s, '{}', %s, true, now(), %s)",
                           (self.tenant, event, self.code, self.version, [*upserts, *deletes] if keys else None, previous))
        self.content = {**self.content, **upserts}
        for key in deletes:
            self.content.pop(key, None)
        self.history[self.version] = self.content  # before the commit: a reader may be faster than this line
        self.connection.commit()
        return self.version

    def snapshot(self, items):
        return self.update(items, [key for key in self.content if key not in items], keys=None)

    def close(self):
        self.connection.close()


class Follower:
    """A map that follows a stream, and is compared with the writer's record at every upToDate."""

    def __init__(self, writer, content, version):
        self.writer, self.content, self.version = writer, dict(content), version
        self.marks = 0

    def take(self, line):
        if "upToDate" in line:
            assert set(line) == {"upToDate"} and line["upToDate"] >= self.version
            self.version = line["upToDate"]
            assert self.content == self.writer.history[self.version], f"at version {self.version}"
            self.marks += 1
        elif "heartbeat" in line:
            assert set(line) == {"heartbeat"} and line["heartbeat"] == self.version
        elif line["op"] == "UPSERT":
            assert set(line) == {"version", "key", "op", "payload"} and line["version"] > self.version
            self.content[line["key"]] = line["payload"]
        else:
            assert set(line) == {"version", "key", "op"} and line["op"] == "DELETE" and line["version"] > self.version
            self.content.pop(line["key"], None)

    def follow(self, watcher, version):
        while self.version < version:
            line = watcher.line()
            assert line is not None
            self.take(line)
