"""DESIGN "Costs are tested": what a statement reads depends on what it changes or lists, not on what exists. This holds for processes
that have prepared their statements while the tables were empty, and for a PostgreSQL that has not analyzed them since."""
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
import reads
import rig
from lib import tokens
from lib.config import base_config, merge
from lib.freshet import Freshet
from lib.refdata import migrated
from workload import SETTINGS, Workload

STEPS = 60
FIXED = {"bus_partition", "bus_cursor"}  # have all their rows soon after the start
# Reads that may grow: a part of the statement, the table, and the reason.
ACCEPTED = [
    ("(select r.* from refdata.update_request r order by", "update_request", "a list of operators goes through at most 20,000 rows"),
    ("(select r.* from refdata.outbox_event r where", "outbox_event", "the same"),
    ("(select r.* from hydration.flights r", "flights", "the same"),
    ("(select r.* from (select 'chat'", "idempotency_keys", "the same, of three tables together"),
    ("with recent as materialized", "update_request", "the overview counts among the newest 20,000"),
    ("AS message_offset, min(created_at) AS since FROM", "bus_message", "retention looks at the rows of one deletion"),
    ("SELECT p.partition::text, p.next_offset::text, m.message_offset::text", "bus_message",
     "a reader of everything reads what is new since its last look, which depends on when it looks"),
]


@pytest.fixture(scope="module")
def postgres():
    server = rig.start_postgres(reads.SETTINGS)
    yield server
    server.destroy()


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="freshet-reads-"))
    yield path
    shutil.rmtree(path)


def run(postgres, folder, processes):
    """The statements of that many steps."""
    key = tokens.Key("EdDSA")
    jwks_path = tokens.write_jwks(folder / "jwks.json", [key])
    database = migrated(postgres, jwks_path, folder)
    with ExitStack() as stack:
        servers = []
        for number, args in enumerate(processes):
            servers.append(Freshet(merge(base_config(database, jwks_path), SETTINGS), folder / f"server{number}",
                                   {"FRESHET_PG_URL": database.url, "FRESHET_TEST_PG_PASSWORD": database.password}, args))
            stack.callback(servers[-1].kill)
            servers[-1].start()
        workload = Workload(servers[0], key)
        stack.callback(workload.close)
        workload.begin()
        for _ in range(STEPS):
            workload.step()
        workload.close()
        for server in reversed(servers):
            server.stop()
    return reads.statements_of(postgres.log, database.name)


def is_accepted(statement, table):
    return any(part in statement.text and table == of for part, of, _ in ACCEPTED)


@pytest.mark.parametrize("processes", [[[]], [["--roles", "query,command,adapter,intake,entitlement,notification,chat,hydration,ops"],
                                              ["--roles", "apply,relay"]]], ids=["one-process", "two-processes"])
def test_no_statement_reads_more_because_more_exists(postgres, folder, processes):
    statements = run(postgres, folder, processes)
    growing = []
    for statement in statements.values():
        for table in statement.tables() - FIXED:
            if statement.grows(table) and not is_accepted(statement, table):
                first, second = statement.halves(table)
                growing.append(f"{table}: {first:.1f} rows a run, then {second:.1f}\n  {statement.text}\n{statement.plan}")
    if growing:
        pytest.fail("\n\n".join(growing), pytrace=False)
