"""Fixtures of the cost tests: a private PostgreSQL, and one set of processes at a time whose work is counted."""
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

# pylint: disable=wrong-import-position
import rig  # noqa: E402
from lib import tokens  # noqa: E402
from lib.fixtures import pytest_configure  # noqa: E402,F401
from lib.refdata import migrated  # noqa: E402
from operations import FILL_SQL, OPERATIONS, Operations  # noqa: E402
from table import INSTRUCTIONS  # noqa: E402

# What else a process does now and then, and threads that meet at a lock, only add to these: the least is the operation's own.
SQL = ("round trips", "statements", "transactions")
DISTURBED = ("system calls", "allocations", INSTRUCTIONS, *SQL)
CLEAN_SAMPLES = 3
CLEAN_INSTRUCTIONS = 1.05  # of the least: what runs beside a read adds more, and may be without SQL
TRIES = 10
SAMPLES_MAX = 40


def clean(samples):
    """Those that nothing disturbed: no sample has less SQL, or clearly fewer instructions."""
    least = {column: min(each[column] for each in samples) for column in SQL}
    most = CLEAN_INSTRUCTIONS * min(each.get(INSTRUCTIONS, 0) for each in samples)
    return [each for each in samples if least.items() <= each.items() and each.get(INSTRUCTIONS, 0) <= most]


class Measuring:
    """Measures operations; processes are started again when the next one needs others."""

    def __init__(self, kind):
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="freshet-cost-"))
        self.key = tokens.Key("EdDSA")
        self.jwks_path = tokens.write_jwks(self.folder / "jwks.json", [self.key])
        self.postgres = rig.start_postgres()
        self.rig = self.operations = self.needs = None
        self.figures = {}
        self.calls = {}

    def _prepare(self, operation):
        needs = (operation.processes, operation.settings)
        if self.needs == needs:
            return
        self._stop_rig()
        database = migrated(self.postgres, self.jwks_path, self.folder)
        database.query(FILL_SQL)
        started = rig.Rig(self.kind, self.folder / "rig", self.jwks_path, database, operation.settings, operation.processes).start()
        self.rig, self.operations, self.needs = started, Operations(started, self.key), needs

    def _run(self, operation):
        """Runs it to its end. False: it was another one, since time ran out (its client got 202)."""
        is_it = operation.run(self.operations) is not False
        if operation.ends:
            self.rig.settle()
        return is_it

    def _sample(self, operation):
        for _ in range(TRIES):
            if operation.before and INSTRUCTIONS in self.rig.counts():
                operation.before(self.operations)
                self.rig.settle()
            before, calls = self.rig.counts(), self.rig.calls()
            is_it = self._run(operation)
            after = self.rig.counts()
            if is_it:
                break
        assert is_it, f"time ran out {TRIES} times"
        self.calls = self.rig.calls() - calls
        return {name: after[name] - before[name] for name in after}

    def measure(self, name, count):
        """What the operation costs: {column: figure}. Measured `count` times, and on a loaded machine, where something else of the
        process runs beside most of them, until a few were not disturbed."""
        operation = OPERATIONS[name]
        self._prepare(operation)
        for _ in range(operation.warm_up):
            self._run(operation)
        samples = [self._sample(operation) for _ in range(count)]
        while operation.is_exact and len(clean(samples)) < CLEAN_SAMPLES and len(samples) < SAMPLES_MAX:
            samples.append(self._sample(operation))
        figures = {column: (min if column in DISTURBED else statistics.median_low)(each[column] for each in samples)
                   for column in samples[0]}
        for column in samples[0]:
            print(f"{column}: {sorted(each[column] for each in samples)}")
        print(f"system calls of the last one: {dict(self.calls)}")
        return figures

    def _stop_rig(self):
        if self.rig:
            self.operations.close()
            started, self.rig, self.needs = self.rig, None, None
            started.stop()

    def close(self):
        try:
            self._stop_rig()
        finally:
            self.postgres.destroy()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._keep()

    def _keep(self):
        """For the page that is printed of all figures."""
        if os.environ.get("FRESHET_COSTS"):
            path = Path(os.environ["FRESHET_COSTS"]) / f"{self.kind.__name__.lower()}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # of a run that had a second try
            path.write_text(json.dumps({**before, **self.figures}, indent=1), encoding="utf-8")


def measuring(kind):
    one = Measuring(kind)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def counted():
    """Under strace: everything but instructions."""
    yield from measuring(rig.Counted)


@pytest.fixture(scope="module")
def profiled():
    """Under callgrind: instructions."""
    yield from measuring(rig.Profiled)
