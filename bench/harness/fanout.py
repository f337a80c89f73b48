"""`fanout`: what 200 pods cost one Redis and the relay at 100 invalidations a second, and what 1,000 would.

Updates are posted to a process with the command and apply roles, a second process is the relay, and `fanout` is the pods: the
program's own Redis driver once for each, all in one process. Processor time is the kernel's clock of each process; what they use
while nothing is sent is taken off. How long a row waited for the relay, and how many waited at once, is told by the outbox itself.
"""
import json
import os
import subprocess
import time

from . import engines, machine
from .flow import quantile, write_updates
from .freshet import TENANT, Builtin
from .generator import generate
from .report import progress, table

ITEMS = Builtin("ITEMS", 1_000)
STEPS = (1, 50, 200)
FLEET = 1_000  # what is extrapolated to
RATE = 100
SECONDS = 15
IDLE_SECONDS = 5
WARM_UP_SECONDS = 2
PATIENCE_SECONDS = 60
BACKLOG_MAX = RATE  # a second's worth


class Pods:
    """The process that is so many pods."""

    def __init__(self, bench, redis, count):
        with open(os.path.join(bench.folder, f"pods-{count}.log"), "wb") as log:
            self.process = subprocess.Popen([bench.binary("fanout"), redis.address, str(count)], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, text=True)

    def __enter__(self):
        self._read()  # they are ready
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the pods ended before they were asked to; see their log")
        return json.loads(line)

    def _order(self, word, version):
        print(word, version, file=self.process.stdin, flush=True)
        return self._read()

    def begin(self, version):
        """Waits until each has been handed that version, and counts from there."""
        self._order("begin", version)

    def end(self, version):
        """Waits until each has been handed that version; the figures. The process ends."""
        return self._order("end", version)


class Side:
    """Who writes and who relays."""

    def __init__(self, bench, database, redis):
        self.bench, self.database, self.redis = bench, database, redis
        freshet = bench.freshet(database, [ITEMS], redis.settings())
        freshet.prepare()
        self.writer = freshet.start("writer", roles="command,apply")
        self.relay = freshet.start("relay", roles="relay")
        self.requests = write_updates(bench, ITEMS, freshet.token)

    def write(self, seconds):
        generate(self.bench.load_binary, self.writer.port, self.requests, "--connections", 4, "--rate", RATE,
                 "--accept", "200,202", "--warmup", 0, "--seconds", seconds)

    def version(self):
        """The committed one, once everything that was accepted is decided and published."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        waiting = ("select (select count(*) from refdata.update_request where status = 'PENDING')"
                   " + (select count(*) from refdata.outbox_event where not published)")
        while self.database.run(waiting) != "0":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the relay is not done after {PATIENCE_SECONDS} s")
            time.sleep(0.05)
        return int(self.database.run("select version from refdata.dictionary_meta "
                                     f"where tenant_id = '{TENANT}' and dict_code = '{ITEMS.code}'"))

    def cpu(self, pods):
        return {"redis": self.redis.cpu_seconds(), "relay": machine.cpu_seconds(self.relay.pid),
                "pods": machine.cpu_seconds(pods.process.pid), "clock": time.monotonic()}

    def waits(self, begin):
        """(ms that each row waited to be published, how many waited at once at most)."""
        rows = self.database.rows("select (extract(epoch from created_at) * 1e6)::bigint, "
                                  "(extract(epoch from published_at) * 1e6)::bigint "
                                  f"from refdata.outbox_event where version > {begin}")
        spans = [tuple(map(int, row)) for row in rows]
        waiting = most = 0
        for _, change in sorted([(at, 1) for at, _ in spans] + [(at, -1) for _, at in spans]):
            waiting += change
            most = max(most, waiting)
        return [(published - created) / 1e3 for created, published in spans], most


def run(bench, report):
    rows = []
    with engines.Redis() as redis, bench.database() as database:
        try:
            side = Side(bench, database, redis)
            for count in STEPS:
                progress(f"{count} pods, {RATE} invalidations a second for {SECONDS} s")
                with Pods(bench, redis, count) as pods:
                    rows.append(_measure(side, pods, count))
        finally:
            bench.processes.close()
    report.add("fanout", rows)
    _print(rows)
    _print_commands(rows[-1])
    cost = _cost(rows)
    report.add("cost", cost)
    _print_cost(cost)
    most = max(rows, key=lambda row: row["pods"])
    report.verdict(f"{most['pods']} pods: rows that waited for the relay at once", most["backlog_max"], BACKLOG_MAX)
    report.verdict(f"{most['pods']} pods: invalidations a second short of {RATE}", max(0, RATE - most["rate"]), RATE * 0.02)


def _gained(before, after):
    return {name: after[name] - before[name] for name in before}


def _measure(side, pods, count):
    side.write(WARM_UP_SECONDS)
    begin = side.version()
    pods.begin(begin)
    idle = side.cpu(pods)
    time.sleep(IDLE_SECONDS)
    idle = _gained(idle, side.cpu(pods))
    side.redis.reset_commands()
    before = side.cpu(pods)
    side.write(SECONDS)
    used = _gained(before, side.cpu(pods))
    end = side.version()
    commands = side.redis.commands()
    figures = pods.end(end)
    if figures["missed"]:
        raise RuntimeError(f"{figures['missed']} of {count} × {end - begin} messages never came")
    waits, most = side.waits(begin)
    row = {"pods": count, "messages": end - begin, "rate": len(waits) / used["clock"], "told": figures["told"],
           "handled": figures["handled"], "repeated": figures["repeated"], "behind_max": figures["behind_max"],
           "relay_p50_ms": quantile(waits, 0.5), "relay_p99_ms": quantile(waits, 0.99), "backlog_max": most,
           "commands": commands}
    for name in ("redis", "relay", "pods"):
        row[f"{name}_busy"] = used[name] / used["clock"]
        row[f"{name}_idle_busy"] = idle[name] / idle["clock"]
        row[f"{name}_us"] = (row[f"{name}_busy"] - row[f"{name}_idle_busy"]) * used["clock"] / (end - begin) * 1e6
    return row


def _print(rows):
    table(f"{RATE} invalidations a second to every pod",
          ["pods", "messages", "a second", "on the channel p50 ms", "p99", "by the stream p50 ms", "p99", "max", "relay p50 ms",
           "p99", "rows waiting", "pods apart", "repeated"],
          [[row["pods"], row["messages"], f"{row['rate']:.1f}", f"{row['told']['p50_ms']:.1f}", f"{row['told']['p99_ms']:.1f}",
            *(f"{row['handled'][name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")), f"{row['relay_p50_ms']:.1f}",
            f"{row['relay_p99_ms']:.1f}", row["backlog_max"], row["behind_max"], row["repeated"]] for row in rows])
    table("processor time: busy is the share of one processor",
          ["pods", "Redis busy", "idle", "µs a message", "relay busy", "idle", "µs a message", "all pods busy", "idle",
           "µs a message"],
          [[row["pods"], *(text for name in ("redis", "relay", "pods") for text in (
              f"{row[name + '_busy']:.3f}", f"{row[name + '_idle_busy']:.3f}", f"{row[name + '_us']:,.0f}"))] for row in rows])


def _print_commands(row):
    """Redis's own account. What a script or a transaction runs is counted once more, by itself."""
    table(f"what Redis was asked, {row['pods']} pods", ["command", "calls a message", "µs a call", "µs a pod and message"],
          [[name, f"{calls / row['messages']:.1f}", f"{usec / calls:.1f}", f"{usec / row['messages'] / row['pods']:.2f}"]
           for name, (calls, usec) in sorted(row["commands"].items(), key=lambda item: -item[1][1])[:8]])


