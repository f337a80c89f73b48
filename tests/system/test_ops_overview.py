"""Issue 15, point 1: the overview, and what the operator's API shows while a database or a process does not answer."""
import contextlib
import json
import signal
import time
import uuid

from lib.freshet import run
from lib.ops import ALL, READ, get, items
from lib.outbox import leave
from lib.postgres import freeze_cluster, signal_all
from lib.refdata import own_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import PATIENCE, eventually

JSON = {"Content-Type": "application/json"}


@contextlib.contextmanager
def frozen(cluster):
    pids = freeze_cluster(cluster)
    try:
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def problems(client, query=""):
    return [(problem["severity"], problem["what"]) for problem in get(client, "overview" + query)["problems"]]


def test_a_healthy_process_has_no_problems_and_names_its_roles_and_databases(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"))
    with server.client(token("demo", scope=READ)) as client:
        eventually(lambda: get(client, "overview")["pods"] == {"up": 1, "gone": 0} and problems(client) == [])
        overview = get(client, "overview")
        (row,) = items(client, "pods")
    assert overview["pod_id"] == row["pod_id"] and overview["unavailable"] == []
    assert {"role": "query", "pods": 1, "up": 1} in overview["roles"] and {"role": "ops", "pods": 1, "up": 1} in overview["roles"]
    assert [(e["name"], e["database"], e["state"]) for e in overview["engines"] if e["name"] == "postgres"] == [
        ("postgres", "store", "up"), ("postgres", "main", "up")]
    assert overview["updates"] == {"pending": {"count": 0, "more": False}, "failed_last_hour": {"count": 0, "more": False},
                                   "oldest_pending_age_seconds": None}
    assert overview["outboxes"] == {"pending": 0, "in_flight": 0, "failed": 0, "more": False, "oldest_pending_age_seconds": None}
    assert overview["dead_letters"] == {"count": 0, "more": False} and overview["freshness_ms"] == {"p50": None, "p99": None}


def test_freshness_is_measured_over_the_updates_of_the_last_minute(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"))
    with server.client(token("demo", scope=READ)) as client:
        client.get("/v1/tenants/demo/dictionaries/FEATURE/version")
        for n in range(5):
            body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": "DELTA",
                    "items": [{"key": "k", "op": "UPSERT", "payload": n}]}
            assert client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT", json.dumps(body), **JSON).status == 200
        freshness = eventually(lambda: (f := get(client, "overview")["freshness_ms"])["p99"] and f)
        assert 0 < freshness["p50"] <= freshness["p99"] < 30000
        eventually(lambda: get(client, "overview")["writes_per_second"] > 0)


def test_what_waits_or_failed_is_counted_for_the_tenant_that_is_asked_for(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"), args=["--roles", "command,ops"])
    leave(refdata_db, "D", 1, 2, tenant="demo")
    refdata_db.query("update refdata.outbox_event set failed_at = now(), created_at = now() - interval '1 hour'")
    refdata_db.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, created_at)"
                     " values ('demo', gen_random_uuid(), 'FEATURE', 'FAILED', '', now() - interval '50 min'),"
                     " ('demo', gen_random_uuid(), 'FEATURE', 'FAILED', '', now() - interval '70 min')")
    with server.client(token("demo", scope=ALL)) as client:
        body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": "DELTA",
                "items": [{"key": "k", "op": "UPSERT", "payload": 1}]}
        assert client.post("/v1/tenants/demo/updates", json.dumps(body), **JSON).status == 202
        for query in ("", "?tenant=*"):
            overview = get(client, "overview" + query)
            assert overview["updates"]["pending"] == {"count": 1, "more": False}
            assert overview["updates"]["failed_last_hour"] == {"count": 1, "more": False}
            assert overview["outboxes"]["failed"] == 2
        refdata_db.query("update platform.bus_message set created_at = now() - interval '5 min' where topic = 'refdata.commands'")
        assert get(client, "overview")["updates"]["oldest_pending_age_seconds"] >= 300
        told = problems(client)
        assert [severity for severity, _ in told] == sorted((severity for severity, _ in told))  # critical ones first
        assert any(severity == "critical" and "PENDING for 30" in what for severity, what in told)
        assert ("warning", "2 events could not be published") in told
        refdata_db.query("delete from refdata.outbox_event where version = 2")
        assert ("warning", "1 event could not be published") in problems(client)
    with server.client(token("other", scope=READ)) as stranger:
        overview = get(stranger, "overview")
        assert overview["updates"]["pending"]["count"] == 0 == overview["outboxes"]["failed"]
        assert overview["updates"]["oldest_pending_age_seconds"] is None


def missing_roles(client):
    return sorted((problem["severity"], problem["what"], problem["help"]) for problem in get(client, "overview")["problems"]
                  if "runs the role" in problem["what"])


