"""A private PostgreSQL that lives as long as a test run.

As root it runs as user `postgres`, in a temporary folder that user can reach. It never waits for the disk:
tests kill processes, not machines.
"""
import contextlib
import glob
import itertools
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from .wait import free_port

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = 64MB
fsync = off
full_page_writes = off
autovacuum_naptime = 30s
jit = off
"""


def bin_dir():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda p: int(p.split("/")[4]))
    path = found[-1] if found else shutil.which("initdb")
    if not path:
        raise RuntimeError("PostgreSQL's initdb is not installed")
    return Path(path).resolve().parent


def run_as_owner(*command, **options):
    """Runs a PostgreSQL program as the user who owns the cluster."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    return subprocess.run([*prefix, *map(str, command)], cwd="/", text=True, **options)


def make_home():
    """A new temporary folder that the cluster's owner can reach."""
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        home = Path(tempfile.mkdtemp(prefix="freshet-test-pg-", dir=parent))
        if os.geteuid() == 0:
            shutil.chown(home, "postgres", "postgres")
        if run_as_owner("test", "-w", home).returncode == 0:
            return home
        home.rmdir()
    raise RuntimeError("no temporary folder that user postgres can reach")


class PostgresServer:
    """One cluster; stop() and start() keep its data and its port, so that clients can find it again."""

    def __init__(self):
        self.home = make_home()
        self.data = self.home / "data"
        self.log = self.home / "postgres.log"
        self.password = None
        self.port = None
        self._names = itertools.count(1)
        self._kept = KeptConnections(self.url)
        try:
            self._make_cluster()
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise

    def _make_cluster(self):
        made = os.environ.get("FRESHET_TEST_CLUSTER")
        if made:  # ./dev test has called initdb once for all
            self.password = (Path(made) / "password").read_text().strip()
            subprocess.run(["cp", "-a", Path(made) / "data", self.data], check=True)
        else:
            self.password = secrets.token_hex(16)
            self._initdb()
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as config:
            config.write(SETTINGS)

    def _initdb(self):
        password_file = self.home / "password"
        password_file.write_text(self.password + "\n")
        if os.geteuid() == 0:
            shutil.chown(password_file, "postgres", "postgres")
        password_file.chmod(0o600)
        # Not scram-sha-256, as ./dev run has it: that takes 10 ms of CPU for each connection, and tests open many.
        run_as_owner(bin_dir() / "initdb", "-D", self.data, "-U", "freshet", "--auth=md5",
                     f"--pwfile={password_file}", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
                     check=True, stdout=subprocess.DEVNULL)
        password_file.unlink()

    def _pg_ctl(self, *args):
        return run_as_owner(bin_dir() / "pg_ctl", "-D", self.data, *args,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    def start(self):
        for port in [self.port] if self.port else (free_port() for _ in range(5)):
            if self._pg_ctl("-l", self.log, "-o", f"-p {port}", "-w", "-t", "60", "start") == 0:
                self.port = port
                return self
        raise RuntimeError("PostgreSQL did not start:\n" + self.log.read_text()[-4000:])

    def stop(self, mode="fast"):
        """mode `immediate` is what a crash looks like to clients."""
        if self._pg_ctl("status") == 0:
            if self._pg_ctl("-m", mode, "-w", "-t", "60", "stop") != 0:
                raise RuntimeError("PostgreSQL did not stop")

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def destroy(self):
        self._kept.close()
        with contextlib.suppress(RuntimeError):
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, database="postgres"):
        return f"postgresql://freshet:{self.password}@127.0.0.1:{self.port}/{database}"

    def execute(self, sql):
        self._kept.execute(sql)

    def create_database(self, template="template1"):
        """A fresh copy of the template database (which nobody may be connected to)."""
        name = f"test_{next(self._names)}_{secrets.token_hex(3)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        return Database(self, name)


class Database:
    """One database of a PostgresServer."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self._kept = KeptConnections(lambda: self.url)

    @property
    def url(self):
        return self.server.url(self.name)

    @property
    def jdbc_url(self):
        return f"jdbc:postgresql://127.0.0.1:{self.server.port}/{self.name}"

    @property
    def user(self):
        return urlsplit(self.url).username

    @property
    def password(self):
        return self.server.password

    def connect(self):
        """A psycopg2 connection in autocommit; the caller closes it."""
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        return connection

    def query(self, sql, args=None):
        """Runs one statement (or several without arguments); returns the last one's rows, if any."""
        return self._kept.execute(sql, args)

    def value(self, sql, args=None):
        return self.query(sql, args)[0][0]

    def run_file(self, path):
        self.query(Path(path).read_text(encoding="utf-8"))

    def drop(self):
        self._kept.close()
        self.server.execute(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')


class KeptConnections:
    """A connection of each thread, in autocommit: a new one costs more than most statements."""

    def __init__(self, url):
        self.url, self.of_thread, self.all = url, threading.local(), []

    def execute(self, sql, args=None):
        """Runs one statement (or several without arguments); returns the last one's rows, if any."""
        connection = getattr(self.of_thread, "connection", None)
        if connection is None or not self._is_usable(connection):
            connection = self.of_thread.connection = psycopg2.connect(self.url())
            connection.autocommit = True
            self.all.append(connection)
        with connection.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else None

    def close(self):
        while self.all:
            self.all.pop().close()

    @staticmethod
    def _is_usable(connection):
        """An idle connection that can be read was ended by the server."""
        if connection.closed:
            return False
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return not poll.poll(0)


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def cluster_processes(server):
    """The postmaster and everything it forked. Not by the kernel's list of children, which skips some while others end."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    return [postmaster, *(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == postmaster)]


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a worker of autovacuum that has ended
            os.kill(pid, number)


def is_stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def freeze_cluster(server):
    """Returns when every process is seen to be stopped and there is no further one: the postmaster may be forking meanwhile."""
    before = None
    while True:
        pids = cluster_processes(server)
        signal_all(pids, signal.SIGSTOP)
        if set(pids) == before and all(map(is_stopped, pids)):
            return pids
        before = set(pids)
