"""C2, C7, C8, C10: the PostgreSQL that modules keep their tables in: where it is, how its schema gets there, what a process
does while it is away, and how it stops then."""
import re
import signal
import time

import pytest

from lib.config import base_config, merge, to_yaml
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.postgres import freeze_cluster, signal_all
from lib.refdata import own_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

ALONE = ["--roles", "entitlement"]
KEEPERS = ("intake", "chat", "entitlement", "notification", "hydration")


def schemas(database):
    return {name for (name,) in database.query("select nspname from pg_namespace")}


def at(database, **more):
    """A `postgres:` block."""
    return {"jdbcUrl": database.jdbc_url, "username": database.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD", **more}


def health(server):
    return server.client().get("/actuator/health").json()


def migrate(database, jwks_path, folder, changes=None):
    config = folder / "migrate.yaml"
    config.write_text(to_yaml(merge(base_config(database, jwks_path), changes or {})))
    return run("migrate", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": database.password})


# ---- the start ----

@pytest.mark.parametrize("roles", [["--roles", "intake"], []])
def test_a_postgres_block_alone_is_a_whole_configuration(serve, database, token, roles):
    """C2: with nothing configured but PostgreSQL it works, reference data included."""
    server = serve(database, {"refdata": None, "postgres": at(database)}, args=roles)
    client = server.client(token())
    assert client.post("/api/v1/items", {"sku": "s1", "title": "t"}).status == 201
    if not roles:
        assert client.get("/v1/tenants/demo/dictionaries/D/version").code == "UNKNOWN_DICTIONARY"
        assert client.post("/v1/tenants/demo/updates", {"dictCode": "D"}).status != 503


def test_postgresql_that_is_down_at_the_start_is_waited_for(serve, own_postgres, token):
    """C10, C8: 503 with Retry-After till then, said once; then the schema is made and everything works, by itself."""
    database = own_postgres.create_database()
    own_postgres.stop()
    server = serve.make(database, args=ALONE).start(ready=False)
    client = server.client(token(scope=SCOPES))
    eventually(lambda: server.logs(event="store_unavailable"))
    assert not server.is_ready() and health(server)["roles"]["entitlement"]["status"] == "DOWN"
    answer = grant(client)
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
    own_postgres.start()
    eventually(server.is_ready)
    assert grant(client).status in (200, 201)
    assert len(server.logs(event="store_available")) == 1 and len(server.logs(event="store_ready")) == 1


def test_postgresql_that_goes_and_comes_back_is_noticed_though_nobody_asks(serve, own_refdata_db, own_postgres, token):  # noqa: F811
    """C8: no request has to fail for it, and none to succeed."""
    server = serve(own_refdata_db, args=ALONE)
    own_postgres.stop("immediate")
    eventually(lambda: not server.is_ready())
    assert health(server)["components"]["postgres:store"]["status"] == "DOWN"
    own_postgres.start()
    eventually(server.is_ready)
    assert grant(server.client(token(scope=SCOPES))).status in (200, 201)
    assert len(server.logs(event="store_ready")) == 1


def test_two_processes_may_make_the_schema_at_once(serve, database, token):
    """C10: each migration is applied by one of them."""
    servers = [serve.make(database, args=["--roles", role]) for role in ("entitlement", "notification,intake")]
    for server in servers:
        server.start(ready=False)
    for server in servers:
        eventually(server.is_ready)
    assert {*KEEPERS} <= schemas(database)
    done = [(line["module"], line["number"]) for server in servers for line in server.logs(event="migration_applied")]
    assert len(done) == len(set(done)) == database.value("select count(*) from platform.schema_migration")
    assert grant(servers[0].client(token(scope=SCOPES))).status in (200, 201)


# ---- where it is ----

def test_the_store_is_where_its_own_block_says(serve, refdata_db, database, token):  # noqa: F811
    """C2: refdata's database stays refdata's; both are in use in one process."""
    refdata_db.query(f"drop schema {', '.join(KEEPERS)} cascade")
    server = serve(refdata_db, {"postgres": at(database)})
    assert grant(server.client(token(scope=SCOPES))).status in (200, 201)
    assert {*KEEPERS, "platform"} <= schemas(database) and "refdata" not in schemas(database)
    assert not {*KEEPERS} & schemas(refdata_db)
    assert {"postgres:main", "postgres:store"} <= set(health(server)["components"])


def test_a_store_that_is_away_takes_nothing_from_the_roles_that_do_not_need_it(serve, refdata_db, token):  # noqa: F811
    """C8: the process is ready while a role of it can work."""
    server = serve.make(refdata_db, {"postgres": {"jdbcUrl": "postgresql://nobody@127.0.0.1:1/nothing"}}).start()
    roles = health(server)["roles"]
    assert roles["query"]["status"] == "UP" and roles["entitlement"]["status"] == "DOWN"
    assert grant(server.client(token(scope=SCOPES))).status == 503


@pytest.mark.parametrize("block, field, word", [
    ({"jdbcUrl": "mysql://host/db"}, "postgres.jdbcUrl", "postgresql"),
    ({"jdbcUrl": "postgresql://h/db", "passwordFromEnv": "NOT_THERE_AT_ALL"}, "postgres.passwordFromEnv", "not set"),
    ({"username": "somebody"}, "postgres.jdbcUrl", "missing"),
    ({"jdbcUrl": "postgresql://h/db", "schema": "public"}, "postgres.schema", "unknown"),
], ids=["not PostgreSQL", "no such variable", "nowhere", "a key of refdata's"])
def test_a_block_that_cannot_be_understood_is_refused_with_its_place(tmp_path, database, jwks_path, block, field, word):
    """C6."""
    config = tmp_path / "freshet.yaml"
    config.write_text(to_yaml(merge(base_config(database, jwks_path), {"postgres": block})))
    done = run("config", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": "x"})
    assert done.returncode == 1 and word in done.stderr
    assert re.match(rf"{re.escape(str(config))}:\d+:\d+: {re.escape(field)}: ", done.stderr), done.stderr


# ---- migrations by hand ----

def test_where_serve_does_not_migrate_it_waits_for_somebody_who_does(serve, database, jwks_path, tmp_path, token):
    """C10: bus.migrate: never; 503 that says what to do, then at work without a restart."""
    server = serve.make(database, {"bus": {"migrate": "never"}}, args=ALONE).start(ready=False)
    line = eventually(lambda: server.logs(event="store_unavailable"))[0]
    assert "freshet migrate" in line["error"]
    assert not server.is_ready() and "entitlement" not in schemas(database)
    assert migrate(database, jwks_path, tmp_path).returncode == 0
    eventually(server.is_ready)
    assert grant(server.client(token(scope=SCOPES))).status in (200, 201)


def test_migrate_says_what_it_did_and_does_nothing_twice(database, postgres, jwks_path, tmp_path):
    """C10: a line for each schema, of refdata's database and of the store, which may be another."""
    store = postgres.create_database()
    first = migrate(database, jwks_path, tmp_path, {"postgres": at(store)})
    again = migrate(database, jwks_path, tmp_path, {"postgres": at(store)})
    assert first.returncode == again.returncode == 0
    lines = [re.fullmatch(r"(\w+) on (\S+): (\d+) applied, up to date", line) for line in first.stdout.splitlines()]
    assert [line[1] for line in lines] == ["platform", "refdata", "platform", *KEEPERS]
    assert [line[2].rsplit("/")[-1] for line in lines] == [database.name] * 2 + [store.name] * (1 + len(KEEPERS))
    assert all(int(line[3]) > 0 for line in lines)
    assert re.findall(r": (\d+) applied", again.stdout) == ["0"] * len(lines)
    store.drop()


# ---- the end ----

def test_a_frozen_postgresql_does_not_hold_up_the_end(serve, own_postgres, own_refdata_db, token):  # noqa: F811
    """C7: all roles, grants under way; exit 0 within stopTimeout and what modules get beside."""
    server = serve(own_refdata_db, {"http": {"stopTimeout": "1s"}})
    client = server.client(token(scope=SCOPES))
    assert grant(client).status in (200, 201)
    frozen = freeze_cluster(own_postgres)
    try:
        began = time.monotonic()
        server.stop(timeout=30)
        assert time.monotonic() - began < 10
    finally:
        signal_all(frozen, signal.SIGCONT)


def test_a_process_that_waits_for_postgresql_stops_at_once(serve, own_postgres):
    """C7: nothing is under way but the look, which is given up."""
    database = own_postgres.create_database()
    frozen = freeze_cluster(own_postgres)
    try:
        server = serve.make(database, args=ALONE).start(ready=False)
        eventually(lambda: server.logs(event="serving"))
        began = time.monotonic()
        server.stop(timeout=30)
        assert time.monotonic() - began < 5
    finally:
        signal_all(frozen, signal.SIGCONT)


# ---- retention ----

def test_retention_deletes_what_is_old_and_counts_it(serve, refdata_db):  # noqa: F811
    """I6, C9: in batches, more than one here; what is young stays."""
    refdata_db.query("insert into intake.idempotency_keys (tenant_id, subject, method, route, idempotency_key, request_hash,"
                     " response_status, response_body, created_at, expires_at)"
                     " select 'demo', 's', 'POST', '/api/v1/items', 'k' || n, '\\x00', 201, '{}', now() - interval '2 hours',"
                     " case when n <= 2500 then now() - interval '1 hour' else now() + interval '1 hour' end"
                     " from generate_series(1, 2600) n")
    refdata_db.query("insert into intake.event_outbox (event_id, tenant_id, sku, event_type, payload, status, created_at, published_at)"
                     " select gen_random_uuid(), 'demo', 's' || n, 'item_created', '{}', 'PUBLISHED', now(), now() - interval '2 days'"
                     " from generate_series(1, 1100) n")
    server = serve(refdata_db, {"intake": {"idempotency": {"cleanup-interval": "100ms"}, "outbox": {"cleanup-interval": "100ms"}}},
                   args=["--roles", "intake"])
    metric = 'freshet_retention_deleted_total{table="intake.idempotency_keys"}'
    eventually(lambda: server.metrics().get(metric) == 2500)
    eventually(lambda: server.metrics().get('freshet_retention_deleted_total{table="intake.event_outbox"}') == 1100)
    assert refdata_db.value("select count(*) from intake.idempotency_keys") == 100
