"""What the tests of dictionaries share: databases with the schema in place, writers by SQL, paths, pod settings.

A writer here is "somebody else's program": it changes rows and raises dictionary_meta.version in one transaction, as
R13 asks of everybody.
"""
import contextlib
import json
import os
import threading
from urllib.parse import quote

import pytest

from .config import base_config, merge, to_yaml
from .freshet import run

TENANT = "demo"

# Pods of tests look every 50 ms, so that nobody waits, and have time for a first read on a machine that has none; nothing is
# ever decided by these numbers.
CACHE = {"sweepInterval": "50ms", "jitter": "0ms", "retryMin": "20ms", "retryMax": "200ms", "firstReadTimeout": "20s"}
HTTP = {"limits": {"requestTimeout": "30s"}}


def pod(*dictionaries, cache=None, **more):
    """Changes over base_config for a pod with these dictionaries; a plain string is one in the built-in table."""
    return {
        "refdata": {
            "cache": {**CACHE, **(cache or {})},
            "dictionaries": [{"code": d} if isinstance(d, str) else d for d in dictionaries],
        },
        **more,
        "http": merge(HTTP, more.get("http", {})),
    }


def sql_dictionary(code, table=None, **more):
    """A dictionary over a table (tenant_id, k, v)."""
    return {"code": code, "loadSql": f"select k, v from {table or code.lower()} where tenant_id = :tenantId", **more}


def slow_dictionary(code, seconds):
    """One item, after that many seconds."""
    return {"code": code, "loadSql": f"select 'k' as k, to_jsonb(:tenantId) as v from pg_sleep({seconds})"}


def path(code, rest="", tenant=TENANT):
    return f"/v1/tenants/{tenant}/dictionaries/{code}{rest}"


def item_path(code, key, tenant=TENANT):
    return path(code, "/items/" + quote(key, safe=""), tenant)


def keys_path(code, keys, tenant=TENANT):
    return path(code, "/items?keys=" + ",".join(quote(key, safe="") for key in keys), tenant)


_templates = {}


def migrated(postgres, jwks_path, folder):
    """A fresh database with the schema in place: a copy of one that `freshet migrate` made once per run."""
    if postgres.data not in _templates:
        template = postgres.create_database()
        config = folder / "migrate.yaml"
        config.write_text(to_yaml(base_config(template, jwks_path)))
        done = run("migrate", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": template.password})
        assert done.returncode == 0, done.stderr
        _templates[postgres.data] = template.name
    return postgres.create_database(_templates[postgres.data])


@pytest.fixture
def refdata_db(postgres, jwks_path, tmp_path):
    """A database of the test's own, schema in place."""
    database = migrated(postgres, jwks_path, tmp_path)
    yield database
    database.drop()


@pytest.fixture(scope="module")
def module_refdata_db(postgres, jwks_path, tmp_path_factory):
    """The same for all tests of a file."""
    database = migrated(postgres, jwks_path, tmp_path_factory.mktemp("migrate"))
    yield database
    database.drop()


@pytest.fixture
def own_refdata_db(own_postgres, jwks_path, tmp_path):
    """A database in a PostgreSQL that the test may stop as it likes."""
    return migrated(own_postgres, jwks_path, tmp_path)


NO_EVENT = "00000000-0000-0000-0000-000000000000"  # of version 0


def raise_version(cursor, code, event, tenant=TENANT):
    """As apply does: the version, and the event that made it. Returns the version, and the event of the one before it."""
    cursor.execute("select last_event_id::text from refdata.dictionary_meta where tenant_id = %s and dict_code = %s for update",
                   (tenant, code))
    (previous,) = cursor.fetchone() or (NO_EVENT,)
    cursor.execute("insert into refdata.dictionary_meta as m (tenant_id, dict_code, version, updated_at, last_event_id)"
                   " values (%s, %s, 1, clock_timestamp(), %s) on conflict (tenant_id, dict_code) do update"
                   " set version = m.version + 1, updated_at = excluded.updated_at, last_event_id = excluded.last_event_id"
                   " returning version", (tenant, code, event))
    return cursor.fetchone()[0], previous


def set_version(database, code, version, tenant=TENANT):
    database.query("insert into refdata.dictionary_meta (tenant_id, dict_code, version, updated_at)"
                   " values (%s, %s, %s, now()) on conflict (tenant_id, dict_code)"
                   " do update set version = excluded.version, updated_at = now()", (tenant, code, version))


def write_builtin(database, code, items, version, tenant=TENANT):
    """Makes these the items of a dictionary in the built-in table, and this its version, in one transaction."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("delete from refdata.dictionary_item where tenant_id = %s and dict_code = %s", (tenant, code))
        for key, payload in items.items():
            cursor.execute("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                           " values (%s, %s, %s, %s)", (tenant, code, key, json.dumps(payload)))
        cursor.execute("insert into refdata.dictionary_meta (tenant_id, dict_code, version, updated_at)"
                       " values (%s, %s, %s, now()) on conflict (tenant_id, dict_code)"
                       " do update set version = excluded.version, updated_at = now()", (tenant, code, version))
        connection.commit()


def make_table(database, table, items=(), json_type="jsonb", tenant=TENANT):
    """A table (tenant_id, k, v); payloads are JSON texts, kept as they are where the type is json."""
    database.query(f"create table if not exists {table}"
                   f" (tenant_id text, k text, v {json_type}, primary key (tenant_id, k))")
    for key, text in dict(items).items():
        database.query(f"insert into {table} values (%s, %s, %s)", (tenant, key, text))


def generate(database, table, count, payload_sql, json_type="jsonb", tenant=TENANT):
    """count rows k00000…; payload_sql may use the number i."""
    make_table(database, table, json_type=json_type)
    database.query(f"insert into {table} select '{tenant}', 'k' || lpad(i::text, 6, '0'), {payload_sql}"
                   f" from generate_series(0, {count - 1}) i")


class LabelWriter:
    """Changes every row of a table to say its version and raises the version, in one transaction, again and again."""

    def __init__(self, database, code, table, tenant=TENANT, start=1):
        self.database, self.code, self.table, self.tenant = database, code, table, tenant
        self.version = start
        self.error = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write(self, cursor):
        self.version += 1
        cursor.execute("begin")
        cursor.execute("update refdata.dictionary_meta set version = %s, updated_at = now()"
                       " where tenant_id = %s and dict_code = %s", (self.version, self.tenant, self.code))
        cursor.execute(f"update {self.table} set v = jsonb_set(v, '{{label}}', to_jsonb(%s::bigint))"
                       " where tenant_id = %s", (self.version, self.tenant))
        cursor.execute("commit")

    def _run(self):
        try:
            with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
                while not self._stop.wait(0.01):
                    self.write(cursor)
        except Exception as error:  # pylint: disable=broad-except
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error


def labelled(database, code, rows, table=None, filler=0, tenant=TENANT):
    """A table of rows that all carry the label 1, at version 1. Returns the dictionary's definition."""
    table = table or code.lower()
    generate(database, table, rows,
             f"jsonb_build_object('label', 1, 'i', i, 'filler', repeat('x', {filler}))", tenant=tenant)
    set_version(database, code, 1, tenant)
    return sql_dictionary(code, table)


def lines_of(body):
    """NDJSON: every line ends in a newline and is one JSON value."""
    assert body == b"" or body.endswith(b"\n")
    return [json.loads(line) for line in body.split(b"\n")[:-1]]


def rss_bytes(process):
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
