"""Clients that make a server hold memory: each kind on a thread of its own, until stop()."""
import contextlib
import json
import resource
import socket
import threading
import time

from lib.wait import PATIENCE, eventually
from lib.wire import request_bytes

ADDRESS = "127.0.1.1"  # thousands of their ports are not taken from servers that listen on 127.0.0.1
LATE = 0.05  # between two looks at the clients of one kind


def raise_descriptors():
    """Thousands of clients in one process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bearer_header(bearer, **more):
    return {"Authorization": f"Bearer {bearer}", **more}


class Crowd(threading.Thread):
    """`count` clients, each of which sends a request and does not do what is expected of it then. One that was answered or cut
    begins again: the pressure stays. What goes wrong with their connections does not matter, anything else does."""

    def __init__(self, port, count, make_request, read_bytes=0):
        super().__init__(daemon=True)
        self.port, self.count, self.make_request, self.read_bytes = port, count, make_request, read_bytes
        self.clients, self.failure = [], None
        self.stopping = threading.Event()

    def run(self):
        try:
            while not self.stopping.is_set():
                self.look()
                self.stopping.wait(LATE)
        except BaseException as failure:  # pylint: disable=broad-except
            self.failure = failure
        finally:
            for client in self.clients:
                client.close()

    def look(self):
        for client in self.clients:
            client.step(self.read_bytes)
        self.clients = [client for client in self.clients if client.socket]
        for _ in range(min(self.count - len(self.clients), 1 + self.count // 10)):
            if self.stopping.is_set():
                return
            self.clients.append(Holder(self.port, self.make_request()))

    def stop(self):
        self.stopping.set()
        self.join()
        if self.failure:
            raise self.failure


class Holder:
    """One of them. It never waits: what the socket does not take is sent later."""

    def __init__(self, port, data):
        self.socket, self.unsent = socket.socket(), data
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(5)
        try:
            self.socket.bind((ADDRESS, 0))
            self.socket.connect(("127.0.0.1", port))
            self.socket.setblocking(False)
        except OSError:
            self.close()

    def step(self, read_bytes):
        """Ends the client when it was cut, and where it is to read nothing, when it was answered."""
        try:
            with contextlib.suppress(BlockingIOError):
                if self.unsent:
                    self.unsent = self.unsent[self.socket.send(self.unsent):]
            if read_bytes >= 0 and (not self.socket.recv(read_bytes or 1) or not read_bytes):
                self.close()
        except BlockingIOError:
            pass
        except (OSError, AttributeError):
            self.close()

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None


class Loop(threading.Thread):
    """Calls a function again and again. Refusals are for the function to expect."""

    def __init__(self, step):
        super().__init__(daemon=True)
        self.step, self.failure = step, None
        self.stopping = threading.Event()

    def run(self):
        try:
            while not self.stopping.is_set():
                self.step()
        except BaseException as failure:  # pylint: disable=broad-except
            self.failure = failure

    stop = Crowd.stop


def half_a_body(tenant, bearer, size):
    """A POST whose body does not arrive whole."""
    head = bearer_header(bearer, **{"Content-Type": "application/json", "Content-Length": size + 1})
    return request_bytes("POST", f"/v1/tenants/{tenant}/updates", head) + b" " * size


def half_a_head(size):
    return b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * size


def update(tenant, bearer, body):
    data = json.dumps(body).encode()
    head = bearer_header(bearer, **{"Content-Type": "application/json"})
    return request_bytes("POST", f"/v1/tenants/{tenant}/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000", head, data)


class Resident(threading.Thread):
    """The most anonymous memory that a process had, in bytes."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.path, self.most = f"/proc/{pid}/status", 0
        self.stopping = threading.Event()

    def now(self):
        with open(self.path, encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))

    def run(self):
        while not self.stopping.is_set():
            self.most = max(self.most, self.now())
            time.sleep(0.02)

    def stop(self):
        self.stopping.set()
        self.join()


def sample(server):
    """The metrics, or None when there is no room for the request."""
    try:
        return server.metrics()
    except (OSError, ValueError, EOFError):
        return None


def dictionaries(server):
    """What they take, each twice: while one is loaded, the version before it is there too."""
    samples = eventually(lambda: sample(server), timeout=4 * PATIENCE)
    return 2 * sum(value for name, value in samples.items() if name.startswith("dict_memory_bytes"))
