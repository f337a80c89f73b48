"""`recovery`: updates decided a second while the processes that apply them are killed, over Kafka and on the embedded bus.

Two processes with the role apply are killed in turn (SIGKILL), one every KILL_SECONDS, and started again at once. Updates of many
dictionaries arrive at a steady rate at a process that is not killed. Counted are the decisions within the window; afterwards every
accepted update must be decided.
"""
import os
import random
import threading
import time

from . import engines
from .flow import quantile, update
from .freshet import TENANT, Builtin, post, updates_path
from .generator import generate, write_requests
from .report import progress, table

DICTIONARIES = [Builtin(f"D{number}", 10) for number in range(64)]
APPLIERS = 2
RATE = 50
KILL_SECONDS = 3
SECONDS = 45
SETTLE_SECONDS = 120
WORDS = {"embedded": "PostgreSQL", "kafka": "Kafka"}
LIMIT = 20


class Appliers(threading.Thread):
    """Kills one after the other until it is stopped; each is started again before the next is killed."""

    def __init__(self, freshet):
        super().__init__()
        self.freshet, self.kills, self.error = freshet, 0, None
        self.running = [self._start(number) for number in range(APPLIERS)]
        self.is_over = threading.Event()

    def _start(self, number):
        return self.freshet.start(f"apply-{number}-{self.freshet.database.name}", roles="apply")

    def run(self):
        try:
            while not self.is_over.wait(KILL_SECONDS):
                number = self.kills % APPLIERS
                self.running[number].process.kill()
                self.running[number].process.wait()
                self.running[number] = self._start(number)
                self.kills += 1
        except (RuntimeError, OSError) as error:
            self.error = error

    def stop(self):
        self.is_over.set()
        self.join()
        if self.error:
            raise self.error


def measure(bench, database, settings):
    freshet = bench.freshet(database, DICTIONARIES, settings)
    freshet.prepare()
    command = freshet.start(f"command-{database.name}", roles="command,relay")
    source = random.Random(5)
    path = write_requests(os.path.join(bench.folder, f"{database.name}.requests"),
                          [post(updates_path(), freshet.token, update(source.choice(DICTIONARIES), source.randrange(10)))
                           for _ in range(2 * RATE * SECONDS)])
    appliers = Appliers(freshet)
    generate(bench.load_binary, command.port, path, "--connections", 1, "--rate", RATE, "--accept", "200,202", "--seconds", 1)
    settle(database)
    since = database.run("select clock_timestamp()")
    appliers.start()
    try:
        sent = generate(bench.load_binary, command.port, path, "--connections", 4, "--rate", RATE, "--accept", "200,202",
                        "--warmup", 0, "--seconds", SECONDS)["requests"]
        until = database.run("select clock_timestamp()")
    finally:
        appliers.stop()
    begun = time.monotonic()
    settle(database)
    settled = time.monotonic() - begun
    rows = database.rows("select extract(epoch from updated_at - created_at), updated_at <= "
                         f"'{until}' from refdata.update_request where tenant_id = '{TENANT}' and created_at >= '{since}'")
    if len(rows) < sent:
        raise RuntimeError(f"{sent} accepted, {len(rows)} are known")
    delays = [float(delay) for delay, _ in rows]
    for running in [command, *appliers.running]:
        running.stop()
    return {"sent": sent, "kills": appliers.kills, "rate": sum(within == "t" for _, within in rows) / SECONDS,
            "p50_s": quantile(delays, 0.5), "p90_s": quantile(delays, 0.9), "max_s": max(delays), "settled_s": settled}


def settle(database):
    deadline = time.monotonic() + SETTLE_SECONDS
    while database.run("select exists (select from refdata.update_request where status = 'PENDING')") == "t":
        if time.monotonic() > deadline:
            raise RuntimeError(f"updates are undecided {SETTLE_SECONDS} s after the last kill")
        time.sleep(0.1)


def run(bench, report):
    figures = {}
    with engines.Kafka() as kafka:
        for name, settings in {"embedded": {}, "kafka": kafka.settings()}.items():
            progress(f"{WORDS[name]}: {RATE} updates a second for {SECONDS} s, a kill every {KILL_SECONDS} s")
            with bench.database(name) as database:
                try:
                    figures[name] = measure(bench, database, settings)
                finally:
                    bench.processes.close()
    report.add("recovery", figures)
    table(f"{APPLIERS} processes apply, one is killed every {KILL_SECONDS} s; {RATE} updates a second, {len(DICTIONARIES)} "
          "dictionaries", ["commands by", "kills", "decided a second", "p50 s", "p90 s", "max s", "all decided after s"],
          [[WORDS[name], found["kills"], f"{found['rate']:.1f}", *(f"{found[field]:.2f}" for field in (
              "p50_s", "p90_s", "max_s", "settled_s"))] for name, found in figures.items()])
    report.verdict_at_least("decided a second over Kafka", figures["kafka"]["rate"], LIMIT)
    report.figure("Kafka × embedded", figures["kafka"]["rate"] / figures["embedded"]["rate"], more_is_better=True)
    report.figure("p90 s over Kafka", figures["kafka"]["p90_s"])
