"""`hydration`: what asking the owner of an entity costs: a miss beside a bare commit, the same over NATS, and an entity known to be
absent beside a plain hot read.

A miss is a GET of an item that nobody asked for before, one client, one after the other: claim, entity/unknown, the owner's look,
entity/updated, answer; every item is asked for once. Whether hits reach PostgreSQL is counted by itself (track_functions), not by
what we say about it.
"""
import itertools
import os
import statistics
import time

from . import machine, postgres
from .engines import Nats
from .freshet import TENANT, Dictionary, item_path, request
from .generator import Target, generate, measure, write_requests
from .report import cpu_table, progress, table
from .write import bare_commit, in_turn, ratios_of, spread

MISSES = 1_000  # of one round
ROUNDS_MAX = 40
DICTIONARY = Dictionary("ITEMS", "hydration_items", 10_000)
IDS = 10  # asked for over and over
MEMORY_SECONDS = 5  # how long a process believes itself
FLUSH_SECONDS = 12  # until an idle process of PostgreSQL has published its counts: 10 s
TRIES = 5

FILL = """
insert into intake.items (id, tenant_id, sku, title, attributes, created_by, created_at)
select gen_random_uuid(), '{tenant}', 'sku-' || n, 'Title ' || n, ',"price":1.5,"note":"' || md5(n::text) || '"', 'bench', now()
from generate_series(0, {rows} - 1) n;
analyze intake.items;
"""


def path(sku, query=""):
    return f"/v1/hydration/item/{sku}{query}"


class Side:
    """freshet with every role, on the embedded bus or on NATS."""

    def __init__(self, bench, database, name, settings=None):
        self.bench, self.database = bench, database
        database.create_items(DICTIONARY.table, TENANT, DICTIONARY.rows)
        database.run(f"alter database {database.name} set track_functions = 'all'")
        freshet = bench.freshet(database, [DICTIONARY], settings)
        freshet.prepare()
        database.run(FILL.format(tenant=TENANT, rows=MISSES * ROUNDS_MAX))
        self.freshet, self.token = freshet, freshet.token
        self.running = freshet.start(f"freshet-{name}", 1, [DICTIONARY])
        self.running.load(DICTIONARY, postgres.key(0))
        self.rounds = itertools.count()

    def misses(self, count=MISSES):
        first = next(self.rounds) * MISSES
        file = write_requests(os.path.join(self.bench.folder, "misses.requests"),
                              (request(path(f"sku-{first + each}"), self.token) for each in range(count)))
        figures = generate(self.bench.load_binary, self.running.port, file, "--connections", 1, "--warmup", 0, "--once",
                           pids=[self.running.pid])
        os.unlink(file)
        if figures["requests"] != count:
            raise RuntimeError(f"{figures['requests']} of {count} were answered")
        return figures


def claims(database):
    """How often anybody went to the ledger, by PostgreSQL's own count."""
    return int(database.run("select coalesce(sum(calls), 0) from pg_stat_user_functions"
                            " where schemaname = 'hydration' and funcname = 'claim'"))


def run(bench, report):
    with bench.database() as database, bench.database("nats") as other, Nats() as nats:
        if (database.run("show fsync"), database.run("show synchronous_commit")) != ("on", "on"):
            raise RuntimeError("PostgreSQL does not wait for the disk: nothing to compare")
        try:
            sides = {"embedded": Side(bench, database, "embedded"), "nats": Side(bench, other, "nats", nats.settings())}
            _misses(bench, report, database, sides)
            _hits(bench, report, database, sides["embedded"].freshet)
        finally:
            bench.processes.close()


def _misses(bench, report, database, sides):
    for side in sides.values():
        side.misses()  # plans, connections
    rounds = in_turn(bench, "misses", {"bare": lambda: bare_commit(bench, database, bench.rounds.seconds),
                                       **{name: side.misses for name, side in sides.items()}})
    report.add("misses", rounds)
    names = {"bare": "a commit by libpq", "embedded": "unknown → updated, embedded bus", "nats": "unknown → updated, NATS"}
    ratios = {name: ratios_of(rounds, name, "bare", lambda figures: figures["p50_us"]) for name in names}
    p50_us = {name: statistics.median(each[name]["p50_us"] for each in rounds) for name in names}
    table("one client, every item for the first time", ["", "p50 µs", "p99 µs", "× commit", "spread"],
          [[words, f"{p50_us[name]:,.0f}", f"{statistics.median(each[name]['p99_us'] for each in rounds):,.0f}", *spread(ratios[name])]
           for name, words in names.items()])
    report.verdict("hydration p50, embedded bus, × commit", statistics.median(ratios["embedded"]), 6)
    report.verdict("hydration p50, NATS, ms", p50_us["nats"] / 1000, 3)


def _hits(bench, report, database, freshet):
    """Of the server's processor time, as `query` measures it; a process of its own, so that only its hits are counted."""
    server_cpus, client_cpus = machine.split_cpus(1)
    running = freshet.start("freshet-hits", 1, [DICTIONARY], server_cpus)
    running.load(DICTIONARY, postgres.key(0))
    kinds = {"a hot GET": (200, (item_path(DICTIONARY, postgres.key(number)) for number in range(IDS))),
             "known": (200, (path(f"sku-{number}") for number in range(IDS))),
             "known to be absent": (404, (path(f"no-{number}") for number in range(IDS)))}
    targets = [Target(name, running.port, [running.pid],
                      write_requests(os.path.join(bench.folder, f"hits-{number}.requests"),
                                     (request(each, freshet.token) for each in paths)), accept=str(status))
               for number, (name, (status, paths)) in enumerate(kinds.items())]
    figures = bench.rounds.run(targets, 1, client_cpus, report=progress, spin=True)
    report.add("hits", cpu_table("one at a time", figures, "a hot GET"))
    report.verdict("a negative hit, × hot GET", figures.ratio("known to be absent", "a hot GET"), 2)
    _statements(bench, report, database, targets[-1], client_cpus)


def _statements(bench, report, database, target, client_cpus):
    """What a second of negative hits costs PostgreSQL beside the first hit of each item, which looks there. A machine that takes longer
    than a process believes itself has another try."""
    for _ in range(TRIES):
        time.sleep(FLUSH_SECONDS)  # longer than a process believes itself
        before = claims(database)
        started = time.monotonic()
        hits = measure(bench.load_binary, target, 1, 1, client_cpus)["requests"]
        if time.monotonic() - started < MEMORY_SECONDS:
            break
    time.sleep(FLUSH_SECONDS)
    statements = max(0, claims(database) - before - IDS)
    report.add("statements", {"hits": hits, "statements": statements})
    table("SQL of negative hits", ["hits", f"statements beside the first {IDS}"], [[f"{hits:,}", statements]])
    report.verdict("SQL statements of a second of negative hits", statements, 0)
