"""`watch`: 5,000 streams of one dictionary's changes, 5 changes a second: does each get every change, and when?

The time is from just before the POST to the line at the watcher, so the commit is part of it.
"""
import json
import subprocess
import time

from . import freshet as program
from . import postgres
from .freshet import TENANT, Builtin
from .report import progress, table

ITEMS = Builtin("ITEMS", 10_000)
WATCHERS = 5_000
RATE = 5
SECONDS = 20
SETTLE_SECONDS = 3  # for the last change to arrive


def run(bench, report):
    with bench.database() as database:
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        running = freshet.start("freshet", 1, [ITEMS])
        try:
            running.load(ITEMS, postgres.key(0))
            sent, figures = _measure(bench, running)
        finally:
            bench.processes.close()
    figures["sent"] = sent
    report.add("watch", figures)
    table(f"{WATCHERS:,} watchers, {RATE} changes a second",
          ["changes sent", "seen by anybody", "fewest at one", "p50 ms", "p99 ms", "max ms", "cut off"],
          [[sent, figures["changes"], figures["perConnectionMin"], *(f"{figures[name]:.1f}" for name in
                                                                    ("p50Ms", "p99Ms", "maxMs")), figures["closed"]]])
    report.verdict("changes missed by the watcher that got fewest", sent - figures["perConnectionMin"], 0)
    report.verdict("watch p99 ms", figures["p99Ms"], 150)


def _measure(bench, running):
    """(changes sent, the reader's figures)."""
    command = [bench.binary("watch_reader"), "--port", str(running.port), "--path",
               f"/v1/tenants/{TENANT}/dictionaries/{ITEMS.code}/watch?after=1",
               "--header", f"Authorization: Bearer {running.freshet.token}",
               "--connections", str(WATCHERS), "--seconds", str(SECONDS + SETTLE_SECONDS)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(reader.stdout.readline())["ready"]
        progress(f"{ready:,} watchers are up to date")
        sent = _write(running)
        figures = json.loads(reader.communicate(timeout=SECONDS + 120)[0])
    finally:
        if reader.poll() is None:
            reader.kill()
            reader.wait()
    return sent, figures


def _write(running):
    """Changes at a steady rate, each with a key of its own; how many there were."""
    started, count = time.monotonic(), RATE * SECONDS
    for number in range(count):
        time.sleep(max(0.0, started + number / RATE - time.monotonic()))
        item = {"key": f"watched-{number}", "op": "UPSERT", "payload": {"sentUs": time.time_ns() // 1000}}
        body = {"dictCode": ITEMS.code, "eventType": "DELTA", "items": [item]}
        answer = program.ask(running.port, program.post(program.updates_path("WAIT_COMMIT"), running.freshet.token, body))
        if answer.status not in (200, 202):
            raise RuntimeError(f"{answer.status} {answer.body.decode(errors='replace')}")
    return count
