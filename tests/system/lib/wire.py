"""HTTP as a test needs it: a plain client, and a raw connection that sends any bytes and reads strictly.

The reader believes nothing: it fails on a malformed status line, header or chunk, so that what the server sends is
checked by every test that reads an answer.
"""
import http.client
import json
import re
import socket
from dataclasses import dataclass, field

TIMEOUT = 30
STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-9][0-9]{2}) [\x20-\x7e]*")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff]*?)[ \t]*")


@dataclass
class Response:
    """Header names are lower case; a header that came several times is joined by ", "."""

    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """The error code of a C4 body."""
        return self.json().get("code")


class Client:
    """One keep-alive connection with a token; reconnects when the server closed it. `tls` is an SSLContext, for "localhost"."""

    def __init__(self, port, token=None, host="127.0.0.1", tls=None, timeout=TIMEOUT):
        if tls:
            self.connection = http.client.HTTPSConnection("localhost", port, timeout=timeout, context=tls)
        else:
            self.connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self.token = token

    def request(self, method, path, body=None, headers=None):
        headers = dict(headers or {})
        if self.token and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        try:
            self.connection.request(method, path, body=body, headers=headers)
            answer = self.connection.getresponse()
            content = answer.read()
        except BaseException:
            self.connection.close()
            raise
        merged = {}
        for name, value in answer.getheaders():
            name = name.lower()
            merged[name] = f"{merged[name]}, {value}" if name in merged else value
        return Response(answer.status, merged, content)

    def get(self, path, **headers):
        """Headers as keywords, `_` for `-`: get(path, X_Min_Version="3")."""
        return self.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path, body, **headers):
        return self.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class RawConnection:
    """A socket: send any bytes in any pieces, read answers one by one (pipelining included)."""

    def __init__(self, port, host="127.0.0.1", timeout=TIMEOUT, source="", tls=None, session=None):
        self.socket = socket.create_connection((host, port), timeout=timeout, source_address=(source, 0))
        if self.socket.getsockname() == self.socket.getpeername():  # no server is there: the kernel gave its port to this end
            self.socket.close()
            raise ConnectionRefusedError("connected to itself")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost", session=session)
        self.buffer = b""

    def send(self, *pieces):
        """Each piece is a write of its own."""
        for piece in pieces:
            self.socket.sendall(piece)

    def finish(self):
        """Half-close: the server reads the end of the stream and may still answer."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _fill(self):
        more = self.socket.recv(65536)
        if not more:
            raise EOFError(f"connection closed with {self.buffer[:200]!r} unread")
        self.buffer += more

    def read_line(self):
        """A line without its CRLF."""
        while b"\r\n" not in self.buffer:
            self._fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        assert b"\n" not in line and b"\r" not in line, line
        return line

    def read_exactly(self, size):
        while len(self.buffer) < size:
            self._fill()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def read_head(self):
        """Status line and headers; the body stays to be read."""
        line = self.read_line()
        match = STATUS_LINE.fullmatch(line)
        assert match, f"bad status line {line!r}"
        headers = {}
        while line := self.read_line():
            header = HEADER.fullmatch(line)
            assert header, f"bad header line {line!r}"
            name, value = header[1].decode().lower(), header[2].decode("latin-1")
            assert not (name == "content-length" and name in headers), "two lengths"
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        assert not ("content-length" in headers and "transfer-encoding" in headers), "ambiguous framing"
        return Response(int(match[1]), headers)

    def read_chunk(self):
        """One chunk of a chunked body; b"" is the last."""
        size_line = self.read_line()
        assert re.fullmatch(rb"[0-9A-Fa-f]+", size_line), f"bad chunk size {size_line!r}"
        data = self.read_exactly(int(size_line, 16))
        assert self.read_exactly(2) == b"\r\n", "a chunk must end in CRLF"
        return data

    def read_response(self, method="GET"):
        """One whole answer. For HEAD, 1xx, 204 and 304 there is no body to read."""
        response = self.read_head()
        if method == "HEAD" or response.status < 200 or response.status in (204, 304):
            return response
        if response.headers.get("transfer-encoding") == "chunked":
            response.body = b"".join(iter(self.read_chunk, b""))
        elif "content-length" in response.headers:
            response.body = self.read_exactly(int(response.headers["content-length"]))
        else:
            assert response.headers.get("connection") == "close", "a body without a length"
            response.body = self.read_to_end()
        return response

    def exchange(self, data, method="GET"):
        self.send(data)
        return self.read_response(method)

    def read_to_end(self):
        """Everything up to the server's close; a reset after unread input counts as one."""
        try:
            while True:
                self._fill()
        except (EOFError, ConnectionResetError):
            data, self.buffer = self.buffer, b""
            return data

    def is_closed(self):
        """Waits for the server to close, with nothing more sent. False when bytes come or time runs out."""
        try:
            return self.buffer == b"" and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def request_bytes(method, target, headers=None, body=b"", version="HTTP/1.1", host="localhost"):
    """A well-formed request, for a test to send as it is or to damage."""
    lines = [f"{method} {target} {version}", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
