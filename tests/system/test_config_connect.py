"""Issue 15.5: `freshet config --connect` tries every template at its database, runs none of them and reports every mistake."""
import re
import secrets
import socket
import time

import pytest

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.refdata import make_table, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import free_port

DATABASE = """\
auth:
  jwksFile: {jwks}
refdata:
  postgres:
    jdbcUrl: {url}
    username: {user}
    passwordFromEnv: FRESHET_TEST_PG_PASSWORD
  dictionaries:
"""


@pytest.fixture
def connect(refdata_db, jwks_path, tmp_path):
    """Runs the command on a configuration: a text that follows DATABASE, or settings."""
    path = tmp_path / "freshet.yaml"

    def call(config, *args, user=None, password=None):
        if isinstance(config, str):
            config = DATABASE.format(jwks=jwks_path, url=refdata_db.jdbc_url, user=user or refdata_db.user) + config
        else:
            config = to_yaml(merge(base_config(refdata_db, jwks_path), config))
        path.write_text(config, encoding="utf-8")
        done = run("config", "--config", path, "--connect", *args,
                   env={"FRESHET_TEST_PG_PASSWORD": password or refdata_db.password})
        assert refdata_db.password not in done.stdout + done.stderr
        return done

    call.path = path
    return call


def mistakes(done):
    """(line, column, dictionary, field, message) of each, in order; the last line of a failure is its summary."""
    *lines, last = done.stderr.splitlines()
    found = [re.fullmatch(r".*freshet\.yaml:(\d+):(\d+): dictionary (\S+), (\S+): (.+)", line) for line in lines]
    assert all(found), done.stderr
    assert re.search(rf": {len(found)} mistakes?; ", last), done.stderr
    return [(int(m[1]), int(m[2]), m[3], m[4], m[5]) for m in found]


@pytest.fixture
def reader(refdata_db):
    """(name, password) of a role that may read freshet's tables and whatever a test grants."""
    name, password = f"reader_{secrets.token_hex(4)}", secrets.token_hex(8)
    refdata_db.query(f"create role {name} login password '{password}';"
                     f"grant usage on schema platform, refdata to {name};"
                     f"grant select on all tables in schema platform, refdata to {name}")
    yield name, password
    refdata_db.query(f"drop owned by {name}; drop role {name}")


# ---- what is tried ----

def test_a_good_file_is_ok_and_counts_what_was_tried(connect, refdata_db, root):
    """Seed 000 §5's templates on the demo tables: five of each dictionary, and none of a built-in or disabled one."""
    refdata_db.run_file(root / "config/demo.sql")
    demo = (root / "config/freshet.yaml").read_text()
    dictionaries = demo[demo.index("    - code: "):]
    done = connect(dictionaries + "    - code: BUILTIN\n    - {code: OFF, enabled: false, loadSql: 'select :tenantId from nowhere'}\n")
    assert (done.returncode, done.stderr) == (0, "")
    given = len(re.findall(r"^ +\w+Sql:", dictionaries, re.M))
    assert given > 5 and done.stdout.endswith(f"freshet.yaml: ok; 1 database, {given} templates tried\n")


def test_every_mistake_of_every_dictionary_is_reported_at_its_place(connect, refdata_db):
    make_table(refdata_db, "t", {"a": "1"})
    done = connect("""\
    - code: ONE
      loadSql: |
        select k,
               v from nowhere
        where tenant_id = :tenantId
      driftCheckSql: select 'x' where :tenantId <> ''
    - code: GOOD
      loadSql: select k, v from t where tenant_id = :tenantId
    - code: TWO
      loadSql: select k, v from t where tenant_id = :tenantId and wrong = 1
      apply:
        mode: SQL_TEMPLATE
        upsertSql: |
          insert into t (tenant_id, k, v)
          values (:tenantId, :key, :payload) on conflict (v) do nothing
        deleteSql: delete form t where tenant_id = :tenantId and k = :key
""")
    assert done.returncode == 1 and done.stdout == ""
    found = mistakes(done)
    places = [(line, dictionary, field) for line, _, dictionary, field, _ in found]
    assert places == [(12, "ONE", "loadSql"), (14, "ONE", "driftCheckSql"), (18, "TWO", "loadSql"),
                      (21, "TWO", "apply.upsertSql"), (24, "TWO", "apply.deleteSql")], done.stderr
    text = connect.path.read_text().splitlines()
    for index, word in [(0, "nowhere"), (2, "wrong"), (4, "form")]:
        line, column = found[index][:2]
        assert text[line - 1][column - 1:].startswith(word), found[index]
    for mistake, told in zip(found, ["create it", "bigint", "correct the name", "unique index", "syntax error"]):
        assert told in mistake[4]
    assert "6 templates tried" in done.stderr


