"""`freshness`: from the commit of an update to the first read that shows it, at 100 updates a second.

Seen from outside: a poller asks a pod twice a millisecond and notes when X-Dict-Version moves; the start is the time
that the change's row got inside its transaction, so the flush of the commit to disk is part of the figure. Seen from
inside: the pod's own histogram refdata_freshness_seconds.
"""
from . import postgres
from .flow import freshness_ms, histogram_ms, poll, quantile, write_updates
from .freshet import Builtin
from .generator import generate
from .report import progress, table

SMALL = Builtin("SMALL", 10_000, "DELTA")
LARGE = Builtin("LARGE", 1_000_000, "DELTA")
FULL = Builtin("FULL", 10_000, "FULL")
LIMITS = {"SMALL": (5, 25), "LARGE": (5, 25), "FULL": (40, 120)}
RATE = 100
SECONDS = 20
SHARINGS = {"one process": [None], "a pod of its own": ["command,apply,relay", "query"]}


def run(bench, report):
    dictionaries = [SMALL, FULL] if bench.quick else [SMALL, LARGE, FULL]
    rows = []
    with bench.database() as database:
        freshet = bench.freshet(database, dictionaries)
        progress("making the dictionaries")
        freshet.prepare()
        for dictionary in dictionaries:
            for words, roles in SHARINGS.items():
                progress(f"{dictionary.reload} with {dictionary.rows:,} items, {words}")
                rows.append(_measure(bench, database, freshet, dictionary, words, roles))
                _judge(report, rows[-1])
    report.add("freshness", rows)
    table(f"commit to served, {RATE} updates a second",
          ["mode", "items", "processes", "updates", "p50 ms", "p99 ms", "max ms", "histogram p50", "p99"],
          [[row["mode"], f"{row['items']:,}", row["processes"], row["updates"], f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}", f"{row['max_ms']:.1f}", f"{row['inside_p50_ms']:.1f}",
            f"{row['inside_p99_ms']:.1f}"] for row in rows])


def _measure(bench, database, freshet, dictionary, words, roles):
    database.run("delete from refdata.outbox_event")
    running = [freshet.start(f"freshet-{number}", 1, [dictionary] if role in (None, "query") else [], roles=role)
               for number, role in enumerate(roles)]
    writer, pod = running[0], running[-1]
    try:
        pod.load(dictionary, postgres.key(0))
        requests = write_updates(bench, dictionary, freshet.token)
        options = ["--connections", 4, "--rate", RATE, "--accept", "200,202", "--warmup", 0]
        generate(bench.load_binary, writer.port, requests, "--seconds", 2, *options)
        before = pod.metrics()
        database.run("delete from refdata.outbox_event where published")
        with poll(bench, pod, dictionary, SECONDS + 3) as seen:
            generate(bench.load_binary, writer.port, requests, "--seconds", SECONDS, *options)
        delays = freshness_ms(database, dictionary, seen)
        count, inside = histogram_ms(before, pod.metrics(), "refdata_freshness_seconds")
    finally:
        bench.processes.close()
    if len(delays) < RATE * SECONDS * 0.9:
        raise RuntimeError(f"only {len(delays)} versions were seen")
    return {"mode": dictionary.reload, "items": dictionary.rows, "code": dictionary.code, "processes": words,
            "updates": len(delays), "p50_ms": quantile(delays, 0.5), "p99_ms": quantile(delays, 0.99),
            "max_ms": max(delays), "inside_count": count, "inside_p50_ms": inside.get(0.5, 0),
            "inside_p99_ms": inside.get(0.99, 0)}


def _judge(report, row):
    p50, p99 = LIMITS[row["code"]]
    what = f"{row['mode']}, {row['items']:,} items, {row['processes']}"
    report.verdict(f"{what}: p50 ms", row["p50_ms"], p50)
    report.verdict(f"{what}: p99 ms", row["p99_ms"], p99)
