"""A fleet as it is run for real: every role a process of its own, several of each, with nothing in common but PostgreSQL and
the engines."""
import itertools
import time

from lib import on_engines
from lib.refdata import CACHE, TENANT, path, pod
from lib.wait import eventually
from lib.writers import Patient, delta
from workload import CODES, DICTIONARIES, TABLES

WHOLE = {"command": 2, "apply": 2, "relay": 2, "query": 3}
SMALL = {"command,apply,relay": 1, "query": 2}

# Pods look at the database once an hour: what they know, they were told.
DEAF = "1h"


class Fleet:
    """sizes: how many processes of each role. sweep: how often pods compare versions with the database."""

    def __init__(self, serve, database, token, sizes=None, sweep="1s", dictionaries=None, adapter=None, kafka=None,
                 session=None, **changes):
        if dictionaries is None:
            database.query(TABLES)
        self.serve, self.database, self.token = serve, database, token(TENANT)
        codes = CODES if dictionaries is None else [d if isinstance(d, str) else d["code"] for d in dictionaries]
        self.settings = pod(*(DICTIONARIES if dictionaries is None else dictionaries), **changes,
                            cache={**CACHE, "sweepInterval": sweep, "preload": [f"{TENANT}/{code}" for code in codes]})
        self.settings["refdata"].setdefault("outbox", {})["lease"] = "2s"  # of a process that died
        if adapter:
            self.settings["refdata"]["adapter"] = adapter
        if kafka:
            self.settings["refdata"]["kafka"] = kafka
        if session:
            self.settings["kafka"] = {"sessionTimeout": session}
        self.servers = {}
        self.names = itertools.count(1)
        for role, count in (sizes or WHOLE).items():
            for _ in range(count):
                self.add(role)

    def add(self, role):
        """One more, not started."""
        server = self.serve.make(self.database, self.settings, args=["--roles", role])
        self.servers.setdefault(role, []).append(server)
        return server

    def start(self):
        for server in self.all:
            server.spawn()
        for server in self.all:
            eventually(server.is_ready)
        return self

    @property
    def all(self):
        return [server for servers in self.servers.values() for server in servers]

    def of(self, role):
        return [server for roles, servers in self.servers.items() if role in roles.split(",") for server in servers]

    @property
    def pods(self):
        return self.of("query")

    # ---- writing and reading ----

    def writer(self):
        return Patient(self.of("command"), self.token)

    def write(self, items, code="PLAIN", mode="WAIT_COMMIT"):
        """Sends an update until it is committed; returns its version."""
        writer, body = self.writer(), delta(code, items)

        def committed():
            answer = writer.post(body, mode)
            assert answer.status in (200, 202), (answer.status, answer.body)
            return answer.json().get("committedVersion")

        try:
            return eventually(committed)
        finally:
            writer.close()

    def version_at(self, server, code="PLAIN"):
        with server.client(self.token) as client:
            answer = client.get(path(code, "/version"))
            return answer.json()["version"] if answer.status == 200 else None

    def reach(self, version, code="PLAIN"):
        """Waits until every pod serves this version or a later one."""
        for server in self.pods:
            eventually(lambda s=server: (self.version_at(s, code) or 0) >= version)

    def is_told(self):
        """Waits until messages reach the pods: a change is written until each has heard of one. For fleets with DEAF pods,
        whose subscriptions begin some time after they are ready."""
        for server in self.pods:
            def heard(pod_=server):
                version = self.write({"told": next(self.names)})
                return any((self.version_at(pod_) or 0) >= version or time.sleep(0.05) for _ in range(40))
            eventually(heard)

    def settled(self):
        """Waits until every command is handled, and every change published."""
        def done():
            waiting = self.database.value("select count(*) from refdata.update_request where status = 'PENDING'")
            assert waiting == 0, f"{waiting} updates are PENDING"
            for table in ("outbox_event", "command_outbox"):
                left = self.database.value(f"select count(*) from refdata.{table} where not published")
                assert left == 0, f"{left} rows of {table} are not published"
            return not on_engines.carries_commands() or on_engines.is_handled(self.database.name)
        eventually(done)

    @property
    def stream(self):
        return on_engines.stream(self.database.name)

    @property
    def channel(self):
        return on_engines.channel(self.database.name)

    @property
    def topic(self):
        return on_engines.topic(self.database.name)