@pytest.mark.parametrize("sql, told", {
    "no k": ("select k as key, v from t where tenant_id = :tenantId", 'no column k: name it with "as k"'),
    "no v": ("select k from t where tenant_id = :tenantId", "no column v"),
    "v is text": ("select k, v::text as v from t where tenant_id = :tenantId", "json or jsonb"),
    "a type": ("select k, v from t where tenant_id = :tenantId + 1", "operator does not exist"),
    "a function": ("select k, nothing(v) as v from t where tenant_id = :tenantId", "nothing(jsonb) does not exist"),
    "a schema": ("select k, v from nowhere.t where tenant_id = :tenantId", "nowhere"),
    "a write": ("with w as (delete from t where tenant_id = :tenantId returning *) select k, v from w", "read-only"),
    "a row lock": ("select k, v from t where tenant_id = :tenantId for update", "read-only"),
    "two statements": ("select k, v from t where tenant_id = :tenantId; select 1", "statement"),
}.values())
def test_a_load_that_cannot_work_is_a_mistake(connect, refdata_db, sql, told):
    make_table(refdata_db, "t", {"a": "1"})
    done = connect(pod({"code": "T", "loadSql": sql}))
    assert done.returncode == 1 and told in done.stderr and "ok" not in done.stdout
    assert "loadSql" in done.stderr and len(done.stderr.splitlines()) <= 2
    assert refdata_db.value("select count(*) from t") == 1


def test_privileges_are_those_of_the_role_in_the_file(connect, refdata_db, reader):
    """Also those which only a plan shows, and which depend on a parameter."""
    name, password = reader
    make_table(refdata_db, "t", {"a": "1"})
    make_table(refdata_db, "hidden", {"a": "1"})
    refdata_db.query(f"grant select on t to {name}; create function f() returns text language sql as $$ select 'k' $$;"
                     "revoke execute on function f() from public")
    done = connect("""\
    - code: T
      loadSql: select k, v from t where tenant_id = :tenantId
      apply: {mode: SQL_TEMPLATE, upsertSql: "insert into t values (:tenantId, :key, :payload)", deleteSql: "delete from t where k = :key and tenant_id = :tenantId"}
    - code: HIDDEN
      loadSql: select k, v from t where tenant_id = :tenantId union all select k, v from hidden where :tenantId = 'never'
    - code: FUNCTION
      loadSql: select f() as k, v from t where tenant_id = :tenantId
""", user=name, password=password)
    assert done.returncode == 1
    found = mistakes(done)
    assert [m[2:4] for m in found] == [("T", "apply.upsertSql"), ("T", "apply.deleteSql"), ("HIDDEN", "loadSql"),
                                       ("FUNCTION", "loadSql")]
    assert all("permission denied" in m[4] and "grant it to the role" in m[4] for m in found)
    assert password not in done.stdout + done.stderr


# ---- nothing is written ----

def test_nothing_is_run_and_nothing_is_written(connect, refdata_db):
    """A function that writes is planned and not called: rows and sequences stay."""
    make_table(refdata_db, "t", {"a": "1"})
    refdata_db.query("""
        create table log (x int); create sequence s;
        create function peek() returns int language sql volatile as 'insert into log values (1) returning x';
        create function stable_peek() returns bigint language sql stable as $$ select nextval('s') $$;
        create procedure stage(t text, j jsonb) language sql as 'insert into log values (2)'""")
    done = connect(pod({
        "code": "T", "loadSql": "select k, to_jsonb(peek() + nextval('s')) as v from t where tenant_id = :tenantId",
        "driftCheckSql": "select stable_peek() where :tenantId <> ''",
        "apply": {"mode": "SQL_TEMPLATE", "upsertSql": "insert into t select :tenantId, :key, to_jsonb(peek()) where :payload is not null",
                  "deleteSql": "delete from t where tenant_id = :tenantId and k = :key",
                  "snapshotReplaceSql": "call stage(:tenantId, :snapshotJson)"}}))
    assert (done.returncode, done.stderr) == (0, "") and "5 templates tried" in done.stdout
    assert refdata_db.query("select (select count(*) from t), (select count(*) from log), (select is_called from s)") == [(1, 0, False)]


