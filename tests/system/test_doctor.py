"""`freshet doctor`: each thing is made wrong, found with the command that helps, and that command is run (issue 15, point 3). Databases and
what waits in them; pods, processes and engines are in test_doctor_pods.py."""
import contextlib
import json
import signal
import time

import psycopg2
import pytest

from lib.apply import publish, ready
from lib.certs import Authority
from lib.config import merge
from lib.doctor import Doctor
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.outbox import leave
from lib.postgres import freeze_cluster, signal_all
from lib.refdata import TENANT, migrated, own_refdata_db, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

HOUR = "interval '1 hour'"


@pytest.fixture
def doctor(serve, refdata_db, tmp_path):  # noqa: F811
    """doctor(changes): of a configuration that nothing serves."""
    return lambda changes=None: Doctor(serve.make(refdata_db, changes or pod("D")), tmp_path, refdata_db)


# ---- nothing wrong, and what is printed ----

def test_nothing_is_wrong(doctor):
    patient = doctor()
    done = patient.run()
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("nothing is wrong: "), done.stdout
    assert patient.report()[1:] == ([], [])


def test_what_is_wrong_stands_most_serious_first_with_its_command(doctor, refdata_db):  # noqa: F811
    patient = doctor(pod(sql_dictionary("BAD", "no_such_table")))
    leave(refdata_db, "D", 1, 2)
    refdata_db.query(f"update refdata.outbox_event set created_at = now() - {HOUR}")
    done = patient.run("--config", patient.env["FRESHET_CONFIG"])
    lines = done.stdout.splitlines()
    assert done.returncode == 3 and [line.split()[0] for line in lines[:-1:2]] == ["CRITICAL", "CRITICAL", "WARNING"]
    assert all(line.startswith("          ") and line.endswith(f" --config {patient.env['FRESHET_CONFIG']}") for line in lines[1:-1:2])
    assert lines[-1].endswith(": 2 critical, 1 warning"), lines


def test_every_check_is_listed_once_and_in_the_page(root):
    listed = [line.split()[0] for line in run("doctor", "--list").stdout.splitlines()]
    page = (root / "docs/CLI.md").read_text()
    assert len(listed) == len(set(listed)) > 25
    assert [name for name in listed if f"| `{name}` |" not in page] == []


# ---- the configuration ----

def test_a_mistake_in_the_configuration_is_found_with_its_place(doctor):
    patient = doctor()
    text = patient.server.config_path.read_text()
    patient.server.config_path.write_text(text + "nonsense: 1\n")
    problem = patient.one("configuration")
    assert problem["severity"] == "critical" and f"freshet.yaml:{text.count(chr(10)) + 1}:1" in problem["what"]
    assert problem["help"] == "freshet config" and "nonsense" in patient.advised(problem).stderr
    patient.server.config_path.unlink()
    assert "No such file" in patient.one("configuration")["what"]


def test_a_certificate_that_expires_soon_is_found(doctor, tmp_path):
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server", "x", hosts=["localhost"], days=3)
    patient = doctor(merge(pod("D"), {"http": {"tls": {"certFile": str(certificate), "keyFile": str(key)}}}))
    problem = patient.one("certificate_expires")
    assert "expires at" in problem["what"] and str(certificate) in problem["what"]
    assert "notAfter=" in patient.advised(problem).stdout
    authority.issue("server", "x", hosts=["localhost"], days=-1)
    assert "expired at" in patient.one("certificate_expires")["what"]
    authority.issue("server", "x", hosts=["localhost"], days=90)
    assert patient.found("certificate_expires") == []


# ---- a database ----

@pytest.fixture
def own(own_postgres, own_refdata_db, serve, tmp_path):  # noqa: F811
    """Of a PostgreSQL that the test may harm."""
    patient = Doctor(serve.make(own_refdata_db, pod("D")), tmp_path, own_refdata_db)
    patient.postgres, patient.database = own_postgres, own_refdata_db
    return patient


def test_a_database_that_is_down_is_found_once_and_its_other_checks_are_left_out(own):
    own.postgres.stop()
    status, problems, unchecked = own.report()
    assert status == 3 and [p["check"] for p in problems] == ["database_down"] and "refused" in problems[0]["what"]
    assert {u["where"].split()[1] for u in unchecked} == {"main", "store"}  # both are this database
    assert own.advised(problems[0]).returncode == 2  # psql says the same
    own.postgres.start()
    assert own.advised(problems[0]).returncode == 0 and own.found("database_down") == []


def test_a_frozen_database_does_not_hold_it_up(own):
    frozen = freeze_cluster(own.postgres)
    try:
        began = time.monotonic()
        assert "database_down" in [p["check"] for p in own.report()[1]]
        assert time.monotonic() - began < 30  # each check has two seconds; all of them together would take longer
    finally:
        signal_all(frozen, signal.SIGCONT)


