"""`snapshot`: 1,000,000 items in chunks, from the first POST to COMMITTED, beside COPY of the same rows; and what readers
notice of reloads."""
import json
import os
import statistics
import subprocess
import time
import uuid

from . import freshet as program
from . import postgres
from .flow import write_updates
from .freshet import TENANT, Builtin, Dictionary
from .generator import generate, write_requests
from .query import item_requests
from .report import progress, table

ROWS = 1_000_000
CHUNK = 10_000
SOURCE = Dictionary("SOURCE", "items_source", ROWS)
ROUNDS = 3
SENDERS = 2
READ_RATE = 2_000
RELOADED = Builtin("RELOADED", 100_000, "FULL")
RELOADS = 10  # updates a second, each a reload of everything

# As refdata.dictionary_item, in a schema of its own.
TABLE = "create table {name} (like refdata.dictionary_item including all)"


def run(bench, report):
    targets = [Builtin(f"SNAPSHOT{number}", 0) for number in range(ROUNDS)]
    with bench.database() as database:
        progress(f"making {ROWS:,} rows")
        database.create_items(SOURCE.table, TENANT, ROWS)
        freshet = bench.freshet(database, [*targets, RELOADED])
        freshet.prepare()
        _chunked(bench, report, database, freshet, targets)
        _readers(bench, report, freshet)


# ---- chunks beside COPY ----

def _chunked(bench, report, database, freshet, targets):
    rows = [(key, json.loads(payload)) for key, payload in
            database.rows(f"select code, body::text from {SOURCE.table} order by code")]
    copied = os.path.join(bench.folder, "rows.tsv")
    rounds = []
    for number, target in enumerate(targets):
        _write_copy(copied, rows, target.code)
        requests, last = _chunk_requests(bench, freshet.token, target, rows)
        copy_s = _copy_seconds(database, f"bench_copy_{number}", copied)
        snapshot_s, sent_s = _snapshot_seconds(bench, freshet, requests, last)
        held = int(database.run("select count(*) from refdata.dictionary_item "
                                f"where dict_code = '{target.code}' and not deleted"))
        if held != ROWS:
            raise RuntimeError(f"{held} items are there, not {ROWS}")
        rounds.append({"copy_s": copy_s, "snapshot_s": snapshot_s, "sent_s": sent_s, "ratio": copy_s / snapshot_s})
        progress(f"snapshot, round {number + 1} of {ROUNDS}")
    report.add("snapshot", rounds)
    table(f"{ROWS:,} items in chunks of {CHUNK:,}, to COMMITTED",
          ["round", "COPY s", "freshet s", "of these sending", "items/s", "rate × COPY"],
          [[number + 1, f"{each['copy_s']:.2f}", f"{each['snapshot_s']:.2f}", f"{each['sent_s']:.2f}",
            f"{ROWS / each['snapshot_s']:,.0f}", f"{each['ratio']:.2f}"] for number, each in enumerate(rounds)])
    report.verdict_at_least("chunked snapshot, rate × COPY", statistics.median(each["ratio"] for each in rounds), 0.4)


def _write_copy(path, rows, code):
    with open(path, "w", encoding="utf-8") as out:
        for key, payload in rows:
            text = json.dumps(payload, separators=(",", ":"))
            out.write(f"{TENANT}\t{code}\t{key}\t{text}\n")


def _chunk_requests(bench, token, target, rows):
    """A file of requests, one a chunk, and the eventId of the last."""
    snapshot_id, total = str(uuid.uuid4()), len(rows) // CHUNK
    events = [str(uuid.uuid4()) for _ in range(total)]

    def requests():
        for index, event in enumerate(events):
            items = [{"key": key, "payload": payload} for key, payload in rows[index * CHUNK:(index + 1) * CHUNK]]
            yield program.post(program.updates_path(), token, {
                "eventId": event, "dictCode": target.code, "eventType": "SNAPSHOT", "snapshotId": snapshot_id,
                "chunkIndex": index + 1, "chunksTotal": total, "items": items})
    return write_requests(os.path.join(bench.folder, "chunks.requests"), requests()), events[-1]


def _copy_seconds(database, name, path):
    database.run(TABLE.format(name=name))
    started = time.monotonic()
    database.run(f"\\copy {name} (tenant_id, dict_code, item_key, payload) from '{path}'")
    return time.monotonic() - started


def _snapshot_seconds(bench, freshet, requests, last):
    running = freshet.start("freshet", 1)
    status = f"/v1/tenants/{TENANT}/updates/{last}"
    try:
        started = time.monotonic()
        sent = generate(bench.load_binary, running.port, requests, "--connections", SENDERS, "--once",
                        "--accept", "200,202")
        while (answer := json.loads(running.ask(status).body))["status"] == "PENDING":
            time.sleep(0.005)
        took = time.monotonic() - started
        if answer["status"] != "COMMITTED":
            raise RuntimeError(f"the snapshot ended as {answer}")
        return took, sent["seconds"]
    finally:
        bench.processes.close()


# ---- readers during reloads ----

def _readers(bench, report, freshet):
    running = freshet.start("freshet", 1, [RELOADED])
    running.load(RELOADED, postgres.key(0))
    reads = write_requests(os.path.join(bench.folder, "reads.requests"), item_requests(RELOADED, freshet.token))
    writes = write_updates(bench, RELOADED, freshet.token)
    rounds = []
    try:
        for number in range(bench.rounds.rounds):
            rounds.append({"quiet": _read(bench, running, reads), "reloading": _read_while(bench, running, reads, writes)})
            progress(f"readers, round {number + 1} of {bench.rounds.rounds}")
    finally:
        bench.processes.close()
    report.add("readers", rounds)
    table(f"{READ_RATE:,} reads a second of {RELOADED.rows:,} items, latency from when they were due",
          ["", "p50 µs", "p99 µs", "p99.9 µs", "reloads/s"],
          [[words, *(f"{statistics.median(each[name][field] for each in rounds):,.0f}"
                     for field in ("p50_us", "p99_us", "p999_us")),
            f"{statistics.median(each[name]['reloads'] for each in rounds):.1f}"]
           for name, words in (("quiet", "without reloads"),
                               ("reloading", f"{RELOADS} updates a second, each a full reload"))])
    excess = [each["reloading"]["p99_us"] / (2 * each["quiet"]["p99_us"] + 5_000) for each in rounds]
    report.verdict("p99 during reloads, × (2 × p99 without + 5 ms)", statistics.median(excess), 1.0)


def _read(bench, running, reads):
    seconds = max(5, bench.rounds.seconds)
    before = _reloads(running)
    figures = generate(bench.load_binary, running.port, reads, "--connections", 16, "--rate", READ_RATE,
                       "--seconds", seconds)
    figures["reloads"] = (_reloads(running) - before) / seconds
    return figures


def _read_while(bench, running, reads, writes):
    command = [bench.load_binary, "--connect", f"127.0.0.1:{running.port}", "--requests", writes, "--connections", "2",
               "--rate", str(RELOADS), "--accept", "200,202", "--seconds", "600"]
    writer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        return _read(bench, running, reads)
    finally:
        writer.kill()
        writer.wait()


def _reloads(running):
    return sum(value for name, value in running.metrics().items() if name.startswith("cache_reload_duration")
               and "_count" in name)
