"""C8, R17, R21: what a pod says and does while PostgreSQL is away."""
import json
import signal
import time

import pytest

from lib.postgres import freeze_cluster, signal_all
from lib.refdata import item_path, own_refdata_db, path, pod, refdata_db, slow_dictionary, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes


def health(client, kind=""):
    return client.get("/actuator/health" + kind)


def component(client, name="postgres:main"):
    return health(client).json()["components"][name]["status"]


def test_health_lists_every_role_and_component(serve, refdata_db):
    """C8: UP with 200, no token needed, nothing cached; liveness is a loop that answers."""
    client = serve(refdata_db, pod("D", "E")).client()
    answer = health(client)
    body = answer.json()
    assert (answer.status, body["status"]) == (200, "UP")
    assert body["roles"]["query"]["status"] == "UP"
    assert {"postgres:main", "dictionary:D", "dictionary:E", "auth:keys"} <= set(body["components"])
    assert {c["status"] for c in body["components"].values()} == {"UP"}
    assert answer.headers["cache-control"] == "no-store"
    assert (health(client, "/liveness").status, health(client, "/liveness").json()) == (200, {"status": "UP"})
    assert health(client, "/readiness").json()["status"] == "UP"
    assert health(client, "/nothing").status == 404


def test_a_pod_that_starts_while_postgresql_is_down_says_so_and_comes_up_by_itself(serve, own_postgres, own_refdata_db,
                                                                                   token):
    """R17, C8: readiness 503, liveness 200; a read is 503 with Retry-After; then all is well."""
    write_builtin(own_refdata_db, "D", {"a": 1}, version=1)
    own_postgres.stop()
    changes = pod("D", "E", cache={"preload": ["demo/D"], "firstReadTimeout": "300ms"})
    server = serve.make(own_refdata_db, changes).start(ready=False)
    client = server.client(token())
    eventually(lambda: _answers(client))
    assert health(client, "/readiness").status == 503
    assert health(client).json()["roles"]["query"]["status"] == "DOWN"
    assert health(client, "/liveness").status == 200
    for code in "DE":
        answer = client.get(item_path(code, "a"))
        assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE")
        assert 0 < int(answer.headers["retry-after"]) <= 60
    eventually(lambda: server.logs(event="database_unavailable"))
    own_postgres.start()
    eventually(server.is_ready)
    assert client.get(item_path("D", "a")).status == 200
    eventually(lambda: client.get(path("E", "/version")).status == 200)  # a first read, with 300 ms for it
    assert server.logs(event="database_available")
    assert len(server.logs(event="database_unavailable")) == 1


def _answers(client):
    try:
        return health(client, "/liveness").status == 200
    except OSError:
        return False


def test_a_pod_comes_up_by_itself_however_seldom_it_compares_versions(serve, own_postgres, own_refdata_db):
    """R17: a failed look is repeated soon."""
    own_postgres.stop()
    server = serve.make(own_refdata_db, pod("D", cache={"sweepInterval": "1h"})).start(ready=False)
    eventually(lambda: server.logs(event="database_unavailable"))
    own_postgres.start()
    eventually(server.is_ready)


def test_reads_go_on_while_postgresql_is_dead_and_freshness_comes_back_with_it(serve, own_postgres, own_refdata_db, token):
    """R21, C8: a pod with loaded caches stays ready; the component says DOWN; killed hard, twice."""
    write_builtin(own_refdata_db, "D", {"a": 1}, version=1)
    server = serve(own_refdata_db, pod("D", "COLD", cache={"firstReadTimeout": "300ms"}))
    client = server.client(token())
    eventually(lambda: client.get(item_path("D", "a")).status == 200)  # a first read, with 300 ms for it
    assert client.get(item_path("D", "a")).json()["payload"] == 1
    for round_number in [2, 3]:
        own_postgres.stop("immediate")
        eventually(lambda: component(client) == "DOWN")
        answer = health(client, "/readiness")
        assert (answer.status, answer.json()["status"], answer.json()["roles"]["query"]["status"]) == (200, "UP", "UP")
        for _ in range(100):
            assert client.get(item_path("D", "a")).headers["x-data-source"] == "memory"
        cold = client.get(item_path("COLD", "a"))
        assert (cold.status, cold.code) == (503, "DICTIONARY_UNAVAILABLE") and "retry-after" in cold.headers
        own_postgres.start()
        write_builtin(own_refdata_db, "D", {"a": round_number}, version=round_number)
        eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == round_number)
        eventually(lambda: component(client) == "UP")
    eventually(lambda: client.get(path("COLD", "/version")).status == 200)  # within 300 ms, on a busy machine by a second try


