"""`memory`: how much the program grows by holding 1,000,000 items of about 100 bytes."""
import time

from . import machine, postgres
from .freshet import TENANT, Dictionary
from .report import progress, table

ITEMS = Dictionary("MILLION", "items_million", 1_000_000)
PER_ITEM = 40
BESIDE_BODY = 24
WRAPPING = len('{"key":"","payload":}')
SETTLE_SECONDS = 2  # a freed load buffer goes back to the system a moment after the load


def run(bench, report):
    with bench.database() as database:
        progress(f"making {ITEMS.rows:,} rows")
        database.create_items(ITEMS.table, TENANT, ITEMS.rows)
        key_bytes, payload_bytes = database.bytes_of(ITEMS.table)
        freshet = bench.freshet(database, [ITEMS])
        freshet.prepare()
        running = freshet.start("freshet", 1)
        try:
            before = machine.status_kib(running.pid, "RssAnon")
            running.load(ITEMS, postgres.key(0))
            time.sleep(SETTLE_SECONDS)
            after = machine.status_kib(running.pid, "RssAnon")
            peak = machine.status_kib(running.pid, "VmHWM")
        finally:
            bench.processes.close()
    _report(report, (after - before) * 1024, key_bytes, payload_bytes, peak * 1024)


def _report(report, grown, key_bytes, payload_bytes, peak):
    body_bytes = key_bytes + payload_bytes + WRAPPING * ITEMS.rows
    allowed = key_bytes + body_bytes + PER_ITEM * ITEMS.rows
    figures = {"items": ITEMS.rows, "grown_bytes": grown, "key_bytes": key_bytes,
               "payload_bytes": payload_bytes, "answer_body_bytes": body_bytes, "peak_resident_bytes": peak,
               "beside_answer_body_per_item": (grown - body_bytes) / ITEMS.rows,
               "beside_key_and_payload_per_item": (grown - key_bytes - payload_bytes) / ITEMS.rows}
    report.add("memory", figures)
    table("1,000,000 items in memory", ["", "bytes", "per item"],
          [[name, f"{value:,}", f"{value / ITEMS.rows:.1f}"] for name, value in (
              ("grown (RssAnon)", grown), ("keys", key_bytes), ("payloads", payload_bytes),
              ("answer bodies (key and payload wrapped)", body_bytes),
              ("grown, beside the answer bodies", grown - body_bytes),
              ("grown, beside keys and payloads", grown - key_bytes - payload_bytes),
              ("peak resident, whole process", peak))])
    report.verdict("grown, × (key + answer body + 40 an item)", grown / allowed, 1.0)
    report.verdict("grown beside the answer bodies, bytes an item", (grown - body_bytes) / ITEMS.rows, BESIDE_BODY)
