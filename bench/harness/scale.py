"""`scale`: reads from memory by 1 and 2 loops and 1 to 3 pods, with SPEC P1's percentiles as targets, and what the cost of a read
comes to at 2,000,000 reads a second.

Two loads in turn on the same pods: at a fixed rate, for the latency of reads (counted from when each was due) and the freshness
of changes, which are written at the same time; then as fast as the pods answer, for the processor time of a read. A writer of its
own takes the updates. Everything runs on this one machine, generators too, so that more pods share the same processors: the
cost of a read says how many are needed, not the rate reached here.
"""
import contextlib
import math
import os
import statistics
import threading

from . import postgres
from .flow import freshness_ms, poll, quantile, write_updates
from .freshet import Builtin
from .generator import generate_at, write_requests
from .query import item_requests
from .report import progress, table

ITEMS = Builtin("ITEMS", 10_000, "DELTA")
LOOPS, PODS = (1, 2), (1, 2, 3)
READS_PER_SECOND = 3_000  # of all pods together
UPDATES_PER_SECOND = 50
SECONDS, QUICK_SECONDS = 12, 4
POLL_US = 2_000
# SPEC P1, seed 000 §11
READ_LIMITS_MS = {"p95": 10, "p99": 25}
FRESHNESS_LIMITS_MS = {"p95": 300, "p99": 1000}

TARGET = 2_000_000
BUSY = 0.6  # of a processor, so that a pod more or less, and a peak, find room
CORES_PER_POD = 4
LINK_BYTES = 10e9 / 8  # of a node


def run(bench, report):
    with bench.database() as database:
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        reads = write_requests(os.path.join(bench.folder, "reads.requests"), item_requests(ITEMS, freshet.token))
        rows = [_measure(bench, database, freshet, reads, pods, loops) for loops in LOOPS for pods in PODS]
    report.add("scale", rows)
    table(f"{READS_PER_SECOND:,} reads a second over all pods, {UPDATES_PER_SECOND} updates a second; then as many reads as there can be",
          ["pods", "loops", "read p50 ms", "p95", "p99", "fresh p50 ms", "p95", "p99", "reads/s, most", "CPU µs/read", "bytes"],
          [[row["pods"], row["loops"], *(f"{row['read'][name]:.2f}" for name in ("p50", "p95", "p99")),
            *(f"{row['freshness'][name]:.1f}" for name in ("p50", "p95", "p99")), f"{row['most_rps']:,.0f}",
            f"{row['cpu_us']:.2f}", f"{row['answer_bytes']:.0f}"] for row in rows])
    for row in rows:
        _judge(report, row)
    _extrapolate(report, rows)


