"""`delta`: what one changed key costs a pod, by the size of the dictionary: the pod's processor time per update, and the
time from wanting a reload to having swapped."""
import time

from . import postgres
from .flow import write_updates
from .freshet import Builtin
from .generator import generate
from .report import progress, table

SIZES = [Builtin("TEN", 10_000, "DELTA"), Builtin("HUNDRED", 100_000, "DELTA"), Builtin("MILLION", 1_000_000, "DELTA")]
RATE = 100
SECONDS = 10
FLAT = 1.5


def run(bench, report):
    sizes = SIZES[:2] if bench.quick else SIZES
    rows = []
    with bench.database() as database:
        progress("making the dictionaries")
        freshet = bench.freshet(database, sizes)
        freshet.prepare()
        for dictionary in sizes:
            rows.append(_measure(bench, freshet, dictionary))
            progress(f"{dictionary.rows:,} items")
    report.add("delta", rows)
    table(f"one key changed, {RATE} updates a second, a pod of its own",
          ["items", "updates", "CPU µs/update", "idle taken off", "× 10,000", "reload µs"],
          [[f"{row['items']:,}", row["updates"], f"{row['cpu_us']:,.0f}", f"{row['net_us']:,.0f}",
            f"{row['net_us'] / rows[0]['net_us']:.2f}", f"{row['reload_us']:,.0f}"] for row in rows])
    for row in rows[1:]:
        report.verdict(f"CPU of a delta, {row['items']:,} items, × 10,000 items", row["net_us"] / rows[0]["net_us"], FLAT)


def _measure(bench, freshet, dictionary):
    writer = freshet.start("writer", 1, roles="command,apply,relay")
    pod = freshet.start("pod", 1, [dictionary], roles="query")
    try:
        pod.load(dictionary, postgres.key(0))
        requests = write_updates(bench, dictionary, freshet.token)
        idle_us = _idle_us(pod.pid)
        before = pod.metrics()
        figures = generate(bench.load_binary, writer.port, requests, "--connections", 4, "--rate", RATE, "--accept",
                           "200,202", "--seconds", SECONDS, pids=[pod.pid])
        reloads, seconds = _gained(before, pod.metrics(), "cache_reload_duration")
    finally:
        bench.processes.close()
    cpu_us = figures["server_cpu_us_per_request"]
    return {"items": dictionary.rows, "updates": figures["requests"], "cpu_us": cpu_us,
            "net_us": max(1.0, cpu_us - idle_us / RATE), "reloads": reloads,
            "reload_us": seconds / reloads * 1e6 if reloads else 0.0}


def _idle_us(pid, seconds=3):
    """Processor time a second of a pod that nobody writes to."""
    before = _cpu_ns(pid)
    time.sleep(seconds)
    return (_cpu_ns(pid) - before) / 1e3 / seconds


def _cpu_ns(pid):
    return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's name for that process's processor clock


def _gained(before, after, name):
    def total(samples, kind):
        return sum(value for sample, value in samples.items() if sample.startswith(name) and kind in sample.split("{")[0])
    return (total(after, "_count") - total(before, "_count"), total(after, "_sum") - total(before, "_sum"))
