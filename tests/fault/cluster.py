"""Processes that get killed and come back."""
import random
import signal
import time

from failpoints import reached
from lib.refdata import CACHE, TENANT, pod
from lib.wait import PATIENCE
from workload import CODES, DICTIONARIES, TABLES

# Two ways to share the roles out: everything twice, or writing and applying apart.
TOGETHER = [[], []]
APART = [["--roles", "command,query"], ["--roles", "apply,relay,query"]]


class Processes:
    """Servers that get killed; `make` is called with the arguments of each."""

    def __init__(self, make, roles):
        self.servers = [make(args) for args in roles]
        self.kills = 0

    def start(self):
        for server in self.servers:
            server.start()
        return self

    def restart(self, server, failpoints=""):
        """Starts one that is dead; does not wait for it."""
        server.env["FRESHET_FAILPOINTS"] = failpoints
        server.spawn()

    def kill(self, server):
        server.kill()
        self.kills += 1

    def heal(self):
        """All of them run, and nothing makes them die any more."""
        for server in self.servers:
            if server.process.poll() is not None or server.env.get("FRESHET_FAILPOINTS"):
                server.kill()
                server.env["FRESHET_FAILPOINTS"] = ""
                server.start()
        return self.servers

    def reached(self):
        """The failpoints that were come to, over all servers."""
        return set().union(*(reached(server) for server in self.servers))


class Cluster(Processes):
    """Servers on one database. Every one is a pod too, so that all can be compared."""

    def __init__(self, serve, database, roles, **changes):
        database.query(TABLES)
        preload = [f"{TENANT}/{code}" for code in CODES]
        settings = pod(*DICTIONARIES, cache={**CACHE, "sweepInterval": "1s", "preload": preload}, **changes)
        settings["refdata"]["outbox"] = {"lease": "2s"}  # of a relay that died
        settings["refdata"]["updates"] = {"auditAfter": "500ms"}  # the auditor decides nothing that is carried
        super().__init__(lambda args: serve.make(database, settings, args=args), roles)
        self.writable = [server for server, args in zip(self.servers, roles) if not args or "command" in args[-1]]


class Killer:
    """Kills one server after the other: at a failpoint if it gets there, or else at any moment.

    Each life is armed with one failpoint, or none. `patience` is how long it may take to get there.
    """

    def __init__(self, cluster, workload, names, seed=1, patience=2.0):
        self.cluster, self.workload, self.names, self.patience = cluster, workload, list(names), patience
        self.random = random.Random(seed)
        self.lives = 0

    def arm(self):
        """What the next life dies of: each name in turn, at its first or a later time; every fourth, of chance."""
        self.lives += 1
        if not self.names or self.lives % 4 == 0:
            return ""
        name = self.names[(self.lives - self.lives // 4 - 1) % len(self.names)]
        return f"{name}=kill#{self.random.choice([1, 1, 2, 5, 20])}"

    def run(self, kills, should_stop):
        """The servers in turn; between two kills some updates get through, if they can."""
        while self.cluster.kills < kills and not should_stop():
            server = self.cluster.servers[self.cluster.kills % len(self.cluster.servers)]
            accepted = len(self.workload.sent)
            self.await_death(server)
            self.cluster.kill(server)
            self.cluster.restart(server, self.arm())
            self.wait(lambda: len(self.workload.sent) > accepted + 10, 1.0)  # pylint: disable=cell-var-from-loop

    def await_death(self, server):
        is_armed = bool(server.env.get("FRESHET_FAILPOINTS"))
        self.wait(lambda: server.process.poll() is not None,
                  self.patience if is_armed else self.random.uniform(0.0, 0.7))
        if server.process.poll() is not None:
            assert server.process.returncode == -signal.SIGKILL, f"ended by itself:\n{server.log()[-3000:]}"

    @staticmethod
    def wait(condition, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not condition():
            time.sleep(0.01)

    def kill_all_at(self, name, should_stop):
        """Every server lives until one of them has come to this failpoint."""
        for server in self.cluster.servers:
            self.cluster.kill(server)
            self.cluster.restart(server, f"{name}=kill#1")
        self.wait(lambda: should_stop() or name in self.cluster.reached(), PATIENCE)
        self.wait(lambda: any(server.process.poll() is not None for server in self.cluster.servers), 1)
        assert should_stop() or name in self.cluster.reached(), f"nobody came to {name}"
