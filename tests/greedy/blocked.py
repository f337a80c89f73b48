"""SQL that cannot go on: an advisory lock that a test holds, and who waits for it. Requests that nobody reads the answers of."""
import contextlib
import json
import select

from lib.wire import RawConnection

TENANTS = GREEDY, MODEST = "greedy", "modest"


def wait_sql(lock, tenant):
    """A materialized table expression `waited` that has a row; for GREEDY, when nobody holds the lock."""
    return ("with waited as materialized (select case when"
            f" {tenant} = '{GREEDY}' then pg_advisory_xact_lock({lock})::text else '' end)")


def block_writes(database, table, lock, condition=f"new.tenant_id = '{GREEDY}'"):
    """Rows like that are not inserted while somebody holds the lock."""
    name = f"block_{lock}"
    database.query(f"create function public.{name}() returns trigger language plpgsql as $$ begin"
                   f" perform pg_advisory_xact_lock({lock}); return new; end $$;"
                   f" create trigger {name} before insert on {table} for each row when ({condition})"
                   f" execute function public.{name}()")


def count_blocked(database, lock):
    """How many statements wait for the lock."""
    return database.value("select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted", (lock,))


@contextlib.contextmanager
def held(database, lock):
    """Holds the lock; yields how many wait for it, as a function."""
    with contextlib.closing(database.connect()) as connection:
        connection.cursor().execute("select pg_advisory_lock(%s)", (lock,))
        yield lambda: count_blocked(database, lock)


class Flood:
    """Sends requests of one tenant, each on a connection of its own, and reads answers only when it is asked to."""

    def __init__(self, server, bearer):
        self.server, self.bearer = server, bearer
        self.connections = []

    def send(self, method, path, body=None, **headers):
        """Returns the connection: its answer is read by read_response()."""
        connection = RawConnection(self.server.port, timeout=120)
        self.connections.append(connection)
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Authorization: Bearer {self.bearer}",
                 f"Content-Length: {len(content)}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection.send("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        return connection

    def get(self, path, **headers):
        return self.send("GET", path, **headers)

    def post(self, path, body, **headers):
        return self.send("POST", path, body, **headers)

    def answered(self):
        """The connections that have something to read."""
        return [connection for connection in self.connections if select.select([connection.socket], [], [], 0)[0]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.connections:
            connection.close()