@pytest.mark.tsan
def test_a_postgresql_that_hangs_is_survived_like_a_dead_one(serve, own_postgres, own_refdata_db, token):
    """R21: every outside call has a timeout; a first read is answered within its own."""
    write_builtin(own_refdata_db, "D", {"a": 1}, version=1)
    changes = pod("D", "COLD", cache={"firstReadTimeout": "300ms"})
    changes["refdata"]["postgres"] = {"connectTimeout": "500ms", "statementTimeout": "500ms"}
    server = serve(own_refdata_db, changes)
    client = server.client(token())
    eventually(lambda: client.get(item_path("D", "a")).status == 200)
    frozen = freeze_cluster(own_postgres)
    try:
        began = time.monotonic()
        cold = client.get(item_path("COLD", "a"))
        assert (cold.status, cold.code) == (503, "DICTIONARY_UNAVAILABLE") and "retry-after" in cold.headers
        assert time.monotonic() - began < 20
        eventually(lambda: component(client) == "DOWN")
        for _ in range(100):
            assert client.get(item_path("D", "a")).status == 200
        assert health(client, "/readiness").status == 200
    finally:
        signal_all(frozen, signal.SIGCONT)
    write_builtin(own_refdata_db, "D", {"a": 2}, version=2)
    eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == 2)
    eventually(lambda: component(client) == "UP")
    eventually(lambda: client.get(path("COLD", "/version")).status == 200)  # within 300 ms, on a busy machine by a second try


UPDATE = {"eventId": "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e78", "dictCode": "D", "eventType": "DELTA",
          "items": [{"key": "a", "op": "UPSERT", "payload": 1}]}


def test_stopping_does_not_wait_for_a_postgresql_that_hangs(serve, own_postgres, own_refdata_db, token):
    """C7, R21: SIGTERM while a load and a commit are stuck."""
    server = serve(own_refdata_db, pod("D", "COLD", http={"stopTimeout": "200ms"}, cache={"firstReadTimeout": "1h"}))
    frozen = freeze_cluster(own_postgres)
    try:
        connection = server.raw()
        connection.send(request_bytes("GET", item_path("COLD", "a"), {"Authorization": f"Bearer {token()}"}))
        posting = server.raw()
        posting.send(request_bytes("POST", "/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT",
                                   {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"},
                                   json.dumps(UPDATE).encode()))
        time.sleep(0.3)  # both wait for PostgreSQL
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4.5  # refdata's own grace of 5 s ends with stopTimeout
    finally:
        signal_all(frozen, signal.SIGCONT)


def test_one_database_of_two_may_be_dead(serve, own_postgres, own_refdata_db, refdata_db, token):
    """R15, C8: the other's dictionaries are served, also after a start without it."""
    write_builtin(refdata_db, "HERE", {"a": 1}, version=1)
    own_postgres.stop()
    changes = pod("HERE", {"code": "THERE", "postgres": "there"},
                  cache={"preload": ["demo/HERE", "demo/THERE"], "firstReadTimeout": "200ms"})
    changes["refdata"]["postgres"] = [
        {"name": "here", "jdbcUrl": refdata_db.jdbc_url, "username": refdata_db.user,
         "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"},
        {"name": "there", "jdbcUrl": own_refdata_db.url},
    ]
    server = serve(refdata_db, changes)
    client = server.client(token())
    assert client.get(item_path("HERE", "a")).status == 200
    assert client.get(item_path("THERE", "a")).status == 503
    eventually(lambda: component(client, "postgres:there") == "DOWN")
    assert component(client, "postgres:here") == "UP"
    own_postgres.start()
    eventually(lambda: client.get(path("THERE", "/version")).status == 200)


def test_connections_killed_in_the_middle_of_a_load_lose_nothing(serve, refdata_db, token):
    """R13, R21: the load is retried; who waits hears 503 at worst, never half a dictionary."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = serve(refdata_db, pod(slow_dictionary("S", 0.5), "D", cache={"preload": ["demo/S"]}))
    client = server.client(token())
    for version in range(1, 4):
        refdata_db.query("insert into refdata.dictionary_meta values ('demo', 'S', %s, null, now())"
                         " on conflict (tenant_id, dict_code) do update set version = excluded.version", (version,))
        eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(0.5)%%'"
                                            " and state = 'active' and pid <> pg_backend_pid()"))
        refdata_db.query("select pg_terminate_backend(pid) from pg_stat_activity"
                         " where datname = current_database() and pid <> pg_backend_pid()")
        assert client.get(item_path("S", "k")).json()["payload"] == "demo"
        eventually(lambda: client.get(item_path("S", "k")).headers["x-dict-version"] == str(version))
    assert server.logs(event="dictionary_load_failed")
