"""`notification`: from a grant to the user's inbox, both roles in one process and each in its own, at a steady rate.

What is measured is more than what is promised: it begins with the transaction that grants, before its commit, and ends with
the one that marks the notification SENT, which has claimed it after its commit. Both moments are the database's.
"""
import itertools
import os
import statistics
import time

from .freshet import post
from .generator import generate, write_requests
from .report import progress, table

RATE = 200  # grants a second
TARGET_MS = 50
SIDES = {"one process": ["entitlement,notification"], "a process each": ["entitlement", "notification"]}

# From when the event was written to when its notification was told, in ms; of one round's users.
LATENCIES = ("select percentile_cont(array[0.5, 0.99, 1]) within group (order by extract(epoch from n.sent_at - e.created_at) * 1000)"
             " from notification.notifications n join entitlement.outbox_events e on e.event_id = n.event_id"
             " where n.user_id like '{prefix}%'")


class Side:
    def __init__(self, bench, database, name, roles):
        self.bench, self.database, self.name = bench, database, name
        freshet = bench.freshet(database, [])
        freshet.prepare()
        self.token = freshet.keys.token("entitlement:write")
        self.running = [freshet.start(f"freshet-{role.replace(',', '-')}", 1, roles=role) for role in roles]
        self.rounds = itertools.count()

    def measure(self, grants):
        prefix = f"u_{self.name.replace(' ', '-')}_{next(self.rounds)}_"
        requests = (post("/v1/entitlements/grants", self.token, {
            "user_id": f"{prefix}{user}", "stock_keeping_unit": "item1", "reason": "purchase", "purchase_id": f"p{user}"},
            f"{prefix}{user}") for user in range(grants))
        file = write_requests(os.path.join(self.bench.folder, "grants.requests"), requests)
        figures = generate(self.bench.load_binary, self.running[0].port, file, "--connections", 16, "--rate", RATE,
                           "--once")
        os.unlink(file)
        if figures["requests"] != grants:
            raise RuntimeError(f"{figures['requests']} of {grants} were answered")
        self.wait(prefix, grants)
        p50, p99, most = self.database.run(LATENCIES.format(prefix=prefix)).strip("{}").split(",")
        return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": float(most)}

    def wait(self, prefix, grants):
        """Everything is told in the end, once each."""
        deadline = time.monotonic() + 60
        while self.database.run("select count(*) from notification.notifications where status = 'SENT'"
                                f" and user_id like '{prefix}%'") != str(grants):
            if time.monotonic() > deadline:
                raise RuntimeError("some notifications were not sent within a minute")
            time.sleep(0.05)


def run(bench, report):
    grants = int(RATE * max(3, bench.rounds.seconds))
    figures = {}
    for name, roles in SIDES.items():
        with bench.database(name.replace(" ", "_")) as database:
            try:
                side = Side(bench, database, name, roles)
                side.measure(grants // 4)  # plans, connections
                progress(name)
                figures[name] = [side.measure(grants) for _ in range(bench.rounds.rounds)]
            finally:
                bench.processes.close()
    report.add("notification", figures)
    table(f"{RATE} grants a second: from before the grant's commit to behind the notification's",
          ["", "p50 ms", "p99 ms", "spread", "longest ms"],
          [[name, *[f"{statistics.median(each[field] for each in rounds):.1f}" for field in ("p50_ms", "p99_ms")],
            f"{min(each['p99_ms'] for each in rounds):.1f}–{max(each['p99_ms'] for each in rounds):.1f}",
            f"{max(each['max_ms'] for each in rounds):.1f}"] for name, rounds in figures.items()])
    for name, rounds in figures.items():
        report.verdict(f"grant to inbox, p99 in ms, {name}", statistics.median(each["p99_ms"] for each in rounds), TARGET_MS)