def _cost(rows):
    """A message costs something and something more for every pod, by the first and the last row. Where it costs less with
    more pods, since more of them are sent at once, it is taken to cost no less with even more."""
    few, many = rows[0], rows[-1]
    more = many["pods"] - few["pods"]
    cost = {"redis_busy_measured": many["redis_busy"], "pods_measured": many["pods"]}
    for name in ("redis", "relay"):
        each = (many[f"{name}_us"] - few[f"{name}_us"]) / more
        idle = (many[f"{name}_idle_busy"] - few[f"{name}_idle_busy"]) / more
        whole = many[f"{name}_us"] + max(0, each) * (FLEET - many["pods"])
        busy = many[f"{name}_idle_busy"] + max(0, idle) * (FLEET - many["pods"]) + whole * RATE / 1e6
        cost[name] = {"us_per_message": few[f"{name}_us"], "us_per_pod_and_message": each,
                      "idle_us_per_pod_and_second": idle * 1e6, f"us_per_message_{FLEET}_pods": whole,
                      f"busy_{FLEET}_pods": busy}
    return cost


def _print_cost(cost):
    table(f"by pod and message, and {FLEET:,} pods at {RATE} a second by that",
          ["", "µs a message, one pod", "µs a pod and message", "µs a pod and idle second", f"µs a message, {FLEET:,} pods",
           f"processors, {FLEET:,} pods"],
          [[name, f"{each['us_per_message']:,.0f}", f"{each['us_per_pod_and_message']:.2f}",
            f"{each['idle_us_per_pod_and_second']:.0f}", f"{each[f'us_per_message_{FLEET}_pods']:,.0f}",
            f"{each[f'busy_{FLEET}_pods']:.2f}"] for name, each in ((name, cost[name]) for name in ("redis", "relay"))])
