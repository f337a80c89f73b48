"""C10: a role with the least privileges (`freshet migrate --grants ROLE`) runs every module, and may do nothing else."""
import secrets
import uuid

import psycopg2
import pytest

from lib.config import base_config, to_yaml
from lib.freshet import run
from lib.refdata import pod, refdata_db, write_builtin  # noqa: F401
from lib.requests import CODE, SCOPE, SUBJECT, Requests
from lib.wait import eventually
from lib.wire import Client

SOON = {"cleanup-interval": "100ms"}
# Everything that deletes or looks after rows runs at once and often: it needs privileges too.
BUSY = {
    "bus": {"migrate": "never", "postgres": {"pollInterval": "50ms", "keep": "1s"}},
    "intake": {"idempotency": SOON, "outbox": SOON},
    "chat": {"retention": SOON, "idempotency": SOON, "outbox": SOON},
    "entitlement": {"idempotency": SOON, "outbox": SOON, "audit": {"months-ahead": 5, "keep-months": 1}},
    "notification": {"retention": SOON, "delivery": {"poll-interval": "50ms"}},
    "hydration": {"wait_timeout_ms": 20000},
}
NAMES = "'platform', 'refdata', 'intake', 'chat', 'entitlement', 'notification', 'hydration'"


@pytest.fixture
def role(refdata_db, jwks_path, tmp_path):
    """(name, password) of a role that has what `--grants` prints. Its name needs quoting."""
    name, password = f'Free "{secrets.token_hex(4)}"', secrets.token_hex(8)
    quoted = '"' + name.replace('"', '""') + '"'
    config = tmp_path / "grants.yaml"
    config.write_text(to_yaml(base_config(refdata_db, jwks_path)))
    done = run("migrate", "--config", config, "--grants", name, env={"FRESHET_TEST_PG_PASSWORD": "wrong"})  # connects to nothing
    assert done.returncode == 0, done.stderr
    refdata_db.query(f"create role {quoted} login password '{password}'")
    refdata_db.query(f"revoke connect on database \"{refdata_db.name}\" from public")
    refdata_db.query("alter default privileges revoke execute on functions from public")
    refdata_db.query(done.stdout)
    yield name, password
    refdata_db.query(f"drop owned by {quoted}; drop role {quoted}")
    refdata_db.query("alter default privileges grant execute on functions to public")


def denied(refdata_db, since):
    text = refdata_db.server.log.read_text(encoding="utf-8", errors="replace")[since:]
    return [line for line in text.splitlines() if "permission denied" in line or "must be owner" in line]


def test_c10_a_role_with_the_least_privileges_runs_every_module(serve, refdata_db, role, token):
    """Every kind of request, what follows from it, and the upkeep of all tables; PostgreSQL denies nothing."""
    name, password = role
    since = len(refdata_db.server.log.read_text(encoding="utf-8", errors="replace"))
    write_builtin(refdata_db, CODE, {"a": 1}, version=1)
    settings = pod(CODE, **BUSY)
    settings["refdata"]["postgres"] = {"username": name}
    settings["refdata"]["outbox"] = SOON
    settings["refdata"]["updates"] = {"snapshotExpiry": "1s", "auditAfter": "500ms"}
    server = serve(refdata_db, settings, env={"FRESHET_TEST_PG_PASSWORD": password})
    client = server.client(token(subject=SUBJECT, scope=SCOPE))

    def send(method, path, body, headers):
        answer = client.request(method, path, body, headers)
        return answer.status, answer.body

    requests = Requests(send)
    for what, request in requests.all() * 2:
        (status, body), wanted = request()
        assert status in wanted, (what, status, body)
    # A snapshot in chunks, complete, and one that is never completed.
    for chunks in ([1, 2], [1]):
        for chunk in chunks:
            snapshot = {"dictCode": CODE, "eventType": "SNAPSHOT", "snapshotId": str(uuid.uuid5(uuid.NAMESPACE_OID, str(chunks))), "chunkIndex": chunk,
                        "chunksTotal": 2, "items": [{"key": f"k{chunk}", "payload": 1}]}
            assert client.post("/v1/tenants/demo/updates", snapshot).status == 202
    eventually(lambda: client.get(f"/v1/users/{requests.user}/notifications").json()["notifications"])
    eventually(lambda: refdata_db.value("select count(*) from refdata.update_request where error_code = 'SNAPSHOT_INCOMPLETE'"))
    eventually(lambda: refdata_db.value("select count(*) from pg_inherits"
                                        " where inhparent = 'entitlement.entitlement_audit'::regclass") >= 7)
    eventually(lambda: not refdata_db.value("select count(*) from entitlement.outbox_events where status = 'PENDING'"))
    assert refdata_db.value("select count(*) from pg_stat_activity where usename = %s", [name]) > 0
    assert not denied(refdata_db, since)
    assert not [line for line in server.logs() if "permission denied" in str(line)]
    server.stop()
    assert not denied(refdata_db, since)


