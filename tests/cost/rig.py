"""Servers whose work is counted: started under strace or callgrind, with the counting proxy before PostgreSQL.

A rig is a database, the proxy and one or more processes. `counts()` says what they have used so far; the difference between two
of them, with `settle()` between, is what an operation cost.
"""
import collections
import contextlib
import mmap
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import quiet
from lib import freshet as program
from lib.config import base_config, merge
from lib.postgres import Database, PostgresServer
from lib.wait import free_port
from proxy import NAMES, Counts

HERE = Path(__file__).resolve().parent
# Nothing in PostgreSQL's background writes to its log, and a new connection costs no password's arithmetic.
POSTGRES_SETTINGS = """
wal_level = minimal
max_wal_senders = 0
autovacuum = off
checkpoint_timeout = 1d
max_wal_size = 4GB
jit = off
"""
POSTGRES_ACCESS = "host all all 127.0.0.1/32 trust\n"
BUS_SQL = "select coalesce(sum(next_offset), 0)::bigint from platform.bus_partition"
LSN_SQL = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def start_postgres(settings=""):
    """A private server that writes to its log what statements write, and nothing else."""
    server = PostgresServer()
    with open(server.data / "postgresql.conf", "a", encoding="utf-8") as config:
        config.write(POSTGRES_SETTINGS + settings)
    (server.data / "pg_hba.conf").write_text(POSTGRES_ACCESS, encoding="utf-8")
    try:
        return server.start()
    except BaseException:
        server.destroy()
        raise


def counter_library():
    """What is preloaded; built beside the program by -Dcost=true."""
    return Path(program.binary()).resolve().parents[2] / "tests" / "cost" / "counter.so"


class ThroughProxy(Database):
    """The same database, at the proxy's port."""

    def __init__(self, database, port):
        super().__init__(database.server, database.name)
        self.port = port

    @property
    def jdbc_url(self):
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.name}"