def test_the_whole_keeps_its_limit(own):
    frozen = freeze_cluster(own.postgres)
    try:
        began = time.monotonic()
        done = own.run("--patience", "500ms")
        assert done.returncode == 3 and time.monotonic() - began < 20, done.stdout
    finally:
        signal_all(frozen, signal.SIGCONT)


def test_missing_migrations_are_found_and_made(serve, database, tmp_path):
    patient = Doctor(serve.make(database, pod("D")), tmp_path, database)
    status, problems, unchecked = patient.report()
    assert status == 3 and {p["check"] for p in problems} == {"schema_version"} and not unchecked, (problems, unchecked)
    assert patient.advised(problems[0]).returncode == 0
    assert patient.report() == (0, [], [])


def test_a_schema_that_is_too_new_is_found(own):
    own.database.query("insert into platform.schema_migration (module, number, name, checksum, oldest_program)"
                       " values ('refdata', 9999, 'x', 'x', 9999)")
    problem = own.one("schema_version")
    assert "too new for this program" in problem["what"] and "too new" in own.advised(problem).stdout


def test_a_clock_that_differs_is_found(own):
    """The database's, as its statements see it."""
    own.database.query("create schema late; create function late.clock_timestamp() returns timestamptz language sql as"
                       " 'select pg_catalog.clock_timestamp() - interval ''90 s'''")
    text = own.server.config_path.read_text()
    own.server.config_path.write_text(text.replace('"schema": "public"', '"schema": "late,pg_catalog"').replace(
        'schema: "public"', 'schema: "late,pg_catalog"'))
    problem = own.one("clock_skew")
    assert "s behind that of this machine" in problem["what"] and problem["help"] == "timedatectl status"


def test_connections_that_run_out_are_found(own):
    own.database.query("alter system set max_connections = 20")
    own.postgres.restart()
    with contextlib.ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(contextlib.closing(psycopg2.connect(own.database.url, application_name="crowd")))
        (problem,) = eventually(lambda: own.found("connections_full"))  # once the server has its connections again
        assert "of the 17 connections" in problem["what"]
        shown = own.advised(problem)
        assert shown.returncode == 0 and "crowd" in shown.stdout
    eventually(lambda: own.found("connections_full") == [])


def test_a_transaction_that_is_open_for_long_is_found_and_ended(own):
    """It is made old by an earlier beginning, as statements see it."""
    with contextlib.closing(psycopg2.connect(own.database.url, application_name="forgotten")) as idle:
        idle.cursor().execute("select 1")
        own.database.query("create schema old; create view old.pg_stat_activity as select datname, datid, pid, usename, application_name,"
                           " state, backend_type, xact_start - interval '20 min' as xact_start from pg_catalog.pg_stat_activity")
        text = own.server.config_path.read_text()
        own.server.config_path.write_text(text.replace('schema: "public"', 'schema: "old,pg_catalog"'))
        problem = next(p for p in own.found("transaction_old") if "forgotten" in p["what"])
        assert "for 20 min" in problem["what"] and "idle in transaction" in problem["what"]
        assert own.advised(problem).returncode == 0
        with pytest.raises(psycopg2.Error):
            idle.cursor().execute("select 1")


def test_a_replication_slot_that_nothing_uses_is_found_and_dropped(own):
    own.database.query("select pg_create_physical_replication_slot('left_over', true)")
    assert own.found("slot_unused") == []
    for _ in range(5):
        own.database.query("create table if not exists t (n int); insert into t values (1)")
        own.database.query("select pg_switch_wal()")
    problem = own.one("slot_unused")
    assert "left_over" in problem["what"] and own.advised(problem).returncode == 0
    assert own.found("slot_unused") == [] and own.database.value("select count(*) from pg_replication_slots") == 0


# ---- dictionaries ----

def test_a_template_that_postgresql_refuses_is_found(doctor, refdata_db):  # noqa: F811
    patient = doctor(pod("D", sql_dictionary("BAD", "no_such_table")))
    problem = patient.one("template_refused")
    assert "BAD" in problem["what"] and "no_such_table" in problem["what"] and problem["severity"] == "critical"
    refdata_db.query("create table no_such_table (tenant_id text, k text, v jsonb)")
    assert patient.found("template_refused") == []


def accept(serve, database, token, *bodies):
    """By a process that only accepts, and that has ended."""
    server = serve(database, pod("D"), args=["--roles", "command"])
    for body in bodies:
        assert server.client(token(TENANT)).post(updates_path("ASYNC"), body).status == 202
    server.stop()
    database.query(f"update refdata.update_request set created_at = created_at - {HOUR}")
    return server