def test_c10_a_role_with_the_least_privileges_may_do_nothing_else(refdata_db, role):
    """No table of ours is its own, can be emptied, or rewritten where the program only appends."""
    name, password = role

    def holders(privilege):
        """Our tables on which it has the privilege."""
        return {row[0] for row in refdata_db.query(
            "select c.oid::regclass::text from pg_class c where c.relkind in ('r', 'p') and c.relnamespace::regnamespace::text"
            f" in ({NAMES}) and has_table_privilege(%s, c.oid, %s)", [name, privilege])}

    for privilege in ("TRUNCATE", "REFERENCES", "TRIGGER"):
        assert not holders(privilege)
    rewritable = holders("UPDATE") | holders("DELETE")
    for table in ("platform.schema_migration", "chat.messages", "intake.items", "entitlement.entitlement_audit",
                  "notification.dlq_audit"):
        assert table not in rewritable
    assert "platform.schema_migration" not in holders("INSERT")
    for table in ("refdata.dictionary_meta", "entitlement.entitlements", "chat.chat_sessions", "platform.bus_partition"):
        assert table not in holders("DELETE")
    assert not refdata_db.value("select count(*) from pg_namespace where has_schema_privilege(%s, oid, 'CREATE')"
                                f" and nspname in ({NAMES})", [name])
    assert not refdata_db.value("select count(*) from pg_class where pg_get_userbyid(relowner) = %s", [name])
    with psycopg2.connect(dbname=refdata_db.name, host="127.0.0.1", port=refdata_db.server.port, user=name,
                          password=password) as connection, connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("drop table chat.messages")
    connection.close()


@pytest.mark.parametrize("url, line", [("postgresql://ann@127.0.0.1:1/", 'grant connect on database "ann" to "r";'),
                                       ("postgresql://127.0.0.1:1/", "-- grant connect on database")])
def test_c10_a_url_without_a_database_has_the_users(jwks_path, tmp_path, refdata_db, url, line):
    """As libpq connects; where there is no user either, what is printed is still SQL."""
    config = base_config(refdata_db, jwks_path)
    config["refdata"]["postgres"] = {"jdbcUrl": url}
    (tmp_path / "freshet.yaml").write_text(to_yaml(config))
    done = run("migrate", "--config", tmp_path / "freshet.yaml", "--grants", "r")
    assert done.returncode == 0 and line in done.stdout and '""' not in done.stdout, done


def test_c10_a_process_without_its_grants_says_what_is_missing(serve, refdata_db, role, token):
    """A new release's tables need new grants: a table that is not granted is not a reason to end."""
    name, password = role
    refdata_db.query('revoke all on intake.items from "%s"' % name.replace('"', '""'))
    settings = pod(CODE, bus={"migrate": "never"})
    settings["refdata"]["postgres"] = {"username": name}
    server = serve(refdata_db, settings, env={"FRESHET_TEST_PG_PASSWORD": password})
    with Client(server.port, token()) as client:
        answer = client.post("/api/v1/items", {"sku": "s1", "title": "t"})
        assert answer.status in (500, 503) and b"intake.items" not in answer.body
    assert "permission denied for table items" in server.log()