def _measure(bench, database, freshet, reads, pods, loops):
    words = f"{pods} {'pod' if pods == 1 else 'pods'}, {loops} {'loop' if loops == 1 else 'loops'}"
    progress(words)
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    try:
        writer = freshet.start("writer", 1, roles="command,apply,relay")
        running = [freshet.start(f"pod-{number}", loops, [ITEMS], roles="query") for number in range(1, pods + 1)]
        for pod in running:
            pod.load(ITEMS, postgres.key(0))
        paced, fresh = _paced(bench, database, freshet, reads, writer, running, seconds)
        most = generate_at(bench.load_binary, [pod.port for pod in running], reads, "--connections", 32, "--warmup", 1,
                           "--seconds", bench.rounds.seconds, pids=[pod.pid for pod in running])
    finally:
        bench.processes.close()
    answers = sum(one["requests"] for one in most)
    return {"pods": pods, "loops": loops, "words": words,
            "read": {name: max(one[f"{name}_us"] for one in paced) / 1e3 for name in ("p50", "p95", "p99")},
            "freshness": {name: quantile(fresh, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
            "updates_seen": len(fresh), "most_rps": sum(one["rps"] for one in most),
            # each generator reads the processor time of all pods in its own window: together they count each pod that often
            "cpu_us": statistics.mean(one["server_cpu_us_per_request"] * one["requests"] for one in most) / answers,
            "answer_bytes": statistics.mean(one["bytes_per_answer"] for one in most)}


def _paced(bench, database, freshet, reads, writer, running, seconds):
    """Reads at a fixed rate while changes are written: (the figures of each pod, the delays of all changes at all pods)."""
    updates = write_updates(bench, ITEMS, freshet.token)
    writing = ["--connections", 4, "--rate", UPDATES_PER_SECOND, "--accept", "200,202", "--warmup", 0]
    generate_at(bench.load_binary, [writer.port], updates, *writing, "--seconds", 2)
    database.run("delete from refdata.outbox_event where published")
    with contextlib.ExitStack() as stack:
        seen = [stack.enter_context(poll(bench, pod, ITEMS, seconds + 3, POLL_US)) for pod in running]
        background = stack.enter_context(_background(bench, writer, updates, writing, seconds))
        paced = generate_at(bench.load_binary, [pod.port for pod in running], reads, "--connections", 16, "--warmup", 1,
                            "--rate", READS_PER_SECOND / len(running), "--seconds", seconds - 1)
    delays = [delay for versions in seen for delay in freshness_ms(database, ITEMS, versions)]
    if len(delays) < 0.8 * background["requests"] * len(running):
        raise RuntimeError(f"only {len(delays)} of {background['requests'] * len(running)} changes were seen")
    return paced, delays


@contextlib.contextmanager
def _background(bench, writer, updates, options, seconds):
    """Writes while the caller reads; gives the figures, filled in at the end."""
    figures = {}

    def write():
        figures.update(generate_at(bench.load_binary, [writer.port], updates, *options, "--seconds", seconds)[0])
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield figures
    finally:
        thread.join()


def _judge(report, row):
    for name, limit in READ_LIMITS_MS.items():
        report.verdict(f"{row['words']}: reads from memory, {name} ms", row["read"][name], limit)
    for name, limit in FRESHNESS_LIMITS_MS.items():
        report.verdict(f"{row['words']}: freshness, {name} ms", row["freshness"][name], limit)


def _extrapolate(report, rows):
    """Cost per read times reads, with everything that it takes for granted written beside it."""
    cost = max(row["cpu_us"] for row in rows)
    one, two = (next(row for row in rows if (row["pods"], row["loops"]) == (1, loops)) for loops in LOOPS)
    loops_ratio = two["cpu_us"] / one["cpu_us"]
    pods_ratio = max(row["cpu_us"] for row in rows if row["pods"] == PODS[-1]) / one["cpu_us"]
    bytes_ = max(row["answer_bytes"] for row in rows)
    cores = TARGET * cost / 1e6 / BUSY
    pods = math.ceil(cores / CORES_PER_POD)
    per_pod = TARGET / pods
    link = TARGET * bytes_ / LINK_BYTES
    lines = [
        ["processor time of a read, the dearest row above", f"{cost:.2f} µs"],
        ["2 loops beside 1: a read costs", f"{loops_ratio:.2f} ×"],
        [f"{PODS[-1]} pods beside 1: a read costs", f"{pods_ratio:.2f} ×"],
        [f"cores for {TARGET:,} reads a second, {BUSY:.0%} busy", f"{TARGET:,} × {cost:.2f} µs / {BUSY} = {cores:.0f}"],
        [f"pods of {CORES_PER_POD} loops", f"{cores:.0f} / {CORES_PER_POD} = {pods}"],
        ["reads of a pod", f"{per_pod:,.0f} a second"],
        ["answers on the wire, their payload alone", f"{TARGET * bytes_ / 1e9:.2f} GB/s = {link:.1f} links of 10 Gbit/s"],
    ]
    assumptions = [
        "Clients keep connections open, send one request at a time and have a token that is in the cache: pipelining costs less,"
        " new connections, TLS and new tokens cost more.",
        "A core of the target is as fast as one of this machine, and a pod has it for itself.",
        "Pods share nothing on the way of a read: cost grows with reads alone. The row for 3 pods shows what sharing this machine adds.",
        "More loops cost what the second one does; the target's loops do not share a processor with generators, as here.",
        "The load balancer spreads connections evenly and is not part of the sum.",
        "Changes are few beside reads: each pod loads each of them, so their cost grows with pods (bench fanout, delta).",
    ]
    report.add("extrapolation", {"target_rps": TARGET, "busy": BUSY, "cpu_us": cost, "loops_ratio": loops_ratio,
                                 "pods_ratio": pods_ratio, "cores": cores, "pods": pods, "answer_bytes": bytes_,
                                 "assumptions": assumptions})
    table(f"{TARGET:,} reads a second", ["", ""], lines)
    print("\n  This takes for granted:")
    for assumption in assumptions:
        print(f"  - {assumption}")
