"""What the benchmarks of updates share: requests that write, versions and when they were served, quantiles."""
import bisect
import contextlib
import os
import random
import subprocess

from . import freshet as program
from . import postgres
from .generator import write_requests

WRITES = 5_000  # different requests, cycled through
POLL_US = 500


def update(dictionary, number):
    """One item of the dictionary gets a new payload. The server gives the eventId."""
    value = {"id": f"{number:08d}", "sum": "s" * 32, "note": "n" * 32}
    item = {"key": postgres.key(number), "op": "UPSERT", "payload": value}
    return {"dictCode": dictionary.code, "eventType": "DELTA", "items": [item]}


def write_updates(bench, dictionary, token, mode="ASYNC"):
    """A file of single-item updates of random items."""
    source = random.Random(3)
    requests = [program.post(program.updates_path(mode), token, update(dictionary, source.randrange(dictionary.rows)))
                for _ in range(WRITES)]
    path = os.path.join(bench.folder, f"{dictionary.code}-{mode}-{abs(hash(token))}.requests")
    return write_requests(path, requests)


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.contextmanager
def poll(bench, running, dictionary, seconds, interval_us=POLL_US):
    """Watches which version a pod serves for that long; gives a list that is filled at the end: (version, time)."""
    path = os.path.join(bench.folder, f"poll-{running.name}-{dictionary.code}")
    with open(path + ".request", "wb") as out:
        out.write(program.request(program.item_path(dictionary, postgres.key(0)), running.freshet.token))
    command = [bench.binary("poll"), f"127.0.0.1:{running.port}", path + ".request", str(interval_us), str(seconds)]
    with open(path + ".seen", "wb") as out:  # a file is never full, as a pipe that nobody reads yet would be
        process = subprocess.Popen(command, stdout=out)
    seen = []
    try:
        yield seen
        if process.wait(timeout=seconds + 30) != 0:
            raise RuntimeError("poll failed")
        with open(path + ".seen", encoding="ascii") as lines:
            seen += [tuple(map(int, line.split())) for line in lines]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def freshness_ms(database, dictionary, seen):
    """How long each version took from inside its transaction, before the commit, to the first answer that had it.

    A version that was overtaken counts as served by the one that overtook it.
    """
    written = database.rows("select version, (extract(epoch from created_at) * 1e6)::bigint from refdata.outbox_event "
                            f"where dict_code = '{dictionary.code}' order by version")
    versions = [version for version, _ in seen]
    delays = []
    for version, created_us in (map(int, row) for row in written):
        at = bisect.bisect_left(versions, version)
        if 0 < at < len(seen):  # the first line is what was there before
            delays.append((seen[at][1] - created_us) / 1e3)
    return delays


def histogram_ms(before, after, name):
    """(count, {share: upper estimate in ms}) of what a Prometheus histogram gained, all labels together."""
    gained = {}
    for sample, value in after.items():
        if sample.startswith(name + "_bucket"):
            bound = float(sample.split('le="')[1].split('"')[0].replace("+Inf", "inf"))
            gained[bound] = gained.get(bound, 0) + value - before.get(sample, 0)
    bounds = sorted(gained)
    count = gained[bounds[-1]] if bounds else 0

    def at(share):
        lower, below = 0.0, 0.0
        for bound in bounds:
            if gained[bound] >= share * count:
                if bound == float("inf"):
                    return lower * 1e3
                inside = gained[bound] - below
                return (lower + (bound - lower) * ((share * count - below) / inside if inside else 1)) * 1e3
            lower, below = bound, gained[bound]
        return lower * 1e3
    return count, {share: at(share) for share in (0.5, 0.99)} if count else {}