def test_a_role_that_no_process_runs_while_work_waits_for_it_is_named(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"), args=["--roles", "command,ops"])
    with server.client(token("demo", scope=READ)) as client, server.client(token("other", scope=READ)) as stranger:
        eventually(lambda: get(client, "overview")["pods"]["up"] == 1)
        assert missing_roles(client) == []
        leave(refdata_db, "D", 1, 2, tenant="demo")
        body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": 1}]}
        assert client.post("/v1/tenants/demo/updates", json.dumps(body), **JSON).status == 202
        assert missing_roles(client) == [
            ("critical", "no process runs the role apply, for which 1 update waits", "freshet serve --roles apply"),
            ("critical", "no process runs the role relay, for which 2 events wait", "freshet serve --roles relay")]
        assert missing_roles(stranger) == []
        helper = serve(refdata_db, pod("FEATURE"), args=["--roles", "apply,relay"])
        eventually(lambda: missing_roles(client) == [])
        eventually(lambda: get(client, "overview")["updates"]["pending"]["count"] == 0)
        helper.kill()
        assert client.post("/v1/tenants/demo/updates", json.dumps({**body, "eventId": str(uuid.uuid4())}), **JSON).status == 202
        eventually(lambda: missing_roles(client)[:1] == [  # its row is 15 s old
            ("critical", "no process runs the role apply, for which 1 update waits", "freshet serve --roles apply")])


def two_databases(near, far):
    def block(name, database):
        return {"name": name, "jdbcUrl": database.jdbc_url, "username": database.user, "passwordFromEnv": f"PG_{name.upper()}"}
    return {"refdata": {"postgres": [block("near", near), block("far", far)], "dictionaries": [
        {"code": "NEAR", "postgres": "near"}, {"code": "FAR", "postgres": "far"}]}}, {"PG_NEAR": near.password, "PG_FAR": far.password}


def test_a_database_that_is_down_or_frozen_is_named_within_its_deadline_and_the_others_are_shown(
        serve, refdata_db, own_refdata_db, own_postgres, token):
    """2 s for each; all are asked at once."""
    changes, env = two_databases(refdata_db, own_refdata_db)
    server = serve(refdata_db, changes, env=env)
    for database in (refdata_db, own_refdata_db):
        database.query("insert into refdata.dictionary_meta (tenant_id, dict_code, version) values ('demo', %s, 1)",
                       ["NEAR" if database is refdata_db else "FAR"])
    with server.client(token("demo", scope=ALL)) as client:
        def listed():
            answer = get(client, "dictionaries")
            return [row["dict_code"] for row in answer["items"]], [gone["database"] for gone in answer["unavailable"]]
        eventually(lambda: listed() == (["FAR", "NEAR"], []))
        own_postgres.stop("immediate")
        eventually(lambda: listed() == (["NEAR"], ["far"]))
        overview = get(client, "overview")
        assert [gone["database"] for gone in overview["unavailable"]] == ["far"]
        assert [e["state"] for e in overview["engines"] if e.get("database") == "far"] == ["down"]
        assert overview["problems"][0]["severity"] == "critical" and "far" in overview["problems"][0]["what"]
        assert own_refdata_db.password not in json.dumps(overview)
        screen = run("top", "--once", "--url", f"http://127.0.0.1:{server.port}", "--token", token("demo", scope=ALL),
                     "--config", server.config_path, env=server.env).stdout
        assert "updates  - pending" in screen and "dead letters -" in screen, screen  # zeros are not known
        own_postgres.start()
        eventually(lambda: listed() == (["FAR", "NEAR"], []))
        with frozen(own_postgres):
            begun = time.monotonic()
            assert listed() == (["NEAR"], ["far"])
            assert time.monotonic() - begun < PATIENCE / 2  # of 2 s, on a machine that may be slow
        eventually(lambda: listed() == (["FAR", "NEAR"], []))
        assert server.is_ready()


def test_the_api_answers_while_all_workers_of_requests_are_blocked(serve, own_refdata_db, own_postgres, token):
    """Operators have threads and connections of their own."""
    server = serve(own_refdata_db, pod("FEATURE", http={"workers": 2}))
    with server.client(token("demo", scope=READ)) as client, frozen(own_postgres):
        stuck = [server.raw() for _ in range(8)]
        for connection in stuck:
            connection.send(f"GET /api/v1/items/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token('demo')}\r\n\r\n".encode())
        answer = get(client, "overview")
        assert {gone["database"] for gone in answer["unavailable"]} == {"store", "main"}


def test_switched_off_it_serves_nothing(serve, refdata_db, token):
    server = serve(refdata_db, {"ops": {"enabled": False}})
    with server.client(token("demo", scope=ALL)) as client:
        for path in ("overview", "pods", "updates", "config"):
            assert client.get("/v1/ops/" + path).status == 404
    assert server.is_ready()


def test_a_process_with_this_role_alone_is_ready_and_is_seen(serve, refdata_db, token):
    other = serve(refdata_db, args=["--roles", "query"])
    server = serve(refdata_db, args=["--roles", "ops"])
    assert server.client().get("/actuator/health").json()["roles"] == {"ops": {"status": "UP"}}
    with server.client(token("demo", scope=READ)) as client:
        eventually(lambda: {row["pid"] for row in items(client, "pods?state=up")} == {server.process.pid, other.process.pid})
