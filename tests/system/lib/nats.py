"""NATS as another program sees it: a client of the plain protocol, in a few lines, and of JetStream's API, which is JSON over
requests. For tests that look at what freshet publishes, or publish what it did not."""
import base64
import json
import socket
import uuid

WAIT_S = 10


class Refused(AssertionError):
    """JetStream's error: args are code and description. To who waits: not yet."""


class Nats:
    """One connection, one request at a time."""

    def __init__(self, address):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.lines = self.socket.makefile("rb")
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        assert self.lines.readline().startswith(b"INFO ")
        self._send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
                   + f"SUB {self.inbox} 1\r\nPING\r\n".encode())
        assert self.lines.readline() == b"PONG\r\n"

    def close(self):
        self.lines.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _send(self, data):
        self.socket.sendall(data)

    def _answer(self):
        return self._message()[1]

    def await_message(self):
        """What comes next on our inbox: the subject to answer to."""
        return self._message()[0]

    def _message(self):
        words, _, payload = self._read()
        return words[3] if len(words) == (6 if words[0] == "HMSG" else 5) else None, payload

    def _read(self):
        """(words of its line, bytes of its headers, payload) of the next message on whatever we listen to."""
        while True:
            words = self.lines.readline().decode().split()
            if not words:
                raise ConnectionError("NATS is gone")
            if words[0] == "PING":
                self._send(b"PONG\r\n")
            elif words[0] in ("MSG", "HMSG"):
                whole, headers = int(words[-1]), int(words[-2]) if words[0] == "HMSG" else 0
                data = self.lines.read(whole + 2)[:whole]
                return words, data[:headers], data[headers:]

    def subscribe(self, subject, queue=""):
        """To plain messages, from now on: the server has it when this returns."""
        self._send(f"SUB {subject} {queue} 2\r\nPING\r\n".encode())
        assert self.lines.readline() == b"PONG\r\n"

    def read(self):
        """(subject, headers, payload) of the next one."""
        words, head, payload = self._read()
        lines = head.decode(errors="surrogateescape").split("\r\n")[1:]
        return words[1], dict(line.split(": ", 1) for line in lines if line), payload

    def send(self, subject, payload=b"", headers=None, reply=""):
        head = b""
        if headers:
            head = b"NATS/1.0\r\n" + b"".join(
                f"{name}: {value}\r\n".encode(errors="surrogateescape") for name, value in headers.items()) + b"\r\n"
        sizes = f"{len(head)} {len(head) + len(payload)}" if head else str(len(payload))
        verb = "HPUB" if head else "PUB"
        self._send(f"{verb} {subject} {reply} {sizes}\r\n".encode() + head + payload + b"\r\n")

    def request(self, subject, payload=b"", headers=None):
        self.send(subject, payload, headers, self.inbox)
        answer = json.loads(self._answer() or b'{"error": {"code": 503, "description": "nobody answers"}}')
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"].get("description"))
        return answer

    # ---- JetStream ----

    def api(self, what, **arguments):
        return self.request(f"$JS.API.{what}", json.dumps(arguments).encode() if arguments else b"")

    def publish(self, subject, payload, headers=None):
        """To a stream; its sequence there."""
        return self.request(subject, payload, headers)["seq"]

    def stream(self, name):
        return self.api(f"STREAM.INFO.{name}")

    def consumer(self, stream, name):
        return self.api(f"CONSUMER.INFO.{stream}.{name}")

    def message(self, stream, sequence):
        """(subject, headers, payload), or None where nothing is."""
        try:
            found = self.api(f"STREAM.MSG.GET.{stream}", seq=sequence)["message"]
        except Refused as refused:
            if refused.args[0] == 404:
                return None
            raise
        lines = base64.b64decode(found.get("hdrs", "")).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        return found["subject"], headers, base64.b64decode(found.get("data", ""))

    def messages(self, stream):
        """All of a stream, in its order; none where there is no stream."""
        try:
            state = self.stream(stream)["state"]
        except Refused as refused:
            if refused.args[0] == 404:
                return []
            raise
        found = (self.message(stream, sequence) for sequence in range(max(state["first_seq"], 1), state["last_seq"] + 1))
        return [message for message in found if message]
