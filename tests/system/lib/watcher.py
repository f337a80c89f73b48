"""A raw reader of GET …/watch."""
import json
import socket

from .refdata import path
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
