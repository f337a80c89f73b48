"""C7: what a process without work holds. Three processes with all roles fit into PostgreSQL's default of 100 connections with room
to spare."""
import os

from lib.refdata import own_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

IDLE_CONNECTIONS = 8
IDLE_THREADS = 24


def backends(database):
    return database.query("select query from pg_stat_activity where datname = current_database()"
                          " and backend_type = 'client backend' and pid <> pg_backend_pid()")


def listeners(database):
    return [query for (query,) in backends(database) if query.startswith("LISTEN")]


def test_an_idle_process_with_all_roles_holds_at_most_eight_connections(serve, refdata_db):
    """One of them LISTENs, for the store and for refdata alike, and one sends notices. Those of the start are closed a moment
    after they were needed, later on a loaded machine."""
    server = serve(refdata_db)
    eventually(lambda: listeners(refdata_db))
    eventually(lambda: len(backends(refdata_db)) <= IDLE_CONNECTIONS)
    assert len(listeners(refdata_db)) == 1
    assert server.is_ready()


def test_an_idle_process_with_all_roles_has_few_threads(serve, refdata_db):
    """Workers start when jobs need them and end when they have been idle for some seconds."""
    server = serve(refdata_db)
    eventually(lambda: len(os.listdir(f"/proc/{server.process.pid}/task")) <= IDLE_THREADS)
    assert server.is_ready()
