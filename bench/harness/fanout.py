"""`fanout`: what 200 pods cost one Redis and the relay at 100 invalidations a second, and what 1,000 would.

Updates are posted to a process with the command and apply roles, a second process is the relay, and `fanout` is the pods:
the program's own Redis driver once for each, all in one process. Processor time is the kernel's clock of each process; what
is used while nothing is sent is taken off. How long rows waited for the relay, and how many at once, the outbox itself tells.
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

    def published(self, begin):
        """What became of the rows after that version: how long each waited, how many at once at most, how many a second."""
        rows = self.database.rows("select (extract(epoch from created_at) * 1e6)::bigint, "
                                  "(extract(epoch from published_at) * 1e6)::bigint "
                                  f"from refdata.outbox_event where version > {begin}")
        spans = [tuple(map(int, row)) for row in rows]
        waiting = most = 0
        for _, change in sorted([(at, 1) for at, _ in spans] + [(at, -1) for _, at in spans]):
            waiting += change
            most = max(most, waiting)
        waits = [(published - created) / 1e3 for created, published in spans]
        took_us = max(published for _, published in spans) - min(created for created, _ in spans)
        return {"published_p50_ms": quantile(waits, 0.5), "published_p99_ms": quantile(waits, 0.99), "backlog_max": most,
                "rate": (len(spans) - 1) / took_us * 1e6}


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
    report.verdict_at_least(f"{most['pods']} pods: invalidations a second", most["rate"], RATE * 0.95)


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
    row = {"pods": count, "messages": end - begin, "commands": commands, **side.published(begin),
           **{name: figures[name] for name in ("told", "handled", "repeated", "behind_max")}}
    for name in ("redis", "relay", "pods"):
        row[f"{name}_busy"] = used[name] / used["clock"]
        row[f"{name}_idle_busy"] = idle[name] / idle["clock"]
        row[f"{name}_us"] = (row[f"{name}_busy"] - row[f"{name}_idle_busy"]) * used["clock"] / (end - begin) * 1e6
    return row


def _print(rows):
    table("from the outbox to Redis: ms that a row waited, and how many waited at once",
          ["pods", "messages", "a second", "p50 ms", "p99 ms", "at once"],
          [[row["pods"], row["messages"], f"{row['rate']:.1f}", f"{row['published_p50_ms']:.1f}",
            f"{row['published_p99_ms']:.1f}", row["backlog_max"]] for row in rows])
    table("commit to pod, ms; and how many messages the last pod was behind the first",
          ["pods", "channel p50", "p99", "stream p50", "p99", "max", "behind", "repeated"],
          [[row["pods"], f"{row['told']['p50_ms']:.1f}", f"{row['told']['p99_ms']:.1f}",
            *(f"{row['handled'][name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")), row["behind_max"], row["repeated"]]
           for row in rows])
    table("processor time: share of one, the same while nothing is sent, µs a message",
          ["pods", "Redis", "idle", "µs", "relay", "idle", "µs", "all pods", "idle", "µs"],
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
    cost = {}
    for name in ("redis", "relay"):
        each = (many[f"{name}_us"] - few[f"{name}_us"]) / more
        idle = (many[f"{name}_idle_busy"] - few[f"{name}_idle_busy"]) / more
        whole = many[f"{name}_us"] + max(0, each) * (FLEET - many["pods"])
        busy = many[f"{name}_idle_busy"] + max(0, idle) * (FLEET - many["pods"]) + whole * RATE / 1e6
        cost[name] = {"us_per_pod_and_message": many[f"{name}_us"] / many["pods"], "us_per_message_and_further_pod": each,
                      "idle_us_per_pod_and_second": idle * 1e6, "us_per_message_extrapolated": whole,
                      "busy_extrapolated": busy}
    return cost


def _print_cost(cost):
    table(f"µs by pod, with {STEPS[-1]} of them; and by that, with {FLEET:,}",
          ["", "pod and message", "further pod, message", "pod, idle second", f"message, {FLEET:,} pods",
           f"processors at {RATE} a second"],
          [[name, f"{each['us_per_pod_and_message']:.2f}", f"{each['us_per_message_and_further_pod']:.2f}",
            f"{each['idle_us_per_pod_and_second']:.0f}", f"{each['us_per_message_extrapolated']:,.0f}",
            f"{each['busy_extrapolated']:.2f}"] for name, each in cost.items()])