def test_an_empty_database_stays_empty_and_needs_migrating(connect, database, jwks_path):
    done = connect(base_config(database, jwks_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"note: \d+ migrations? of the schema refdata (is|are) missing: run `freshet migrate`", done.stdout)
    assert re.search(r"of the schema platform .* run `freshet migrate`", done.stdout)
    assert database.value("select count(*) from pg_namespace where nspname in ('refdata', 'platform')") == 0


def test_a_migrated_database_has_no_note(connect):
    done = connect(pod("BUILTIN"))
    assert (done.returncode, done.stderr) == (0, "") and "note" not in done.stdout
    assert done.stdout.endswith("ok; 1 database, 0 templates tried\n")


def test_a_schema_that_is_too_new_is_refused(connect, refdata_db):
    refdata_db.query("update platform.schema_migration set oldest_program = 999 where module = 'refdata' and number = 1")
    done = connect(pod("BUILTIN"))
    assert done.returncode == 1 and "schema refdata needs migration 999" in done.stderr


def test_a_shared_dictionary_gets_a_note(connect, refdata_db):
    make_table(refdata_db, "t", {"a": "1"})
    done = connect("    - code: T\n      shared: true\n      loadSql: select k, v from t\n"
                   "    - code: MINE\n      loadSql: select k, v from t where tenant_id = :tenantId\n")
    assert (done.returncode, done.stderr) == (0, "")
    notes = [line for line in done.stdout.splitlines() if "note" in line]
    assert len(notes) == 1 and re.search(r":10:\d+: dictionary T, shared: note: every tenant may read every row$", notes[0])


# ---- a database that cannot be asked ----

def two_databases(refdata_db, first_url):
    """The first one at another address, the second one good, and a mistake in a dictionary of each."""
    bad = {"loadSql": "select k, v from nowhere where tenant_id = :tenantId"}
    good = {"jdbcUrl": refdata_db.jdbc_url, "username": refdata_db.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
    changes = pod({"code": "LOST", "postgres": "far", **bad}, {"code": "BAD", "postgres": "near", **bad})
    changes["refdata"]["postgres"] = [{"name": "far", "jdbcUrl": first_url}, {"name": "near", **good}]
    return changes


def check_the_other_was_tried(done):
    lost, mistake, summary = done.stderr.splitlines()
    assert done.returncode == 1 and "database far" in lost and "127.0.0.1" in lost
    assert "dictionary BAD, loadSql" in mistake and "LOST" not in done.stderr
    assert "1 mistake; 1 of 2 databases, 1 template tried" in summary
    return lost


def test_a_database_that_is_not_there_is_one_message_and_the_other_is_tried(connect, refdata_db):
    secret = secrets.token_hex(8)
    done = connect(two_databases(refdata_db, f"postgresql://somebody:{secret}@127.0.0.1:{free_port()}/none"))
    assert "refused" in check_the_other_was_tried(done)
    assert secret not in done.stdout + done.stderr


def test_a_database_that_stays_silent_costs_its_time_limit_once(connect, refdata_db):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://somebody@127.0.0.1:{silent.getsockname()[1]}/none"
        started = time.monotonic()
        done = connect(two_databases(refdata_db, url), "--timeout", "700ms")
        took = time.monotonic() - started
    assert "--timeout" in check_the_other_was_tried(done)
    assert 0.6 < took < 5


def test_a_wrong_password_is_a_database_that_cannot_be_asked(connect, refdata_db):
    done = connect(pod(sql_dictionary("T")), password="wrong-" + secrets.token_hex(4))
    assert done.returncode == 1 and "authentication failed" in done.stderr and "wrong-" not in done.stderr + done.stdout
    assert "0 mistakes; 0 of 1 database, 0 templates tried" in done.stderr


def test_a_locked_table_stops_its_own_templates_only(connect, refdata_db):
    """Longer than one time limit for all of them together would be."""
    for table in ["a", "b", "c", "d", "e", "f"]:
        make_table(refdata_db, table, {"a": "1"})
    holder = refdata_db.connect()
    try:
        holder.autocommit = False
        holder.cursor().execute("lock table a, b, c, d, e in access exclusive mode")
        done = connect(pod(*(sql_dictionary(code.upper(), code) for code in "abcde"), sql_dictionary("BAD", "nowhere"), sql_dictionary("F", "f")),
                       "--timeout", "1s")
    finally:
        holder.close()
    found = mistakes(done)
    assert done.returncode == 1 and [m[2] for m in found] == ["A", "B", "C", "D", "E", "BAD"]
    assert all("lock timeout" in m[4] and "try again" in m[4] for m in found[:5])


def test_a_plan_that_takes_too_long_stops_its_own_template_only(connect, refdata_db):
    make_table(refdata_db, "t", {"a": "1"})
    refdata_db.query("create function slow() returns text language sql immutable as $$ select 'x' from pg_sleep(600) $$")
    slow = {"code": "SLOW", "loadSql": "select k, v from t where tenant_id = :tenantId and k = slow()"}
    done = connect(pod(slow, sql_dictionary("T")), "--timeout", "1s")
    ((_, _, code, _, message),) = mistakes(done)
    assert code == "SLOW" and "longer --timeout" in message and "2 templates tried" in done.stderr


# ---- how it is called ----

@pytest.mark.parametrize("args, told", [(["--timeout", "3s"], "--connect"), (["--connect", "--describe"], "only one"),
                                        (["--connect", "--markdown"], "only one"), (["--connect", "--timeout", "soon"], "duration"),
                                        (["--connect", "--timeout", "0s"], "duration"), (["--connect", "--timeout"], "--timeout")])
def test_a_wrong_call_is_exit_2(args, told):
    done = run("config", *args)
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""


def test_a_file_with_a_mistake_is_not_tried(connect, refdata_db):
    done = connect(pod({"code": "T", "loadSql": "select k, v from t where x = :nothing"}))
    assert done.returncode == 1 and ":nothing" in done.stderr and "tried" not in done.stderr + done.stdout