def test_updates_that_stay_pending_are_found_with_what_will_decide_them(serve, refdata_db, token, tmp_path):  # noqa: F811
    first, second = delta("D", {"k": 1}), delta("D", {"k": 2})
    server = accept(serve, refdata_db, token, first, second)
    patient = Doctor(server, tmp_path, refdata_db)
    problem = patient.one("update_pending")
    assert "2 updates are PENDING" in problem["what"] and "of demo/D" in problem["what"]
    assert "message 0 of refdata.commands/" in problem["what"] and problem["help"] == f"freshet updates show {first['eventId']}"
    assert "PENDING" in patient.advised(problem).stdout
    refdata_db.query("delete from platform.bus_message where topic = 'refdata.commands'")
    assert "nothing carries it" in patient.one("update_pending")["what"]
    serve(refdata_db, merge(pod("D"), {"refdata": {"updates": {"auditAfter": "100ms"}}}), args=["--roles", "apply"])
    eventually(lambda: patient.found("update_pending") == [])


# ---- outboxes ----

def test_events_that_failed_are_found_and_retried(doctor, refdata_db):  # noqa: F811
    patient = doctor()
    leave(refdata_db, "D", 1, 3)
    refdata_db.query("update refdata.outbox_event set failed_at = now(), last_error = e'no\\x1b[2J way' where version < 3")
    problem = patient.one("outbox_failed")
    assert "2 events of refdata.outbox_event" in problem["what"] and "no?[2J way" in problem["what"]
    done = patient.advised(problem)
    assert done.returncode == 0 and "2 will be tried again" in done.stdout, done.stderr
    assert patient.found("outbox_failed") == []


def test_events_that_are_leased_for_hours_are_found_and_freed(doctor, refdata_db):  # noqa: F811
    patient = doctor()
    leave(refdata_db, "D", 1, 1)
    refdata_db.query("update refdata.outbox_event set locked_until = now() + interval '1 day', claim_id = gen_random_uuid()")
    problem = patient.one("outbox_locked")
    assert "1 event of refdata.outbox_event" in problem["what"]
    assert patient.advised(problem).returncode == 0 and patient.found("outbox_locked") == []


def test_events_that_wait_for_long_are_found(doctor, refdata_db):  # noqa: F811
    patient = doctor()
    leave(refdata_db, "D", 1, 1)
    assert patient.found("outbox_old") == []
    refdata_db.query(f"update refdata.outbox_event set created_at = now() - {HOUR}")
    problem = patient.one("outbox_old")
    assert "refdata.outbox_event waits for 36" in problem["what"]
    assert "of=demo/D" in patient.advised(problem).stdout


# ---- the bus, and dead letters ----

def test_messages_that_wait_for_long_are_found(serve, refdata_db, token, tmp_path):  # noqa: F811
    server = accept(serve, refdata_db, token, delta("D", {"k": 1}))
    patient = Doctor(server, tmp_path, refdata_db)
    assert patient.found("consumer_lag") == []
    refdata_db.query(f"update platform.bus_message set created_at = created_at - {HOUR}")
    problem = patient.one("consumer_lag")
    assert "the group refdata-apply has 1 message of refdata.commands to handle" in problem["what"]
    serve(refdata_db, pod("D"), args=["--roles", "apply"])
    eventually(lambda: patient.found("consumer_lag") == [])


def test_dead_letters_of_the_bus_are_found(serve, refdata_db, tmp_path):  # noqa: F811
    server = serve(refdata_db, pod("D"))
    patient = Doctor(server, tmp_path, refdata_db)
    ready(refdata_db)
    publish(refdata_db, [b"no json"], requests=False, key=b"demo:D")
    problem = eventually(lambda: patient.found("dead_messages"))[0]
    assert "1 dead letter in refdata.commands.dlq" in problem["what"]
    assert patient.advised(problem).returncode == 0


def test_notifications_that_could_not_be_delivered_are_found_and_sent_again(serve, refdata_db, token, tmp_path):  # noqa: F811
    server = serve(refdata_db, pod("D"), args=["--roles", "entitlement,notification"])
    patient = Doctor(server, tmp_path, refdata_db)
    assert grant(server.client(token(scope=SCOPES)), "u", "a").status == 200
    eventually(lambda: refdata_db.value("select count(*) from notification.notifications") == 1)
    refdata_db.query("update notification.notifications set status = 'FAILED', last_error = 'refused'")
    problem = patient.one("dead_notifications")
    assert "1 notification could not" in problem["what"]
    done = patient.advised(problem)
    assert done.returncode == 0, done.stderr
    assert patient.found("dead_notifications") == []


def test_json_is_one_object(doctor):
    done = doctor().run("--json")
    assert json.loads(done.stdout)["checks"] > 10 and done.stdout.count("\n") == 1


def test_a_wrong_call_is_exit_2(doctor):
    patient = doctor()
    for args in (["more"], ["--patience", "soon"], ["--url", "nowhere"], ["--nonsense"]):
        done = patient.run(*args)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("freshet doctor: "), done.stderr
