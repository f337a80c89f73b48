"""Processes that get killed and come back."""
import random
import signal
import time

from failpoints import reached
from lib.refdata import CACHE, pod
from workload import DICTIONARIES, TABLES

# Two ways to share the roles out: everything twice, or writing and applying apart.
TOGETHER = [[], []]
APART = [["--roles", "command,query"], ["--roles", "apply,relay,query"]]


class Cluster:
    """Servers on one database. Every one is a pod too, so that all can be compared."""

    def __init__(self, serve, database, roles, **changes):
        database.query(TABLES)
        settings = pod(*DICTIONARIES, cache={**CACHE, "sweepInterval": "1s"}, **changes)
        self.servers = [serve.make(database, settings, args=args) for args in roles]
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


class Killer:
    """Kills one server after the other: at a failpoint if it gets there, or else at any moment.

    Each life is armed with one failpoint, or none. `patience` is how long it may take to get there.
    """

    def __init__(self, cluster, names, seed=1, patience=2.0):
        self.cluster, self.names, self.patience = cluster, list(names), patience
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
        turn = 0
        while self.cluster.kills < kills and not should_stop():
            server = self.cluster.servers[turn % len(self.cluster.servers)]
            turn += 1
            self.await_death(server)
            self.cluster.kill(server)
            self.cluster.restart(server, self.arm())

    def await_death(self, server):
        is_armed = bool(server.env.get("FRESHET_FAILPOINTS"))
        deadline = time.monotonic() + (self.patience if is_armed else self.random.uniform(0.1, 1.0))
        while time.monotonic() < deadline and server.process.poll() is None:
            time.sleep(0.01)
        if server.process.poll() is not None:
            assert server.process.returncode == -signal.SIGKILL, f"ended by itself:\n{server.log()[-3000:]}"
