"""Updates as tests send them: bodies of R8, a client that asks until it is answered, threads that keep what went wrong.

The patient client is what R1 expects of a careful sender: a lost connection or a 503 says nothing, so it sends the same
eventId again, to whichever server there is, until an answer says what became of it.
"""
import http.client
import itertools
import threading
import time
import uuid

from .refdata import TENANT
from .wait import PATIENCE
from .wire import Client


def updates_path(mode="ASYNC", tenant=TENANT, timeout_ms=None):
    wait = f"&timeoutMs={timeout_ms}" if timeout_ms else ""
    return f"/v1/tenants/{tenant}/updates?consistencyMode={mode}{wait}"


def status_path(event_id, tenant=TENANT):
    return f"/v1/tenants/{tenant}/updates/{event_id}"


def delta(code, items, **more):
    """items by key; None deletes."""
    changes = [{"key": key, "op": "DELETE"} if payload is None else {"key": key, "op": "UPSERT", "payload": payload}
               for key, payload in items.items()]
    return {"eventId": str(uuid.uuid4()), "dictCode": code, "eventType": "DELTA", "items": changes, **more}


def snapshot(code, items, **more):
    return {"eventId": str(uuid.uuid4()), "dictCode": code, "eventType": "SNAPSHOT",
            "items": [{"key": key, "payload": payload} for key, payload in items.items()], **more}


def chunks(code, items, total):
    """One snapshot as `total` chunks, each with an eventId of its own."""
    keys, snapshot_id = list(items), str(uuid.uuid4())
    return [snapshot(code, {key: items[key] for key in keys[index::total]}, snapshotId=snapshot_id,
                     chunkIndex=index + 1, chunksTotal=total) for index in range(total)]


def commit(client, body, tenant=TENANT):
    """Sends an update until its commit is told, as a sender does whose wait ran out (202) or who met a busy server (503); returns
    that answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = client.post(updates_path("WAIT_COMMIT", tenant, timeout_ms=1000), body)
        if answer.status not in (202, 503) or time.monotonic() >= deadline:
            return answer


class Patient:
    """Sends to any of `servers` in turn; 503 and lost connections are asked again, anything else is the answer."""

    def __init__(self, servers, token, first=0):
        self.servers, self.token = servers, token
        self.turn = itertools.cycle(range(len(servers)))
        for _ in range(first % len(servers)):
            next(self.turn)
        self.clients = {}
        self.refusals = 0  # of 503 and lost connections

    def _client(self, index):
        """A connection to where that server is now: a restart may have moved it."""
        port = self.servers[index].port
        kept = self.clients.get(index)
        if kept is None or kept.connection.port != port:
            if kept:
                kept.close()
            kept = self.clients[index] = Client(port, self.token)
            kept.connection.timeout = 10
        return kept

    def attempt(self, method, path, body, headers):
        """One request to the next server, whatever comes of it."""
        return self._client(next(self.turn)).request(method, path, body, headers)

    def request(self, method, path, body=None, headers=None, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while True:
            try:
                answer = self.attempt(method, path, body, headers)
                if answer.status != 503:
                    return answer
                last = answer.body
            except (OSError, http.client.HTTPException) as error:
                last = error
            self.refusals += 1
            assert time.monotonic() < deadline, f"{method} {path}: no answer in {patience} s, at last {last!r}"
            time.sleep(0.02)

    def post(self, body, mode="ASYNC", **options):
        return self.request("POST", updates_path(mode), body, **options)

    def close(self):
        for client in self.clients.values():
            client.close()


class Threads:
    """Runs functions until stop(), which raises what any of them raised. Each is given the event that says so."""

    def __init__(self):
        self.stopping = threading.Event()
        self.errors = []
        self.threads = []

    def add(self, work, *args):
        def run():
            try:
                work(self.stopping, *args)
            except BaseException as error:  # pylint: disable=broad-except
                self.errors.append(error)
                self.stopping.set()
        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.stopping.set()
