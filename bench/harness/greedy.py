"""`greedy`: what one tenant's blocked or flooding requests cost another tenant, for each resource that they share.

The p99 of the modest tenant's requests, without the greedy one and beside it, in the same rounds. A blocked request waits for an
advisory lock that the bench holds; a flood is 64 clients that send as fast as they are answered.
"""
import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import time

from .freshet import Builtin, post, request
from .generator import generate, write_requests
from .report import table
from .write import CLIENTS, in_turn

GREEDY, MODEST = "greedy", "modest"
MODEST_CLIENTS, BLOCKED, LOADS, REQUESTS, PIPELINED = 4, 200, 100, 20_000, 128
LOCK, BACKLOG, DELIVERIES, MIB = 4711, 100_000, 100, 1024 * 1024
PLAIN = Builtin("PLAIN", 0)


# Whose updates by the greedy tenant are in other partitions than those of PLAIN by the modest one, where they would have to wait.
SLOW_CODES = [f"SLOW{number}" for number in range(10)]


class Slow:
    """A dictionary whose loads and updates wait for the lock, for the greedy tenant."""

    def __init__(self, code):
        self.code, self.rows = code, 0

    def definition(self):
        waits = (f"with waited as materialized (select case when :tenantId = '{GREEDY}'"
                 f" then pg_advisory_xact_lock({LOCK})::text else '' end)")
        return {"code": self.code, "loadSql": f"{waits} select k, v from public.slow, waited where tenant_id = :tenantId",
                "apply": {"upsertSql": f"{waits} insert into public.slow select :tenantId, :key, :payload from waited"
                                       " on conflict (tenant_id, k) do update set v = excluded.v"}}


SCHEMA = f"""
create table public.slow (tenant_id text, k text, v jsonb, primary key (tenant_id, k));
create function public.wait_greedy() returns trigger language plpgsql as
    $$ begin perform pg_advisory_xact_lock({LOCK}); return new; end $$;
create trigger wait_greedy before insert on entitlement.entitlements for each row
    when (new.tenant_id = '{GREEDY}' and new.stock_keeping_unit = 'slow') execute function public.wait_greedy();
"""


@contextlib.contextmanager
def locked(database):
    """Holds the lock in a session of its own."""
    with subprocess.Popen(["psql", "-X", "-q", "-A", "-t", "-d", database.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as session:
        session.stdin.write(f"select pg_advisory_lock({LOCK});\n\\echo held\n")
        session.stdin.flush()
        while session.stdout.readline().strip() != "held":
            pass
        yield
        session.stdin.close()


@contextlib.contextmanager
def unread(port, requests):
    """Requests on connections of their own, whose answers are not read. One may be refused before it was sent."""
    with contextlib.ExitStack() as stack:
        for each in requests:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.2))
            with contextlib.suppress(OSError):
                connection.sendall(each)
        time.sleep(0.5)  # they have arrived, and those that can block are blocked
        yield


