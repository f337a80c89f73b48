"""A PostgreSQL with a streaming standby, and the ways in which a program finds the one that takes writes.

    Pair.primary ──WAL──▶ Pair.standby        kill() ends the first as a machine's death would, promote() makes the second
                                              one the primary. cut() stops the WAL: what commits afterwards is the lost tail.

`hosts`: the program's URL names both servers and asks for a primary. `address`: it names one address, which a proxy forwards to
the primary, as a virtual IP address or a service of Kubernetes does.
"""
import contextlib
import os
import socket
import subprocess
import threading

from lib.postgres import Database, PostgresServer, bin_dir, run_as_owner
from lib.wait import eventually, free_port

ADDRESSES = ("jdbc hosts", "libpq hosts", "address")


class Standby(PostgresServer):
    """A copy of a primary by pg_basebackup, which follows it."""

    def __init__(self, primary):
        self.primary = primary
        super().__init__()

    def _make_cluster(self):
        self.password = self.primary.password
        run_as_owner(bin_dir() / "pg_basebackup", "-h", "127.0.0.1", "-p", self.primary.port, "-U", "freshet", "-D", self.data,
                     "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync", check=True,
                     stdout=subprocess.DEVNULL, env={**os.environ, "PGPASSWORD": self.password})

    def promote(self):
        assert self._pg_ctl("-w", "-t", "60", "promote") == 0, self.log.read_text()[-3000:]


class Address:
    """One address for whichever server `target` names; every connection ends when that changes."""

    def __init__(self, target):
        self.target, self.port = target, free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.connections, self.lock = set(), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                front, _ = self.listener.accept()
            except OSError:
                return
            try:
                back = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                front.close()
                continue
            with self.lock:
                self.connections |= {front, back}
            for one, other in ((front, back), (back, front)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        self._end({one, other})

    def _end(self, sockets):
        with self.lock:
            ended, self.connections = self.connections & sockets, self.connections - sockets
        for each in ended:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # close() alone would wait for the other thread's recv()
            each.close()

    def move(self, target):
        self.target = target
        self._end(set(self.connections))

    def close(self):
        self.listener.close()
        self._end(set(self.connections))


class PairDatabase(Database):
    """A database of both servers. Tests ask the one that takes writes; the program has the address that the pair gives."""

    @property
    def jdbc_url(self):
        return self.server.jdbc_url(self.name)


class Pair:
    """Both servers. `now` is the one that takes writes."""

    def __init__(self, by="jdbc hosts"):
        self.by = by
        self.primary = self.now = PostgresServer().start()
        self.standby = Standby(self.primary).start()
        self.address = Address(self.primary.port) if by == "address" else None

    # ---- as a PostgresServer ----

    @property
    def data(self):
        return self.now.data

    @property
    def password(self):
        return self.now.password

    @property
    def port(self):
        return self.now.port

    def url(self, database="postgres"):
        return self.now.url(database)

    def execute(self, sql):
        self.now.execute(sql)

    def create_database(self, template="template1"):
        return PairDatabase(self, self.now.create_database(template).name)

    def jdbc_url(self, name):
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return {"jdbc hosts": f"jdbc:postgresql://{hosts}/{name}?targetServerType=primary",
                "libpq hosts": f"postgresql://{hosts}/{name}?target_session_attrs=read-write",
                "address": f"jdbc:postgresql://127.0.0.1:{self.address and self.address.port}/{name}"}[self.by]

    def destroy(self):
        if self.address:
            self.address.close()
        for server in (self.primary, self.standby):
            server.destroy()

    # ---- replication ----

    def ask(self, server, sql):
        return Database(server, "postgres").value(sql)

    def synchronise(self):
        """From now on a commit is answered when the standby has it."""
        self.execute("alter system set synchronous_standby_names = '*'")
        self.execute("select pg_reload_conf()")
        eventually(lambda: self.ask(self.primary, "select count(*) from pg_stat_replication where sync_state = 'sync'") == 1)

    def catch_up(self):
        """Waits until the standby has everything that is committed now."""
        here = self.ask(self.primary, "select pg_current_wal_flush_lsn()::text")
        eventually(lambda: self.ask(self.standby, f"select pg_last_wal_receive_lsn() >= '{here}'::pg_lsn"))

    def cut(self):
        """The standby receives nothing any more."""
        for sql in ("alter system set primary_conninfo = ''", "select pg_reload_conf()"):
            self.standby.execute(sql)
        eventually(lambda: self.ask(self.standby, "select count(*) from pg_stat_wal_receiver") == 0)

    def kill(self):
        self.primary.stop("immediate")

    def promote(self):
        self.standby.promote()
        self.now = self.standby
        if self.address:
            self.address.move(self.standby.port)
