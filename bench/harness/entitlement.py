"""`entitlement`: grants from 64 clients beside pgbench's simple-update from as many, on the same server in the same minutes.

A grant is what the seed makes of it: entitlement, audit row, event and stored answer, all in one commit, which PostgreSQL
flushes to disk as it does pgbench's; and every event is published meanwhile.
"""
import itertools
import os
import statistics
import time

from .freshet import post
from .generator import generate, write_requests
from .report import table
from .write import CLIENTS, PGBENCH_SCALE, in_turn, pgbench, pgbench_rate, ratios_of, spread

CHANGES = 10_000  # of one round
WORDS = {"pgbench": "pgbench -N", "grants": "grants of what nobody had", "revokes": "revokes of the same"}


class Side:
    def __init__(self, bench, database):
        self.bench, self.database = bench, database
        freshet = bench.freshet(database, [])
        freshet.prepare()
        self.token = freshet.keys.token("entitlement:write")
        self.running = freshet.start("freshet-entitlement", 1, roles="entitlement")
        self.rounds = itertools.count()
        self.granted = None

    def _change(self, path, reason, number):
        requests = (post(path, self.token, {"user_id": f"u_{number}_{user}", "stock_keeping_unit": "item1", "reason": reason,
                                            "purchase_id": f"p_{number}_{user}"}, f"p_{number}_{user}")
                    for user in range(CHANGES))
        file = write_requests(os.path.join(self.bench.folder, "changes.requests"), requests)
        figures = generate(self.bench.load_binary, self.running.port, file, "--connections", CLIENTS, "--once")
        os.unlink(file)
        if figures["requests"] != CHANGES:
            raise RuntimeError(f"{figures['requests']} of {CHANGES} were answered")
        return figures

    def grants(self):
        self.granted = next(self.rounds)
        return self._change("/v1/entitlements/grants", "purchase", self.granted)

    def revokes(self):
        return self._change("/v1/entitlements/revokes", "refund", self.granted)

    def check(self):
        """Everything that was granted and revoked is published in the end, once each."""
        deadline = time.monotonic() + 120
        while self.database.run("select exists (select from entitlement.outbox_events where status <> 'PUBLISHED')") == "t":
            if time.monotonic() > deadline:
                raise RuntimeError("events are still not published after two minutes")
            time.sleep(0.1)
        events, audited = self.database.run("select count(*), (select count(*) from entitlement.entitlement_audit)"
                                            " from entitlement.outbox_events").split("|")
        if int(events) != 2 * next(self.rounds) * CHANGES or events != audited:
            raise RuntimeError(f"{events} events, {audited} audit rows")


def run(bench, report):
    with bench.database() as database:
        if (database.run("show fsync"), database.run("show synchronous_commit")) != ("on", "on"):
            raise RuntimeError("PostgreSQL does not wait for the disk: nothing to compare")
        pgbench(database, "-i", "-s", str(PGBENCH_SCALE), "-q")
        try:
            _measure(bench, report, database, Side(bench, database))
        finally:
            bench.processes.close()


def _measure(bench, report, database, side):
    seconds = max(3, bench.rounds.seconds)

    def changes():
        return {"grants": side.grants(), "revokes": side.revokes()}

    rounds = in_turn(bench, f"{CLIENTS} clients", {"pgbench": lambda: pgbench_rate(database, seconds), "changes": changes})
    side.check()
    report.add("changes", rounds)
    flat = [{"pgbench": each["pgbench"], **{name: each["changes"][name]["rps"] for name in ("grants", "revokes")}}
            for each in rounds]
    ratios = {name: ratios_of(flat, name, "pgbench", float) for name in WORDS}
    latency = {name: [f"{statistics.median(each['changes'][name][field] for each in rounds):,.0f}"
                      for field in ("p50_us", "p99_us")] for name in ("grants", "revokes")}
    table(f"{CLIENTS} clients, each change committed and answered, events published meanwhile",
          ["", "a second", "p50 µs", "p99 µs", "× pgbench -N", "spread"],
          [[words, f"{statistics.median(each[name] for each in flat):,.0f}", *latency.get(name, ["–", "–"]),
            *spread(ratios[name])] for name, words in WORDS.items()])
    report.verdict_at_least("grants, 64 clients, × pgbench -N", statistics.median(ratios["grants"]), 0.4)