class Counted(program.Freshet):
    """A process under strace: system calls by name, allocations."""

    def __init__(self, config, folder, env, args):
        super().__init__(config, folder, env, args)
        self.counts_path = self.folder / "allocations"
        self.counts_path.write_bytes(bytes(8))
        with open(self.counts_path, "r+b") as file:
            self.allocations = mmap.mmap(file.fileno(), 8)
        self.calls = collections.Counter()
        self.traces = {}

    def preload(self):
        return {"LD_PRELOAD": str(counter_library()), "FRESHET_COST_COUNTS": str(self.counts_path)}

    def command(self):
        given = [word for name, value in self.preload().items() for word in ("-E", f"{name}={value}")]
        # -D: the tracer is the program's grandchild, so that the process started here is the program itself.
        return ["strace", "-D", "-ff", "-qq", "-s", "0", "-e", "signal=none", "-o", str(self.folder / "calls"), *given]

    def spawn(self):
        self.port = free_port()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command(), program.binary(), "serve", "--config", str(self.config_path),
                 "--listen", f"127.0.0.1:{self.port}", *self.args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def pids(self):
        """The program's and its tracer's."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return [pid for pid in (self.process.pid, int(re.search(r"TracerPid:\t(\d+)", status)[1])) if pid]

    def begin(self):
        """The process is ready and quiet."""

    def counts(self):
        """A file per thread; a line is a call that has ended."""
        for path in self.folder.glob("calls.*"):
            if path not in self.traces:
                self.traces[path] = open(path, encoding="ascii", errors="replace")
            while (line := self.traces[path].readline()).endswith("\n"):
                self.calls[line.split("(")[0]] += 1
            self.traces[path].seek(self.traces[path].tell() - len(line))
        return {"system calls": sum(self.calls.values()), "allocations": struct.unpack("=Q", self.allocations[:8])[0]}

    def close(self):
        for trace in self.traces.values():
            trace.close()


class Profiled(Counted):
    """A process under callgrind: instructions."""

    def __init__(self, config, folder, env, args):
        super().__init__(config, folder, env, args)
        self.control_path = self.folder / "control"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.control_path))
        self.listener.listen()
        self.control = None
        self.instructions = 0
        self.dumps = 0

    def preload(self):
        return {**super().preload(), "FRESHET_COST_CONTROL": str(self.control_path)}

    def command(self):
        self.env.update(self.preload())
        return ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes", "--dump-line=no", "--combine-dumps=no",
                f"--callgrind-out-file={self.folder}/profile", f"--log-file={self.folder}/valgrind.log"]

    def pids(self):
        return [self.process.pid]

    def start(self, ready=True):
        super().start(ready)
        self.listener.settimeout(60)
        self.control = self.listener.accept()[0]
        self.control.settimeout(60)
        return self

    def begin(self):
        """Turns the instrumentation on; before that the process is five times as fast."""
        self._ask(b"i")

    def _ask(self, command):
        self.control.sendall(command)
        assert self.control.recv(1) == command, "the program's control thread has ended"

    def counts(self):
        self._ask(b"d")
        self.dumps += 1
        path = self.folder / f"profile.{self.dumps}"
        with open(path, encoding="ascii", errors="replace") as profile:
            self.instructions += next(int(line.split()[1]) for line in profile if line.startswith("summary:"))
        path.unlink()
        return {"instructions": self.instructions}

    def close(self):
        super().close()
        for each in (self.control, self.listener):
            if each:
                each.close()


class Rig:
    """A database, a proxy, and a process for each entry of `processes`: its command line's arguments."""

    def __init__(self, kind, folder, jwks_path, database, settings, processes):
        self.kind, self.folder, self.jwks_path = kind, folder, jwks_path
        self.database, self.settings = database, settings
        self.processes = processes
        self.servers = []
        self.stack = contextlib.ExitStack()

    def start(self):
        self.folder.mkdir(parents=True)
        try:
            self._start_all()
        except BaseException:
            self.stack.close()
            raise
        return self

    def _start_all(self):
        self._start_proxy()
        through = ThroughProxy(self.database, self.proxy_port)
        config = merge(base_config(through, self.jwks_path), self.settings)
        env = {"FRESHET_PG_URL": self.database.url, "FRESHET_TEST_PG_PASSWORD": self.database.password}
        for number, args in enumerate(self.processes):
            server = self.kind(config, self.folder / f"server{number + 1}", env, args)
            self.stack.callback(server.close)
            self.stack.callback(server.kill)
            self.servers.append(server.start())
        self.connection = self.stack.enter_context(contextlib.closing(self.database.connect()))
        self.own_backend = self._value("select pg_backend_pid()")
        self.settle()
        for server in self.servers:
            server.begin()

    def _start_proxy(self):
        counts_path = self.folder / "proxy"
        counts_path.write_bytes(bytes(8 * len(NAMES)))
        self.proxy_counts = Counts(counts_path)
        self.proxy = subprocess.Popen([sys.executable, "-B", HERE / "proxy.py", str(self.database.server.port), counts_path],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.stack.callback(self._stop_proxy)
        self.proxy_port = int(self.proxy.stdout.readline())

    def _stop_proxy(self):
        self.proxy.kill()
        self.proxy.wait()
        self.proxy.stdin.close()
        self.proxy.stdout.close()

    def hold_answers(self):
        """From here on the processes wait for every answer of PostgreSQL's."""
        self._command(b"h")

    def release_answers(self):
        self._command(b"g")

    def _command(self, command):
        self.proxy.stdin.write(command)
        assert self.proxy.stdout.read(1) == command, "the proxy has ended"

    def _value(self, sql):
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    def pids(self):
        own = [pid for pid in quiet.backends(self.database.server, self.database.name) if pid != self.own_backend]
        return [*own, self.proxy.pid, *(pid for server in self.servers for pid in server.pids())]

    def settle(self):
        """Waits until nothing of an operation is under way."""
        quiet.wait(self.pids)

    def settle_held(self):
        """Waits until the processes have nothing to do but to wait for answers that are held back."""
        quiet.wait(lambda: [pid for server in self.servers for pid in server.pids()], 0)

    def counts(self):
        """What was used so far."""
        total = collections.Counter({"WAL bytes": int(self._value(LSN_SQL)), "bus messages": self._value(BUS_SQL)})
        for server in self.servers:
            total.update(server.counts())
        total.update(self.proxy_counts.read())
        return total

    def calls(self):
        """System calls so far by name, of all processes."""
        return sum((server.calls for server in self.servers), collections.Counter())

    def stop(self):
        """Ends all of it; a process must end by itself, with status 0."""
        try:
            for server in reversed(self.servers):
                server.stop()
        finally:
            self.stack.close()
            shutil.rmtree(self.folder, ignore_errors=True)
