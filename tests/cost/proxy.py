"""A proxy between the program and PostgreSQL that counts what passes: python3 proxy.py PORT COUNTS.

Prints the port it listens on; connections are forwarded to 127.0.0.1:PORT, counts are 64-bit numbers in the file COUNTS, in
the order of NAMES. It understands as much of the protocol (version 3, no encryption) as counting needs.

What the server answers is held back until every Sync that the program has sent is answered, and then forwarded at once. So the
program reads once per round trip, however the machine cuts the server's output into pieces, and its system calls can be counted.

A byte on standard input is a command, the same byte is the answer on standard output: h holds back every answer, g stops that.
"""
import mmap
import os
import selectors
import socket
import struct
import sys

NAMES = ("round trips", "statements", "transactions", "notices")
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
HELD_BYTES_MAX = 1 << 20


class Counts:
    """Numbers in a file that another process reads."""

    def __init__(self, path, names=NAMES):
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 8 * len(names))
        self.names = names

    def add(self, name):
        offset = 8 * self.names.index(name)
        struct.pack_into("=Q", self.map, offset, struct.unpack_from("=Q", self.map, offset)[0] + 1)

    def read(self):
        return dict(zip(self.names, struct.unpack_from(f"={len(self.names)}Q", self.map)))


class Link:
    """One connection of the program and the one to the server that belongs to it."""

    def __init__(self, front, target, counts):
        self.front, self.target, self.counts = front, target, counts
        self.back = None
        self.sent, self.received = b"", b""  # not yet whole messages
        self.held = b""  # for the program, while answers are due
        self.due = 0  # Syncs and Queries not answered yet
        self.in_transaction = False  # something ran since the last transaction's end
        self.is_held = False

    # ---- from the program ----

    def from_front(self, data):
        self.sent += data
        while self.back is None and self._startup():
            pass
        if self.back is None:
            return
        forward = self.sent
        while (message := self._message("sent")) is not None:
            if message[:1] in b"SQF":
                self.due += 1
        self.back.sendall(forward[:len(forward) - len(self.sent)])

    def _startup(self):
        """One message without a type: encryption is declined here, anything else is for the server. True when one was handled."""
        if len(self.sent) < 8:
            return False
        length, code = struct.unpack("!II", self.sent[:8])
        if len(self.sent) < length:
            return False
        message, self.sent = self.sent[:length], self.sent[length:]
        if code in (SSL_REQUEST, GSS_REQUEST):
            self.front.sendall(b"N")
            return True
        self.back = socket.create_connection(("127.0.0.1", self.target))
        self.back.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.back.sendall(message)
        if code != CANCEL_REQUEST:
            self.due = 1  # the first ReadyForQuery answers the startup
        return True

    def _message(self, buffer):
        """Takes one whole typed message off a buffer, or None."""
        data = getattr(self, buffer)
        if len(data) < 5:
            return None
        size = 1 + struct.unpack_from("!I", data, 1)[0]
        if len(data) < size:
            return None
        setattr(self, buffer, data[size:])
        return data[:size]

    # ---- from the server ----

    def from_back(self, data):
        self.received += data
        while (message := self._message("received")) is not None:
            self.held += message
            self._count(message)
        self.release_if_due()

    def release_if_due(self):
        if self.held and not self.is_held and (self.due == 0 or len(self.held) > HELD_BYTES_MAX):
            self._release()

    def _release(self):
        held, self.held = self.held, b""
        self.front.sendall(held)

    def _count(self, message):
        kind = message[:1]
        if kind in b"RG":  # authentication and COPY are conversations of their own
            self._release()
        elif kind == b"A":
            self.counts.add("notices")
        elif kind in b"CEIs":  # done, failed, empty, suspended
            self.counts.add("statements")
            self.in_transaction = True
            if kind == b"C" and message[5:-1] in (b"COMMIT", b"ROLLBACK"):
                self._end_transaction()
        elif kind == b"Z":
            self.due -= 1
            if message[5:6] == b"I" and self.in_transaction:
                self._end_transaction()
            if self.due == 0:
                self.counts.add("round trips")

    def _end_transaction(self):
        self.in_transaction = False
        self.counts.add("transactions")


class Proxy:
    """All links, in one loop."""

    def __init__(self, target, counts):
        self.target, self.counts = target, counts
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.command)
        self.links = []

    def accept(self):
        front, _ = self.listener.accept()
        front.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(front, self.target, self.counts)
        self.links.append(link)
        self.selector.register(front, selectors.EVENT_READ, lambda: self.handle(link, "front"))

    def command(self):
        command = os.read(sys.stdin.fileno(), 1)
        if not command:
            sys.exit(0)
        for link in self.links:
            link.is_held = command == b"h"
            link.release_if_due()
        os.write(sys.stdout.fileno(), command)

    def handle(self, link, side):
        if link not in self.links:
            return  # closed in the same turn
        had_back = link.back is not None
        try:
            data = getattr(link, side).recv(1 << 16)
            if data:
                (link.from_front if side == "front" else link.from_back)(data)
        except OSError:
            data = b""
        if link.back is not None and not had_back:
            self.selector.register(link.back, selectors.EVENT_READ, lambda: self.handle(link, "back"))
        if not data:
            self.close(link)

    def close(self, link):
        self.links.remove(link)
        for end in (link.front, link.back):
            if end is not None:
                self.selector.unregister(end)
                end.close()

    def run(self):
        while True:
            for key, _ in self.selector.select():
                key.data()


def main(target, path):
    proxy = Proxy(int(target), Counts(path))
    print(proxy.listener.getsockname()[1], flush=True)
    proxy.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
