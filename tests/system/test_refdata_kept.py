"""C6: what readers keep in memory of versions that are not current is bounded, whether the pod held them or read them from the primary."""
import contextlib

import pytest

from lib.refdata import item_path, make_table, path, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes
from test_http_pressure import reader

pytestmark = pytest.mark.roles("query")

TENANT = "t1"
KEYS = 40
VERSIONS, REQUESTS = (f'freshet_memory_used_bytes{{account="{name}"}}' for name in ("versions", "requests"))
REFUSED = 'freshet_memory_refused_total{account="versions"}'
MIB = 1024 * 1024
# A load waits for the table `gate`; keys are read from the primary at any time.
GATED = {"code": "T", "loadSql": "select t.k, t.v from t left join gate on true where t.tenant_id = :tenantId",
         "loadKeysSql": "select k, v from t where tenant_id = :tenantId and k = any(:keys)"}


def small_pod(*dictionaries, **barrier):
    settings = pod(*dictionaries, cache={"sweepInterval": "1h", "driftCheckInterval": "1h"}, limits={"memory": 64 * MIB},
                   http={"loops": 1, "limits": {"writeTimeout": "1h"}})
    settings["refdata"]["barrier"] = barrier
    return settings


class Answer:
    """The answer of a client that reads no more than its head, until it is told to."""

    def __init__(self, server, bearer, where, **headers):
        self.socket = reader(server)
        self.socket.sendall(request_bytes("GET", where, {"Authorization": f"Bearer {bearer}", **headers}))
        text = b""
        while b"\r\n\r\n" not in text:
            text += self.socket.recv(512)
        head, _, body = text.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        self.received = len(body)

    def read_rest(self):
        """True: it is whole."""
        length = int(self.headers["content-length"])
        with contextlib.suppress(ConnectionResetError):
            while self.received < length and (piece := self.socket.recv(65536)):
                self.received += len(piece)
        return self.received == length


def kept(server):
    samples = server.metrics()
    return samples[VERSIONS], samples[REFUSED]


def test_readers_keep_so_much_of_what_was_read_from_the_primary_and_no_more(serve, refdata_db, token):
    make_table(refdata_db, "t")
    refdata_db.query("create table gate()")
    refdata_db.query("insert into t select %s, 'k' || i, to_jsonb(repeat('x', 20000)) from generate_series(1, %s) i", (TENANT, KEYS))
    set_version(refdata_db, "T", 1, TENANT)
    server = serve(refdata_db, small_pod(GATED, waitMs=20))
    bearer = token(TENANT)
    client = server.client(bearer)
    assert client.get(item_path("T", "k1", TENANT)).status == 200
    several = path("T", "/items?keys=" + ",".join(f"k{number + 1}" for number in range(KEYS)), TENANT)
    answers = []
    with contextlib.ExitStack() as held:
        blocker = held.enter_context(contextlib.closing(refdata_db.connect()))
        blocker.autocommit = False
        blocker.cursor().execute("lock table gate in access exclusive mode")
        set_version(refdata_db, "T", 2, TENANT)
        for _ in range(40):
            answers.append(Answer(server, bearer, several, **{"X-Min-Version": "2"}))
            held.callback(answers[-1].socket.close)
            if answers[-1].status != 200:
                break
        refused = answers.pop()
        assert refused.status == 503 and refused.headers["retry-after"]
        assert len(answers) > 2 and {answer.headers["x-data-source"] for answer in answers} == {"postgres_fallback"}
        samples = server.metrics()
        assert samples[REFUSED] >= 1 and MIB < samples[VERSIONS] < 0.2 * samples["freshet_memory_limit_bytes"] + MIB
        # One item is copied into its answer: nothing is kept.
        one = client.request("GET", item_path("T", "k1", TENANT), headers={"X-Min-Version": "2"})
        assert (one.status, one.headers["x-data-source"]) == (200, "postgres_fallback")
        blocker.rollback()
        eventually(lambda: client.get(item_path("T", "k1", TENANT)).headers["x-dict-version"] == "2")
        # A version that was held and is kept by its readers makes the account full: they are cut when they read on.
        for version in range(3, 40):
            answers.append(Answer(server, bearer, path("T", "/all", TENANT), Accept="application/x-ndjson"))
            held.callback(answers[-1].socket.close)
            if answers[-1].status == 503:
                break
            before = kept(server)
            refdata_db.query("update t set v = to_jsonb(repeat(%s, 20000))", (chr(ord("a") + version % 26),))
            set_version(refdata_db, "T", version, TENANT)
            wanted = str(version)
            eventually(lambda: client.request("GET", item_path("T", "k1", TENANT), headers={"X-Min-Version": wanted}).status == 200)  # noqa: B023
            eventually(lambda: client.get(item_path("T", "k1", TENANT)).headers["x-dict-version"] == wanted)  # noqa: B023
            eventually(lambda: kept(server) != before)  # noqa: B023  # counted; or readers were cut, as the account is full
        assert answers.pop().status == 503
        assert not answers[0].read_rest()
    eventually(lambda: server.metrics()[VERSIONS] == 0)


def test_keys_of_requests_that_wait_are_charged_each_time_they_are_kept(serve, refdata_db, token):
    """In the request's head, in its arena, and in the message to the loop that answers, with the copy for the primary."""
    write_builtin(refdata_db, "B", {"a": 1}, 1, TENANT)
    settings = small_pod("B", waitMs=60_000)
    del settings["refdata"]["cache"]["sweepInterval"]
    settings["limits"]["memory"] = 512 * MIB
    settings["http"]["limits"]["target"] = settings["http"]["limits"]["headers"] = "64KiB"
    server = serve(refdata_db, settings)
    bearer = token(TENANT)
    assert server.client(bearer).get(item_path("B", "a", TENANT)).status == 200
    keys = ",".join(f"{number:050}" for number in range(900))
    before = server.metrics()[REQUESTS]
    with contextlib.ExitStack() as held:
        for _ in range(10):
            connection = held.enter_context(server.raw())
            connection.send(request_bytes("GET", path("B", "/items?keys=" + keys, TENANT),
                                          {"Authorization": f"Bearer {bearer}", "X-Min-Version": str(10**9)}))
        eventually(lambda: server.metrics()[REQUESTS] - before > 10 * (64 * 1024 + 3 * len(keys)))
    write_builtin(refdata_db, "B", {"a": 1}, 10**9, TENANT)  # nothing waits any more
    eventually(lambda: server.metrics()[REQUESTS] - before < 10 * 64 * 1024)
