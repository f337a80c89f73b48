"""R7, R15, C7 under attack: readers at the barrier while versions, configurations, databases and clients come and go."""
import random
import signal
import threading
import time

import pytest

from lib.config import base_config, merge
from lib.postgres import freeze_cluster, signal_all
from lib.refdata import item_path, migrated, own_refdata_db, path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

STILL = {"sweepInterval": "1h", "driftCheckInterval": "1h"}
FAR = 10 ** 12


class Attack:
    """Threads that go on until the block ends, and what they found wrong."""

    def __init__(self):
        self.ended, self.wrong, self.threads = threading.Event(), [], []

    def go_on(self, step, times=1):
        def run():
            try:
                while not self.ended.is_set():
                    step()
            except Exception as error:  # noqa: BLE001: told by the test's own thread
                self.wrong.append(repr(error))

        self.threads += [threading.Thread(target=run) for _ in range(times)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        assert not self.wrong, self.wrong[:3]


def visitor(server, bearer, code):
    """Demands what does not exist and leaves without waiting for the answer."""

    def step():
        with server.raw() as connection:
            for _ in range(random.randrange(1, 4)):
                connection.send(request_bytes("GET", path(code, random.choice(["/items/a", "/all", "/version"])),
                                              {"Authorization": f"Bearer {bearer}",
                                               "X-Min-Version": str(random.randrange(2, FAR))}))
            time.sleep(random.random() / 50)

    return step


def reader(server, bearer, code, committed, allowed):
    """Demands the newest committed version: an answer has it, whatever else may be refused."""
    client = server.client(bearer)

    def step():
        demanded = committed[0]
        answer = client.get(path(code, random.choice(["/items/a", "/items?keys=a,b", "/all", "/version"])),
                            X_Min_Version=str(demanded))
        assert answer.status in allowed, (answer.status, answer.body)
        if answer.status == 200:
            assert int(answer.headers["x-dict-version"]) >= demanded

    return step


@pytest.mark.tsan
def test_r7_storms_of_made_up_versions_and_clients_that_leave(serve, refdata_db, token):
    write_builtin(refdata_db, "B", {"a": 1, "b": 1}, version=1)
    configuration = pod("B", cache=STILL, http={"loops": 2})
    configuration["refdata"]["barrier"] = {"waitMs": 20}
    server = serve(refdata_db, configuration)
    bearer, committed = token(), [1]

    def write():
        write_builtin(refdata_db, "B", {"a": committed[0] + 1, "b": committed[0] + 1}, version=committed[0] + 1)
        committed[0] += 1
        time.sleep(0.02)

    attack = Attack()
    attack.go_on(write)
    attack.go_on(visitor(server, bearer, "B"), 4)
    for _ in range(3):
        attack.go_on(reader(server, bearer, "B", committed, {200, 503}))
    with attack:
        eventually(lambda: committed[0] > 40 or attack.wrong)
    client = server.client(bearer)

    def newest():
        answer = client.get(item_path("B", "a"), X_Min_Version=str(committed[0]))
        return answer.status == 200 and answer.json()["payload"]

    assert eventually(newest) == committed[0]  # the storm has used up this second's questions
    server.stop(timeout=30)


@pytest.mark.tsan
def test_r15_configurations_change_under_readers_at_the_barrier(serve, postgres, refdata_db, jwks_path, tmp_path, token):
    """Moved to another database and back, removed, refused: nobody is dropped, nobody sees less than demanded."""
    (tmp_path / "other").mkdir()
    other = migrated(postgres, jwks_path, tmp_path / "other")
    for database in (refdata_db, other):
        write_builtin(database, "B", {"a": 1, "b": 1}, version=1)
    server = serve(refdata_db, pod("B", cache=STILL, http={"loops": 2}))
    bearer, committed = token(), [1]

    def two(where):
        changes = pod({"code": "B", "postgres": where}, cache=STILL, http={"loops": 2})
        base = base_config(refdata_db, jwks_path)["refdata"]["postgres"]
        first = base if isinstance(base, dict) else base[0]
        changes["refdata"]["postgres"] = [{**first, "name": "here"},
                                          {**first, "name": "there", "jdbcUrl": other.jdbc_url}]
        return merge(base_config(refdata_db, jwks_path), changes)

    one = merge(base_config(refdata_db, jwks_path), pod("B", cache=STILL, http={"loops": 2}))
    none = merge(base_config(refdata_db, jwks_path), pod("C", cache=STILL, http={"loops": 2}))
    bad = {"code": "B", "loadSql": "select nothing from nowhere where tenant_id = :tenantId"}
    refused = merge(base_config(refdata_db, jwks_path), pod(bad, cache=STILL, http={"loops": 2}))
    attack = Attack()
    attack.go_on(visitor(server, bearer, "B"), 3)
    for _ in range(3):
        attack.go_on(reader(server, bearer, "B", committed, {200, 404, 409, 503}))
    with attack:
        for configuration in [two("there"), two("here"), one, none, refused, two("there"), one] * 2:
            before = len(server.logs(event="config_reloaded"))
            server.write_config(configuration)
            server.sighup()
            eventually(lambda: len(server.logs(event="config_reloaded")) > before or attack.wrong)
    eventually(lambda: server.client(bearer).get(item_path("B", "a"), X_Min_Version="1").status == 200)
    server.stop(timeout=30)
    other.drop()


def test_r7_a_frozen_postgresql_holds_nobody_at_the_barrier(serve, own_postgres, own_refdata_db, jwks_path, token):
    """Everybody is told in time; then the database is taken out of the configuration, and the process stopped."""
    write_builtin(own_refdata_db, "B", {"a": 1}, version=1)
    configuration = pod("B", cache=STILL, http={"loops": 2, "stopTimeout": "1s"})
    configuration["refdata"]["barrier"] = {"waitMs": 50, "timeout": "500ms"}
    server = serve(own_refdata_db, configuration)
    bearer = token()
    assert server.client(bearer).get(item_path("B", "a")).status == 200
    frozen = freeze_cluster(own_postgres)
    try:
        waiting = [server.raw() for _ in range(100)]
        for connection in waiting:
            connection.send(request_bytes("GET", item_path("B", "a"), {"Authorization": f"Bearer {bearer}",
                                                                       "X-Min-Version": "2"}))
        assert {connection.read_response().status for connection in waiting} == {503}
        assert server.client(bearer).get(item_path("B", "a"), X_Min_Version="1").status == 200
        gone = merge(base_config(own_refdata_db, jwks_path), pod(cache=STILL, http={"stopTimeout": "1s"}))
        gone["refdata"]["postgres"] = {**gone["refdata"]["postgres"], "jdbcUrl": own_refdata_db.jdbc_url + "?connectTimeout=1"}
        for _ in range(3):
            server.client(bearer).get(item_path("B", "a"), X_Min_Version="3")
        server.write_config(gone)
        server.sighup()
        began = time.monotonic()
        eventually(lambda: server.logs(event="config_reloaded"))
        server.stop(timeout=30)
        assert time.monotonic() - began < 15
    finally:
        signal_all(frozen, signal.SIGCONT)
