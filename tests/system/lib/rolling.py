"""Load by clients that retry nothing, while the processes behind a balancer are replaced one after the other."""
import http.client
import json
import threading
import time

from .requests import Requests
from .wait import PATIENCE, eventually
from .wire import TIMEOUT


class KeepAlive(threading.Thread):
    """One client: the next request of each kind in turn, over one connection for as long as the server leaves it open. A request
    that fails in any way is kept in `failed`, and not repeated."""

    def __init__(self, ports, bearer, kinds=None, pause_s=0.0):
        super().__init__(daemon=True)
        self.ports, self.bearer, self.pause_s = ports, bearer, pause_s
        self.connections = {}
        self.kind = None
        requests = Requests(self.send)
        self.requests = [(name, each) for name, each in requests.all() if kinds is None or name in kinds]
        self.answered, self.connected, self.failed = 0, 0, []
        self.ends = threading.Event()

    def send(self, method, path, body, headers):
        port = self.ports(self.kind)
        connection = self.connections.setdefault(port, http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT))
        headers = {"Authorization": f"Bearer {self.bearer}", **headers}
        if body is not None:
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        self.connected += connection.sock is None
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def run(self):
        while not self.ends.is_set():
            for self.kind, request in self.requests:
                try:
                    (status, body), wanted = request()
                    if status not in wanted:
                        self.failed.append((self.kind, status, body))
                except (OSError, http.client.HTTPException) as error:
                    self.failed.append((self.kind, repr(error)))
                    self.connections.clear()
                self.answered += 1
                if self.pause_s:
                    time.sleep(self.pause_s)


class Load:
    """Several of them; the end is the check."""

    def __init__(self, clients):
        self.clients = clients

    def answered(self):
        return sum(client.answered for client in self.clients)

    def failed(self):
        return [failure for client in self.clients for failure in client.failed]

    def goes_on(self):
        """Every client has had another whole round."""
        before = [client.answered + len(client.requests) for client in self.clients]
        eventually(lambda: all(client.answered > past for client, past in zip(self.clients, before)) or self.failed())
        assert not self.failed(), self.failed()[:10]

    def __enter__(self):
        for client in self.clients:
            client.start()
        self.goes_on()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.ends.set()
        for client in self.clients:
            client.join(PATIENCE)


def replace(server, balancer, load):
    """One process by its successor, as a Deployment does: told to stop, gone, started, ready, in the balancer again."""
    server.stop()
    load.goes_on()
    server.start()
    eventually(lambda: server in balancer.ready)
    load.goes_on()
