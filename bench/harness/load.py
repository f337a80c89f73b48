"""`load`: from asking for a dictionary of 1,000,000 rows to having it, beside psql copying the same query."""
import statistics

from . import postgres
from .freshet import TENANT, Dictionary
from .report import progress, table

ITEMS = Dictionary("MILLION", "items_million", 1_000_000)
ROUNDS = 3


def run(bench, report):
    rounds = []
    with bench.database() as database:
        progress(f"making {ITEMS.rows:,} rows")
        database.create_items(ITEMS.table, TENANT, ITEMS.rows)
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        database.copy_seconds(ITEMS.query(f"'{TENANT}'"))  # both sides then find the table in memory
        for number in range(ROUNDS):
            rounds.append(_round(bench, database, freshet, number))
            progress(f"round {number + 1} of {ROUNDS}")
    _report(report, rounds)


def _round(bench, database, freshet, number):
    """Each round loads in a new process: nothing is warm but PostgreSQL."""
    copy = database.copy_seconds(ITEMS.query(f"'{TENANT}'"))
    running = freshet.start(f"freshet-{number}", 1)
    try:
        asked = running.load(ITEMS, postgres.key(0))
        entry = running.logged("dictionary_loaded", ITEMS.code) or {}
    finally:
        bench.processes.close()
    if entry.get("items", ITEMS.rows) != ITEMS.rows:
        raise RuntimeError(f"loaded {entry['items']} items of {ITEMS.rows}")
    return {"copy_s": copy, "ready_s": asked, "logged_ms": entry.get("durationMs"), "ratio": asked / copy}


def _report(report, rounds):
    report.add("load", rounds)
    table("1,000,000 rows from asking to ready",
          ["round", "psql COPY s", "freshet s", "its log ms", "× COPY"],
          [[number + 1, f"{each['copy_s']:.2f}", f"{each['ready_s']:.2f}", each["logged_ms"] or "–",
            f"{each['ratio']:.2f}"] for number, each in enumerate(rounds)])
    median = statistics.median(each["ratio"] for each in rounds)
    report.verdict("load of 1,000,000 rows, × COPY", median, 1.5)