class Side:
    def __init__(self, bench, database):
        self.bench, self.database, self.numbers = bench, database, itertools.count()
        self.loads = [Slow(f"LOAD{number}") for number in range(2 * bench.rounds.rounds * LOADS)]
        forever = {"requestTimeout": "1h", "headerTimeout": "1h", "bodyTimeout": "1h"}
        settings = {"limits": {"memory": 128 * MIB}, "http": {"limits": forever}, "refdata": {"postgres": {"statementTimeout": "1h"}},
                    "notification": {"delivery": {"poll-interval": "10ms"}}}
        freshet = bench.freshet(database, [PLAIN, *map(Slow, ["SLOW", *SLOW_CODES]), *self.loads], settings)
        freshet.prepare()
        database.run(SCHEMA)
        self.running = freshet.start("freshet-greedy", 1)
        self.tokens = {tenant: freshet.keys.token("entitlement:write", tenant) for tenant in (GREEDY, MODEST)}

    # ---- requests ----

    def grants(self, tenant, count, sku="item1"):
        for _ in range(count):
            name = f"{tenant}_{next(self.numbers)}"
            yield post("/v1/entitlements/grants", self.tokens[tenant], {
                "user_id": name, "stock_keeping_unit": sku, "reason": "purchase", "purchase_id": name}, name)

    def updates(self, tenant, count, *codes, waits=False):
        query = "?consistencyMode=WAIT_COMMIT&timeoutMs=1000" if waits else ""
        for number, code in zip(range(count), itertools.cycle(codes or ["PLAIN"])):
            yield post(f"/v1/tenants/{tenant}/updates{query}", self.tokens[tenant], {
                "dictCode": code, "eventType": "DELTA", "items": [{"key": f"k{number % 1000}", "op": "UPSERT", "payload": number}]})

    def reads(self, tenant, codes):
        for code in codes:
            yield request(f"/v1/tenants/{tenant}/dictionaries/{code}/items/a", self.tokens[tenant])

    def many_keys(self, count):
        keys = ",".join(f"k{number}" for number in range(100))
        for _ in range(count):
            yield request(f"/v1/tenants/{GREEDY}/dictionaries/PLAIN/items?keys={keys}", self.tokens[GREEDY])

    def held(self):
        """What fills memory: bodies and heads that do not arrive whole, long answers that are not read."""
        body = post(f"/v1/tenants/{GREEDY}/updates", self.tokens[GREEDY], "x" * MIB)[:-1]
        head = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 20_000
        answers = request("/openapi.yaml", self.tokens[GREEDY]) * 50
        return [body] * 200 + [head] * 1500 + [answers] * 300

    # ---- what the modest tenant measures ----

    def _measure(self, requests, *options):
        file = write_requests(os.path.join(self.bench.folder, "modest.requests"), requests)
        figures = generate(self.bench.load_binary, self.running.port, file, "--accept", "200,202,404", *options)
        os.unlink(file)
        return figures["p99_us"]

    def _steady(self, requests):
        return self._measure(requests, "--connections", MODEST_CLIENTS, "--seconds", self.bench.rounds.seconds)

    def grant(self):
        return self._steady(self.grants(MODEST, REQUESTS))

    def update(self):
        return self._steady(self.updates(MODEST, REQUESTS))

    def decision(self):
        return self._steady(self.updates(MODEST, REQUESTS, waits=True))

    def delivery(self):
        """Of one notification after the other, from its commit on."""
        for _ in range(DELIVERIES):
            self.leave(MODEST, 1)
            while self.database.rows(f"select 1 from notification.notifications where tenant_id = '{MODEST}' and status <> 'SENT'"):
                pass
        times = self.database.rows("select extract(epoch from sent_at - created_at) * 1e6 from notification.notifications"
                                   f" where tenant_id = '{MODEST}' order by created_at desc limit {DELIVERIES}")
        return sorted(float(time) for time, in times)[int(0.99 * DELIVERIES) - 1]

    def read(self):
        return self._steady(self.reads(MODEST, ["PLAIN"] * 100))

    def load(self):
        """First reads: each loads a dictionary that nobody has read."""
        codes = [self.loads.pop().code for _ in range(LOADS)]
        return self._measure(self.reads(MODEST, codes), "--connections", 1, "--once")

    # ---- what the greedy tenant does meanwhile ----

    @contextlib.contextmanager
    def flood(self, requests, pipelined=1):
        file = write_requests(os.path.join(self.bench.folder, "greedy.requests"), requests)
        command = [self.bench.load_binary, "--connect", f"127.0.0.1:{self.running.port}", "--requests", file, "--connections",
                   str(CLIENTS), "--pipeline", str(pipelined), "--accept", "200,202,503", "--seconds", "3600"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as greedy:
            try:
                time.sleep(0.5)
                yield
                if greedy.poll() is not None:
                    raise RuntimeError("the flood ended early")
            finally:
                greedy.kill()

    def leave(self, tenant, count):
        """Notifications that are due."""
        self.database.run("insert into notification.notifications (notification_id, tenant_id, event_id, event_type, user_id,"
                          " stock_keeping_unit, payload_json, created_at) select gen_random_uuid(), "
                          f"'{tenant}', gen_random_uuid(), 'EntitlementGranted', 'u', 'item1', '{{}}', clock_timestamp()"
                          f" from generate_series(1, {count})")

    @contextlib.contextmanager
    def backlog(self):
        self.leave(GREEDY, BACKLOG)
        yield
        self.database.run(f"delete from notification.notifications where tenant_id = '{GREEDY}'")

    @contextlib.contextmanager
    def blocked(self, requests):
        with locked(self.database), unread(self.running.port, requests):
            yield


def resources(side):
    """By name: what the modest tenant does, and what the greedy one does meanwhile."""
    return {
        "threads and connections, blocked by slow SQL": (
            side.grant, lambda: side.blocked(side.grants(GREEDY, BLOCKED, "slow"))),
        "threads and connections, flooded": (side.grant, lambda: side.flood(side.grants(GREEDY, REQUESTS))),
        "commits of updates, slowed down by a dictionary's SQL": (
            side.update, lambda: side.blocked(side.updates(GREEDY, BLOCKED, "SLOW"))),
        "commits of updates, flooded": (side.update, lambda: side.flood(side.updates(GREEDY, REQUESTS))),
        "handlers of apply, blocked by slow SQL": (
            side.decision, lambda: side.blocked(side.updates(GREEDY, BLOCKED, *SLOW_CODES))),
        "deliveries of notifications, with a backlog": (side.delivery, side.backlog),
        "loads, blocked by slow SQL": (
            side.load, lambda: side.blocked(side.reads(GREEDY, [load.code for load in side.loads[:BLOCKED]]))),
        "memory, held by requests and answers that stay unfinished": (
            side.read, lambda: unread(side.running.port, side.held())),
        "loops, flooded with pipelined reads of 100 keys": (
            side.read, lambda: side.flood(side.many_keys(100), PIPELINED)),
        "loops, flooded with pipelined health checks": (
            side.read, lambda: side.flood([request("/actuator/health", side.tokens[GREEDY])] * 100, PIPELINED)),
    }


def run(bench, report):
    with bench.database() as database:
        try:
            _measure(bench, report, Side(bench, database))
        finally:
            bench.processes.close()


def _measure(bench, report, side):
    rows = []
    for name, (modest, greedy) in resources(side).items():
        def beside(modest=modest, greedy=greedy):
            with greedy():
                return modest()

        rounds = in_turn(bench, name, {"alone": modest, "beside": beside})
        report.add(name, rounds)
        alone, both = (statistics.median(each[what] for each in rounds) for what in ("alone", "beside"))
        rows.append([name, f"{alone:,.0f}", f"{both:,.0f}", f"{both / alone:.2f}"])
        report.verdict(f"{name}: p99 beside a greedy tenant ÷ (2 × alone + 5 ms)", both / (2 * alone + 5000), 1)
    table("p99 of the modest tenant, µs", ["", "alone", "beside the greedy one", "×"], rows)
