"""PostgreSQL dies or goes away for a while: reads from memory go on, no update is accepted that is not committed, and
everything comes back by itself (R1, R13, R17, R21)."""
import time

from cluster import TOGETHER, Cluster
from lib.refdata import item_path, own_refdata_db, path  # noqa: F401
from lib.wait import eventually
from lib.writers import Threads, commit, delta, status_path, updates_path
from workload import CODES, Workload, audit

KEY = "kept"


class Readers:
    """Reads from memory at every server; any answer but the item is a failure."""

    def __init__(self, servers, token):
        self.servers, self.token = servers, token
        self.answers = [0] * len(servers)

    def start(self, threads):
        for number in range(len(self.servers)):
            threads.add(self._read, number)

    def _read(self, stopping, number):
        with self.servers[number].client(self.token) as client:
            while not stopping.wait(0.002):
                for where in (item_path("PLAIN", KEY), path("PLAIN", "/version"), path("PLAIN", f"/items?keys={KEY}")):
                    answer = client.get(where)
                    assert (answer.status, answer.headers["x-data-source"]) == (200, "memory"), answer.body
                    self.answers[number] += 1


def start_cluster(serve, database, token):
    """Servers that hold all dictionaries, with an item that nobody changes."""
    cluster = Cluster(serve, database, TOGETHER).start()
    for server in cluster.servers:
        with server.client(token) as client:
            answer = commit(client, delta("PLAIN", {KEY: {"is": "here"}}))
            assert answer.status == 200, answer.body
            for code in CODES:
                assert client.get(path(code, "/version")).status == 200
            eventually(lambda: client.get(item_path("PLAIN", KEY)).status == 200)
    return cluster


def test_a_crash_of_postgres_under_load_loses_and_repeats_nothing(serve, own_refdata_db, token, whole):  # noqa: F811
    bearer = token("demo", ttl=3600)
    cluster = start_cluster(serve, own_refdata_db, bearer)
    workload, readers = Workload(cluster.servers, bearer), Readers(cluster.servers, bearer)
    with Threads() as threads:
        workload.start(threads)
        readers.start(threads)
        for _ in range(8 if whole else 2):
            accepted = len(workload.sent)
            eventually(lambda: threads.errors or len(workload.sent) > accepted + 50)
            own_refdata_db.server.restart("immediate")
        accepted = len(workload.sent)
        eventually(lambda: threads.errors or len(workload.sent) > accepted + 50)
    audit(own_refdata_db, workload, cluster.servers, bearer)


def test_without_postgres_reads_go_on_and_nothing_is_accepted(serve, own_refdata_db, token, whole):  # noqa: F811
    bearer = token("demo", ttl=3600)
    cluster = start_cluster(serve, own_refdata_db, bearer)
    workload, readers = Workload(cluster.servers, bearer), Readers(cluster.servers, bearer)
    refused = []
    with Threads() as threads:
        workload.start(threads)
        readers.start(threads)
        eventually(lambda: threads.errors or len(workload.sent) > 50)
        own_refdata_db.server.stop("fast")
        before = list(readers.answers)
        deadline = time.monotonic() + (10 if whole else 3)
        with cluster.servers[0].client(bearer) as client:
            while time.monotonic() < deadline and not threads.errors:
                for mode in ("ASYNC", "WAIT_COMMIT"):
                    body = delta("PLAIN", {"lost": 1})
                    answer = client.post(updates_path(mode), body)
                    assert answer.status == 503 and answer.headers["retry-after"], (answer.status, answer.body)
                    refused.append(body["eventId"])
        assert all(now > then for now, then in zip(readers.answers, before)), "reads from memory stopped"
        own_refdata_db.server.start()
        accepted = len(workload.sent)
        eventually(lambda: threads.errors or len(workload.sent) > accepted + 50)
    audit(own_refdata_db, workload, cluster.servers, bearer)
    assert refused
    with cluster.servers[1].client(bearer) as client:
        for event_id in refused:
            assert client.get(status_path(event_id)).code == "UNKNOWN_UPDATE"
        assert client.get(item_path("PLAIN", "lost")).code == "ITEM_NOT_FOUND"
