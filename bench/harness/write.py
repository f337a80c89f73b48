"""`write`: what an update costs beside PostgreSQL's own tools on the same server in the same minutes.

WAIT_COMMIT, one client, beside a bare single-row commit by libpq; ASYNC from 64 clients until all are committed, beside
pgbench's simple-update. PostgreSQL flushes every commit to disk for all of them.
"""
import json
import re
import statistics
import subprocess
import time

from .flow import write_updates
from .freshet import TENANT, Builtin
from .generator import generate
from .report import progress, table

ITEMS = Builtin("ITEMS", 10_000)
CLIENTS = 64
PGBENCH_SCALE = 10
SHARINGS = {"together": [None], "apart": ["command,query", "apply,relay"]}
WORDS = {"together": "one process", "apart": "two processes"}


class Side:
    """freshet with its roles shared out in one way, on a database of its own, so that both ways run all the time."""

    def __init__(self, bench, database, name):
        self.bench, self.database, self.name = bench, database, name
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        self.running = [freshet.start(f"freshet-{name}-{number}", 1, [ITEMS] if role is None or "query" in role else [],
                                      roles=role) for number, role in enumerate(SHARINGS[name])]
        self.waiting = write_updates(bench, ITEMS, freshet.token, "WAIT_COMMIT")
        self.asynchronous = write_updates(bench, ITEMS, freshet.token)

    def wait_commit(self, seconds):
        return generate(self.bench.load_binary, self.running[0].port, self.waiting, "--connections", 1,
                        "--accept", "200,202", "--seconds", seconds)

    def committed_rate(self, seconds):
        """Updates a second, from the first one's row to the last one's decision."""
        since = self.database.run("select clock_timestamp()")
        figures = generate(self.bench.load_binary, self.running[0].port, self.asynchronous, "--connections", CLIENTS,
                           "--accept", "200,202", "--warmup", 0, "--seconds", seconds)
        mine = f"tenant_id = '{TENANT}' and created_at >= '{since}'"
        deadline = time.monotonic() + 120
        pending = f"select exists (select from refdata.update_request where status = 'PENDING' and {mine})"
        while self.database.run(pending) == "t":
            if time.monotonic() > deadline:
                raise RuntimeError("updates are still pending after two minutes")
            time.sleep(0.05)
        committed, took = self.database.run(
            "select count(*) filter (where status = 'COMMITTED'), extract(epoch from max(updated_at) - min(created_at)) "
            f"from refdata.update_request where {mine}").split("|")
        if int(committed) < figures["requests"]:
            raise RuntimeError(f"{figures['requests']} accepted, {committed} committed")
        return int(committed) / float(took)


def run(bench, report):
    with bench.database() as database, bench.database("apart") as other:
        if (database.run("show fsync"), database.run("show synchronous_commit")) != ("on", "on"):
            raise RuntimeError("PostgreSQL does not wait for the disk: nothing to compare")
        pgbench(database, "-i", "-s", str(PGBENCH_SCALE), "-q")
        try:
            sides = {"together": Side(bench, database, "together"), "apart": Side(bench, other, "apart")}
            _wait_commit(bench, report, database, sides)
            _asynchronous(bench, report, database, sides)
        finally:
            bench.processes.close()


def in_turn(bench, what, measures):
    """Every measure once a round, backwards every other time: [{name: figure}]."""
    rounds = []
    for number in range(bench.rounds.rounds):
        order = list(measures.items())
        rounds.append({name: measure() for name, measure in (order if number % 2 == 0 else reversed(order))})
        progress(f"{what}, round {number + 1} of {bench.rounds.rounds}")
    return rounds


def ratios_of(rounds, name, to, value):
    return [value(each[name]) / value(each[to]) for each in rounds]


def spread(ratios):
    return [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}–{max(ratios):.2f}"]


def _wait_commit(bench, report, database, sides):
    seconds = bench.rounds.seconds
    rounds = in_turn(bench, "WAIT_COMMIT", {
        "bare": lambda: bare_commit(bench, database, seconds),
        **{name: lambda side=side: side.wait_commit(seconds) for name, side in sides.items()}})
    report.add("wait_commit", rounds)
    names = {"bare": "a commit by libpq", **{name: f"WAIT_COMMIT, {words}" for name, words in WORDS.items()}}
    ratios = {name: ratios_of(rounds, name, "bare", lambda figures: figures["p50_us"]) for name in names}
    table("one client, one after the other", ["", "p50 µs", "p99 µs", "a second", "× commit", "spread"],
          [[words, *(f"{statistics.median(each[name][field] for each in rounds):,.0f}"
                     for field in ("p50_us", "p99_us", "rps")), *spread(ratios[name])] for name, words in names.items()])
    report.verdict("WAIT_COMMIT p50, one process, × commit", statistics.median(ratios["together"]), 4)
    report.verdict("WAIT_COMMIT p50, two processes, × commit", statistics.median(ratios["apart"]), 6)


def bare_commit(bench, database, seconds):
    command = [bench.binary("commit"), database.url, str(seconds)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _asynchronous(bench, report, database, sides):
    seconds = max(3, bench.rounds.seconds)
    rounds = in_turn(bench, f"{CLIENTS} clients", {
        "pgbench": lambda: pgbench_rate(database, seconds),
        "prepared": lambda: pgbench_rate(database, seconds, "-M", "prepared"),
        **{name: lambda side=side: side.committed_rate(seconds) for name, side in sides.items()}})
    report.add("asynchronous", rounds)
    names = {"pgbench": "pgbench -N", "prepared": "pgbench -N -M prepared",
             **{name: f"freshet, {words}" for name, words in WORDS.items()}}
    ratios = {name: ratios_of(rounds, name, "pgbench", float) for name in names}
    table(f"{CLIENTS} clients, single-item updates, all committed", ["", "a second", "× pgbench -N", "spread"],
          [[words, f"{statistics.median(each[name] for each in rounds):,.0f}", *spread(ratios[name])]
           for name, words in names.items()])
    report.verdict_at_least("ASYNC updates, 64 clients, × pgbench -N", statistics.median(ratios["together"]), 0.5)
    report.figure("ASYNC updates, two processes, × pgbench -N", statistics.median(ratios["apart"]), more_is_better=True)


def pgbench(database, *options):
    done = subprocess.run(["pgbench", *options, database.url], text=True, capture_output=True, check=True)
    return done.stdout


def pgbench_rate(database, seconds, *options):
    out = pgbench(database, "-N", "-c", str(CLIENTS), "-j", "2", "-T", str(int(seconds)), "-n", *options)
    return float(re.search(r"tps = ([0-9.]+)", out)[1])
