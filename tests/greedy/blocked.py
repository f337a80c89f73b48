"""SQL that cannot go on: an advisory lock that a test holds, and who waits for it."""
import contextlib


def wait_sql(lock):
    """A materialized table expression `waited` that has a row when nobody holds the lock."""
    return f"with waited as materialized (select pg_advisory_xact_lock({lock}))"


def count_blocked(database, lock):
    """How many statements wait for the lock."""
    return database.value("select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted", (lock,))


@contextlib.contextmanager
def held(database, lock):
    """Holds the lock; yields how many wait for it, as a function."""
    with contextlib.closing(database.connect()) as connection:
        connection.cursor().execute("select pg_advisory_lock(%s)", (lock,))
        yield lambda: count_blocked(database, lock)
