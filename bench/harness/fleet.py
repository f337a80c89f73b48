"""`fleet`: freshness of three pods while every role is a process of its own, several of each, on Kafka, Redis Cluster and NATS.

Measured as `freshness` does, at every pod at once: from the change's row inside its transaction to the first answer that has
it. Half of the updates go to each command process. Everything is on this one machine, engines and generators too.

WAIT_COMMIT is printed beside a bare commit, for information: two commits, Kafka's acknowledgement and a notice lie between.
"""
import contextlib
import statistics
import time

from . import engines, machine, postgres
from .flow import freshness_ms, histogram_ms, poll, quantile, write_updates
from .freshet import TENANT, Builtin
from .generator import generate, generate_at
from .report import progress, table
from .write import bare_commit, in_turn, ratios_of, spread

ITEMS = Builtin("ITEMS", 10_000, "DELTA")
ROLES = {"command": 2, "apply": 2, "relay": 2, "query": 3}
RATE = 100
SECONDS = 20
WARM_UP_SECONDS = 5  # connections, groups and Java's compiler
POLL_US = 1_000
SETTLE_SECONDS = 60
LIMIT_MS = 250


class Fleet:
    """The running processes by role."""

    def __init__(self, bench, database, stack):
        self.bench, self.database, self.stack = bench, database, stack
        freshet = bench.freshet(database, [ITEMS], stack.settings())
        freshet.prepare()
        self.roles = {role: [freshet.start(f"{role}-{number}", 1, [ITEMS] if role == "query" else [], roles=role)
                             for number in range(1, count + 1)] for role, count in ROLES.items()}
        for pod in self.pods:
            pod.load(ITEMS, postgres.key(0))
        self.asynchronous = write_updates(bench, ITEMS, freshet.token)
        self.waiting = write_updates(bench, ITEMS, freshet.token, "WAIT_COMMIT")

    @property
    def pods(self):
        return self.roles["query"]

    def write(self, seconds):
        """At RATE, shared out among the command processes."""
        ports = [writer.port for writer in self.roles["command"]]
        runs = generate_at(self.bench.load_binary, ports, self.asynchronous, "--connections", 4, "--rate", RATE / len(ports),
                           "--accept", "200,202", "--warmup", 0, "--seconds", seconds)
        return sum(run["requests"] for run in runs)

    def wait_commit(self, seconds):
        return generate(self.bench.load_binary, self.roles["command"][0].port, self.waiting, "--connections", 1,
                        "--accept", "200,202", "--seconds", seconds)

    def settle(self):
        """Waits until nothing is on its way and every pod serves the committed version. It must come to that."""
        deadline = time.monotonic() + SETTLE_SECONDS
        pending = f"select count(*) from refdata.update_request where status = 'PENDING' and tenant_id = '{TENANT}'"
        while self.database.run(pending) != "0" or not self._is_fresh():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not every update is committed and served everywhere after {SETTLE_SECONDS} s")
            time.sleep(0.1)

    def _is_fresh(self):
        version = self.database.run("select version from refdata.dictionary_meta "
                                    f"where tenant_id = '{TENANT}' and dict_code = '{ITEMS.code}'")
        path = f"/v1/tenants/{TENANT}/dictionaries/{ITEMS.code}/version"
        return all(f'"version":{version}'.encode() in pod.ask(path).body for pod in self.pods)

    def cpu_seconds(self):
        pids = {**self.stack.pids(), **{role: [one.pid for one in running] for role, running in self.roles.items()}}
        return {name: sum(map(machine.cpu_seconds, some)) for name, some in pids.items()}


def run(bench, report):
    progress("starting the engines")
    with engines.Fleet() as stack, bench.database() as database:
        if not stack.has_kafka:
            progress("Kafka can't be had here: PostgreSQL carries the commands")
        try:
            progress("starting " + ", ".join(f"{role} × {count}" for role, count in ROLES.items()))
            fleet = Fleet(bench, database, stack)
            _freshness(bench, report, fleet)
            _wait_commit(bench, report, fleet)
        finally:
            bench.processes.close()


def _freshness(bench, report, fleet):
    fleet.write(WARM_UP_SECONDS)
    fleet.settle()
    fleet.database.run("delete from refdata.outbox_event where published")
    before, cpu_before = [pod.metrics() for pod in fleet.pods], fleet.cpu_seconds()
    progress(f"{RATE} updates a second for {SECONDS} s")
    with contextlib.ExitStack() as polls:
        seen = [polls.enter_context(poll(bench, pod, ITEMS, SECONDS + 3, POLL_US)) for pod in fleet.pods]
        sent = fleet.write(SECONDS)
        cpu = {name: used - cpu_before[name] for name, used in fleet.cpu_seconds().items()}
    fleet.settle()
    rows = [_row(fleet, pod, versions, first, sent) for pod, versions, first in zip(fleet.pods, seen, before)]
    report.add("freshness", {"commands_by": "kafka" if fleet.stack.has_kafka else "postgres", "sent": sent, "pods": rows})
    report.add("cpu_seconds", cpu)
    table(f"commit to served, DELTA, {ITEMS.rows:,} items, {RATE} updates a second, commands by "
          f"{'Kafka' if fleet.stack.has_kafka else 'PostgreSQL'}",
          ["pod", "updates", "p50 ms", "p99 ms", "max ms", "histogram p50", "p99"],
          [[row["pod"], row["updates"], *(f"{row[name]:.1f}" for name in (
              "p50_ms", "p99_ms", "max_ms", "inside_p50_ms", "inside_p99_ms"))] for row in rows])
    table("processor time meanwhile", ["", "processes", "% of one", "ms an update"],
          [[name, ROLES.get(name) or len(fleet.stack.pids()[name]), f"{used / SECONDS * 100:.1f}", f"{used / sent * 1e3:.2f}"]
           for name, used in sorted(cpu.items(), key=lambda item: -item[1])])
    for row in rows:
        report.verdict(f"{row['pod']}: p99 ms", row["p99_ms"], LIMIT_MS)


def _row(fleet, pod, seen, before, sent):
    delays = freshness_ms(fleet.database, ITEMS, seen)
    count, inside = histogram_ms(before, pod.metrics(), "refdata_freshness_seconds")
    if len(delays) < sent * 0.9:
        raise RuntimeError(f"{pod.name}: only {len(delays)} of {sent} versions were seen")
    return {"pod": pod.name, "updates": len(delays), "p50_ms": quantile(delays, 0.5), "p99_ms": quantile(delays, 0.99),
            "max_ms": max(delays), "inside_count": count, "inside_p50_ms": inside.get(0.5, 0),
            "inside_p99_ms": inside.get(0.99, 0)}


def _wait_commit(bench, report, fleet):
    seconds = bench.rounds.seconds
    rounds = in_turn(bench, "WAIT_COMMIT", {"bare": lambda: bare_commit(bench, fleet.database, seconds),
                                            "fleet": lambda: fleet.wait_commit(seconds)})
    report.add("wait_commit", rounds)
    names = {"bare": "a commit by libpq", "fleet": "WAIT_COMMIT, the fleet"}
    ratios = {name: ratios_of(rounds, name, "bare", lambda figures: figures["p50_us"]) for name in names}
    table("one client, one after the other (no target)", ["", "p50 µs", "p99 µs", "a second", "× commit", "spread"],
          [[words, *(f"{statistics.median(each[name][field] for each in rounds):,.0f}"
                     for field in ("p50_us", "p99_us", "rps")), *spread(ratios[name])] for name, words in names.items()])
