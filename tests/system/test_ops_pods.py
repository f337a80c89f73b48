"""Issue 15, point 1: every process writes a row about itself, and the operator's API shows which are up, gone or stopped."""
from lib.ops import READ, get, items
from lib.refdata import own_refdata_db, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually

LONG_AGO = "update platform.pod set seen_at = clock_timestamp() - interval '%s' where pid = %s"


def rows(database):
    if database.value("select to_regclass('platform.pod')") is None:
        return []  # it is migrated after the process is ready
    return database.query("select pod_id, pid, stopped_at is not null, octet_length(report::text) from platform.pod order by pid")


def state_of(client, process):
    found = [row for row in items(client, "pods") if row["pid"] == process.pid]
    return found[0]["state"] if found else None


def test_a_process_is_shown_with_all_that_it_reports_of_itself(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"), args=["--roles", "query,command,apply,ops"])
    with server.client(token("acme", scope=READ)) as client:
        client.get("/v1/tenants/acme/dictionaries/FEATURE/version")
        (row,) = eventually(lambda: [r for r in items(client, "pods") if r["ready"] and r["connections"]])
        report = eventually(lambda: [r for r in items(client, "pods") if r["reads_per_second"] > 0])[0]
    assert row["pid"] == server.process.pid and row["address"] == f"127.0.0.1:{server.port}"
    assert row["roles"] == ["command", "apply", "query", "ops"] and row["state"] == "up" and row["ready"] is True
    assert row["version"] and row["host"] and row["started_at"] <= row["seen_at"]
    assert row["health"]["roles"]["query"] == {"status": "UP"} and "postgres:main" in row["health"]["components"]
    assert report["connections"] >= 1 and report["streams"] == 0
    assert 0 < report["memory_used_bytes"] < report["memory_limit_bytes"]


def test_a_process_that_was_killed_is_gone_and_one_that_ended_in_order_has_stopped(serve, refdata_db, token):
    stays, stops, dies = (serve(refdata_db, args=["--roles", "query,ops"]) for _ in range(3))
    with stays.client(token("acme", scope=READ)) as client:
        eventually(lambda: len(items(client, "pods?state=up")) == 3)
        stops.stop()
        dies.kill()
        eventually(lambda: state_of(client, stops.process) == "stopped")
        assert state_of(client, dies.process) == "up"  # for 15 s after it was last seen
        refdata_db.query(LONG_AGO % ("14 s", dies.process.pid))
        assert state_of(client, dies.process) == "up"
        refdata_db.query(LONG_AGO % ("15 s", dies.process.pid))
        assert state_of(client, dies.process) == "gone"
        (gone,) = items(client, "pods?state=gone")
        assert gone["pid"] == dies.process.pid and gone["ready"] is False
        assert [row["pid"] for row in items(client, "pods?state=up")] == [stays.process.pid]
        assert get(client, "overview")["pods"] == {"up": 1, "gone": 1}
        assert any("did not stop in order" in problem["what"] for problem in get(client, "overview")["problems"])


def test_rows_that_were_not_seen_for_a_day_go(serve, refdata_db, token):
    server, dies = serve(refdata_db, args=["--roles", "query,ops"]), serve(refdata_db, args=["--roles", "query"])
    with server.client(token("acme", scope=READ)) as client:
        eventually(lambda: len(rows(refdata_db)) == 2)
        dies.kill()
        refdata_db.query(LONG_AGO % ("23 hours", dies.process.pid))
        before = refdata_db.value("select seen_at from platform.pod where pid = %s", [server.process.pid])
        eventually(lambda: refdata_db.value("select seen_at from platform.pod where pid = %s", [server.process.pid]) > before)
        assert state_of(client, dies.process) == "gone"
        refdata_db.query(LONG_AGO % ("25 hours", dies.process.pid))
        eventually(lambda: state_of(client, dies.process) is None)


def test_a_process_has_one_row_in_each_of_its_databases_and_is_shown_once(serve, refdata_db, database, token):
    """The store and refdata's `main` are one database; `second` is another."""
    blocks = [{"name": "main", "jdbcUrl": refdata_db.jdbc_url, "username": refdata_db.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"},
              {"name": "second", "jdbcUrl": database.jdbc_url, "username": database.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}]
    server = serve(refdata_db, {"refdata": {"postgres": blocks}})
    eventually(lambda: len(rows(refdata_db)) == 1 and len(rows(database)) == 1)
    with server.client(token("acme", scope=READ)) as client:
        assert [row["pid"] for row in items(client, "pods")] == [server.process.pid]
        # a row that is older in one database does not hide the newer one of the other
        database.query("update platform.pod set seen_at = clock_timestamp() - interval '1 hour'")
        assert state_of(client, server.process) == "up"


def test_a_configured_name_is_the_row_s_name_and_a_restart_takes_it_over(serve, refdata_db, token):
    server = serve.make(refdata_db, {"refdata": {"podId": "pod-7"}}, args=["--roles", "query,ops"])
    server.start()
    eventually(lambda: rows(refdata_db))
    server.stop()
    assert [(row[0], row[2]) for row in rows(refdata_db)] == [("pod-7", True)]
    server.start()
    eventually(lambda: [(row[0], row[1], row[2]) for row in rows(refdata_db)] == [("pod-7", server.process.pid, False)])


def test_a_report_is_bounded_whatever_a_process_holds(serve, refdata_db, token):
    """Pairs that fail to load stand first."""
    refdata_db.query("create table wide (tenant_id text, k text, v jsonb)")
    server = serve(refdata_db, pod("FEATURE", sql_dictionary("WIDE")), args=["--roles", "query,ops"])
    with server.client(token("bad", scope=READ)) as client:
        assert client.get("/v1/tenants/bad/dictionaries/WIDE/version").status == 200
    for n in range(300):
        with server.client(token(f"tenant-{n:03}-{'x' * 40}")) as client:
            assert client.get(f"/v1/tenants/tenant-{n:03}-{'x' * 40}/dictionaries/FEATURE/version").status == 200
    refdata_db.query("drop table wide")
    refdata_db.query("insert into refdata.dictionary_meta (tenant_id, dict_code, version) values ('bad', 'WIDE', 5)")
    pairs = "select report #> '{refdata,pairs}' ->> 'bad/WIDE', (report #>> '{refdata,pairs_held}')::int from platform.pod"
    eventually(lambda: "wide" in (refdata_db.query(pairs)[0][0] or "") and refdata_db.query(pairs)[0][1] == 301)
    assert rows(refdata_db)[0][3] <= 64 * 1024
    with server.client(token("bad", scope=READ)) as client:
        (row,) = items(client, "dictionaries?dict=WIDE")
    assert row["version"] == 5 and "wide" in row["last_error"] and row["pods"][0]["version"] == 0


def test_a_crash_of_postgresql_empties_the_table_and_the_row_comes_back(serve, own_refdata_db, own_postgres, token):
    server = serve(own_refdata_db, args=["--roles", "query,ops"])
    eventually(lambda: rows(own_refdata_db))
    own_postgres.restart("immediate")
    with server.client(token("acme", scope=READ)) as client:
        eventually(lambda: client.get("/v1/ops/pods").status == 200 and state_of(client, server.process) == "up")
