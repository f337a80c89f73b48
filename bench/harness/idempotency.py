"""`idempotency`: what an Idempotency-Key costs: a POST of an item with one beside the same POST without, from 16 clients.

Every item is new, so each POST of both kinds writes an item and its event, and PostgreSQL flushes each commit to disk; with a
key the stored answer is written too. Then the keyed ones are sent once more, and answered from what is stored.
"""
import itertools
import os
import statistics

from .freshet import post
from .generator import generate, write_requests
from .report import table
from .write import in_turn, ratios_of, spread

CLIENTS = 16
ITEMS = 5_000  # of one run
WORDS = {"plain": "POST without a key", "keyed": "POST with a key", "replayed": "the same again: replayed"}


class Side:
    def __init__(self, bench, database):
        self.bench, self.database = bench, database
        freshet = bench.freshet(database, [])
        freshet.prepare()
        self.token = freshet.token
        self.running = freshet.start("freshet-intake", 1, roles="intake")
        self.rounds = itertools.count()
        self.posted = 0

    def _requests(self, with_key):
        number = next(self.rounds)
        return write_requests(os.path.join(self.bench.folder, f"items-{number}.requests"), (
            post("/api/v1/items", self.token, {"sku": f"ITEM-{number}-{each}", "title": "Sample Item", "price": 1.5},
                 f"key-{number}-{each}" if with_key else None) for each in range(ITEMS)))

    def _send(self, file):
        figures = generate(self.bench.load_binary, self.running.port, file, "--connections", CLIENTS, "--accept", "201", "--once")
        if figures["requests"] != ITEMS:
            raise RuntimeError(f"{figures['requests']} of {ITEMS} were answered")
        return figures

    def plain(self):
        file = self._requests(False)
        self.posted += ITEMS
        try:
            return self._send(file)
        finally:
            os.unlink(file)

    def keyed(self):
        """(first, replayed)"""
        file = self._requests(True)
        self.posted += ITEMS
        try:
            return self._send(file), self._send(file)
        finally:
            os.unlink(file)

    def check(self):
        """One effect each."""
        found = self.database.run("select count(*), (select count(*) from intake.event_outbox) from intake.items").split("|")
        if [int(count) for count in found] != [self.posted] * 2:
            raise RuntimeError(f"{self.posted} items posted, items and events: {found}")


def run(bench, report):
    with bench.database() as database:
        if (database.run("show fsync"), database.run("show synchronous_commit")) != ("on", "on"):
            raise RuntimeError("PostgreSQL does not wait for the disk: nothing to compare")
        try:
            _measure(bench, report, Side(bench, database))
        finally:
            bench.processes.close()


def _measure(bench, report, side):
    side.plain()  # connections and statements are made
    rounds = in_turn(bench, f"{CLIENTS} clients", {"plain": side.plain, "keyed": side.keyed})
    side.check()
    flat = [{"plain": each["plain"], "keyed": each["keyed"][0], "replayed": each["keyed"][1]} for each in rounds]
    report.add("items", flat)
    ratios = {name: ratios_of(flat, name, "plain", lambda figures: figures["p50_us"]) for name in WORDS}
    table(f"{CLIENTS} clients, new items", ["", "p50 µs", "p99 µs", "a second", "× without", "spread"],
          [[words, *(f"{statistics.median(each[name][field] for each in flat):,.0f}" for field in ("p50_us", "p99_us", "rps")),
            *spread(ratios[name])] for name, words in WORDS.items()])
    report.verdict("keyed POST p50, 16 clients, × without a key", statistics.median(ratios["keyed"]), 1.6)
    report.figure("POST p50 without a key, µs", statistics.median(each["plain"]["p50_us"] for each in flat))
    report.figure("a replay, × without a key", statistics.median(ratios["replayed"]))
