"""The reply to a commit is lost with its connection (R1): the update is committed, and applied without waiting for a poll."""
import contextlib
import socket
import threading

from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta, snapshot, status_path, updates_path


class Proxy:
    """Between the program and PostgreSQL. A connection that sends `marker` gets no reply any more: once the server has answered,
    it is closed."""

    def __init__(self, port):
        self.port, self.marker, self.cut = port, None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                front, _ = self.listener.accept()
            except OSError:
                return
            back, is_cut = socket.create_connection(("127.0.0.1", self.port)), threading.Event()
            threading.Thread(target=self.forward, args=(front, back, is_cut), daemon=True).start()
            threading.Thread(target=self.back, args=(front, back, is_cut), daemon=True).start()

    def forward(self, front, back, is_cut):
        try:
            while data := front.recv(1 << 16):
                if self.marker and self.marker in data:
                    self.marker, self.cut = None, self.cut + 1
                    is_cut.set()
                back.sendall(data)
            back.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    @staticmethod
    def back(front, back, is_cut):
        try:
            while data := back.recv(1 << 16):
                if is_cut.is_set():
                    back.settimeout(0.3)  # all of it runs at the server
                else:
                    front.sendall(data)
        except OSError:
            pass
        for side in (front, back):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)  # close() would wait for the other thread's recv()
            side.close()


def test_an_update_whose_reply_was_lost_is_applied_at_once(serve, refdata_db, token):  # noqa: F811
    proxy = Proxy(refdata_db.server.port)
    changes = pod("B", bus={"postgres": {"pollInterval": "1h"}})
    changes["refdata"]["postgres"] = {"jdbcUrl": f"jdbc:postgresql://127.0.0.1:{proxy.listener.getsockname()[1]}/{refdata_db.name}"}
    server = serve(refdata_db, changes)
    client = server.client(token())
    for body in (delta("B", {"a": 0}), snapshot("B", {"a": 1})):
        assert commit(client, body).status == 200
    body = snapshot("B", {"a": 2})  # not applied by its own commit
    proxy.marker = body["eventId"].encode()
    assert client.post(updates_path("WAIT_COMMIT"), body).status in (200, 202)
    assert proxy.cut == 1
    eventually(lambda: client.get(status_path(body["eventId"])).json().get("committedVersion") == 3, timeout=20)
    proxy.listener.close()
