"""`write`: what an update costs beside PostgreSQL's own tools on the same server in the same minutes.

WAIT_COMMIT, one client, beside a bare single-row commit by libpq; ASYNC from 64 clients until all are committed, beside
pgbench's simple-update. PostgreSQL flushes every commit to disk for all of them.
"""
import json
import re
import statistics
import subprocess
import time

from .flow import write_updates
from .freshet import TENANT, Builtin
from .generator import generate
from .report import progress, table

ITEMS = Builtin("ITEMS", 10_000)
CLIENTS = 64
PGBENCH_SCALE = 10
TOGETHER, APART = [None], ["command,query", "apply,relay"]


def run(bench, report):
    with bench.database() as database:
        fsync = database.run("show fsync"), database.run("show synchronous_commit")
        if fsync != ("on", "on"):
            raise RuntimeError("PostgreSQL does not wait for the disk: nothing to compare")
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        _wait_commit(bench, report, database, freshet)
        _asynchronous(bench, report, database, freshet)


def _start(freshet, roles):
    return [freshet.start(f"freshet-{number}", 1, [ITEMS] if role is None or "query" in role else [], roles=role)
            for number, role in enumerate(roles)]


def _wait_commit(bench, report, database, freshet):
    requests = write_updates(bench, ITEMS, freshet.token, "WAIT_COMMIT")
    rounds = []
    for number in range(bench.rounds.rounds):
        each = {"bare": _bare(bench, database)}
        for name, roles in (("together", TOGETHER), ("apart", APART)):
            running = _start(freshet, roles)
            try:
                each[name] = generate(bench.load_binary, running[0].port, requests, "--connections", 1,
                                      "--seconds", bench.rounds.seconds)
            finally:
                bench.processes.close()
        rounds.append(each)
        progress(f"WAIT_COMMIT, round {number + 1} of {bench.rounds.rounds}")
    report.add("wait_commit", rounds)
    names = {"bare": "a commit by libpq", "together": "WAIT_COMMIT, one process", "apart": "WAIT_COMMIT, two processes"}
    ratios = {name: [each[name]["p50_us"] / each["bare"]["p50_us"] for each in rounds] for name in names}
    table("one client, one after the other", ["", "p50 µs", "p99 µs", "a second", "× commit", "spread"],
          [[words, *(f"{statistics.median(each[name][field] for each in rounds):,.0f}"
                     for field in ("p50_us", "p99_us", "rps")),
            f"{statistics.median(ratios[name]):.2f}", f"{min(ratios[name]):.2f}–{max(ratios[name]):.2f}"]
           for name, words in names.items()])
    report.verdict("WAIT_COMMIT p50, one process, × commit", statistics.median(ratios["together"]), 4)
    report.verdict("WAIT_COMMIT p50, two processes, × commit", statistics.median(ratios["apart"]), 6)


def _bare(bench, database):
    command = [bench.binary("commit"), database.url, str(bench.rounds.seconds)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _asynchronous(bench, report, database, freshet):
    requests = write_updates(bench, ITEMS, freshet.token)
    seconds = max(3, bench.rounds.seconds)
    _pgbench(database, "-i", "-s", str(PGBENCH_SCALE), "-q")
    rounds = []
    for number in range(bench.rounds.rounds):
        each = {"pgbench": _pgbench_rate(database, seconds), "prepared": _pgbench_rate(database, seconds, "-M", "prepared")}
        for name, roles in (("together", TOGETHER), ("apart", APART)):
            running = _start(freshet, roles)
            try:
                each[name] = _committed_rate(bench, database, running[0], requests, seconds)
            finally:
                bench.processes.close()
        rounds.append(each)
        progress(f"{CLIENTS} clients, round {number + 1} of {bench.rounds.rounds}")
    report.add("asynchronous", rounds)
    names = {"pgbench": "pgbench -N", "prepared": "pgbench -N -M prepared", "together": "freshet, one process",
             "apart": "freshet, two processes"}
    ratios = {name: [each[name] / each["pgbench"] for each in rounds] for name in names}
    table(f"{CLIENTS} clients, single-item updates, all committed", ["", "a second", "× pgbench -N", "spread"],
          [[words, f"{statistics.median(each[name] for each in rounds):,.0f}", f"{statistics.median(ratios[name]):.2f}",
            f"{min(ratios[name]):.2f}–{max(ratios[name]):.2f}"] for name, words in names.items()])
    report.verdict_at_least("ASYNC updates, 64 clients, × pgbench -N", statistics.median(ratios["together"]), 0.5)


def _committed_rate(bench, database, running, requests, seconds):
    """Updates a second, from the first one's row to the last one's decision."""
    since = database.run("select clock_timestamp()")
    figures = generate(bench.load_binary, running.port, requests, "--connections", CLIENTS, "--accept", "200,202",
                       "--warmup", 0, "--seconds", seconds)
    mine = f"tenant_id = '{TENANT}' and created_at >= '{since}'"
    deadline = time.monotonic() + 120
    while database.run(f"select count(*) from refdata.update_request where status = 'PENDING' and {mine}") != "0":
        if time.monotonic() > deadline:
            raise RuntimeError("updates are still pending after two minutes")
        time.sleep(0.05)
    committed, took = database.run(
        "select count(*) filter (where status = 'COMMITTED'), extract(epoch from max(updated_at) - min(created_at)) "
        f"from refdata.update_request where {mine}").split("|")
    if int(committed) < figures["requests"]:
        raise RuntimeError(f"{figures['requests']} accepted, {committed} committed")
    return int(committed) / float(took)


def _pgbench(database, *options):
    done = subprocess.run(["pgbench", *options, database.url], text=True, capture_output=True, check=True)
    return done.stdout


def _pgbench_rate(database, seconds, *options):
    out = _pgbench(database, "-N", "-c", str(CLIENTS), "-j", "2", "-T", str(int(seconds)), "-n", *options)
    return float(re.search(r"tps = ([0-9.]+)", out)[1])
