"""Fixtures of the failover tests: those of the system tests, a pair of PostgreSQL servers, and the report.

FRESHET_FAILOVER_WHOLE=1 (./dev test failover) runs everything; otherwise only the tests without the mark `whole`.
"""
import os
import sys
from pathlib import Path

import pytest

for folder in ("system", "fault", "engines"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / folder))

# pylint: disable=wrong-import-position
from lib import on_engines  # noqa: E402
from lib.engine_fixtures import *  # noqa: E402,F401,F403
from lib.fixtures import *  # noqa: E402,F401,F403
from lib.notification import Receiver  # noqa: E402
from report import Report  # noqa: E402
from standby import Pair  # noqa: E402
from timeline import Timeline  # noqa: E402

IS_WHOLE = os.environ.get("FRESHET_FAILOVER_WHOLE", "1") == "1"


def pytest_collection_modifyitems(config, items):
    """The whole ones are for runs that name this suite; on the engines (FRESHET_TEST_ENGINES=1) only those that differ there."""
    def runs(item):
        is_wanted = item.get_closest_marker("engines") or not (on_engines.IS_ON and item.get_closest_marker("embedded"))
        return (IS_WHOLE or not item.get_closest_marker("whole")) and is_wanted and (
            on_engines.IS_ON or not item.get_closest_marker("engines"))

    out = [item for item in items if not runs(item)]
    items[:] = [item for item in items if runs(item)]
    config.hook.pytest_deselected(items=out)


@pytest.fixture(scope="session")
def whole():
    return IS_WHOLE


@pytest.fixture
def make_pair():
    """make_pair(by) is a primary with its standby."""
    made = []

    def make(by):
        made.append(Pair(by))
        return made[-1]
    yield make
    for pair in made:
        pair.destroy()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def timeline():
    return Timeline()


@pytest.fixture(scope="session")
def report():
    """report.add(name, …): what a test saw. The page is written at the end of the run."""
    made = Report(Path(os.environ.get("FRESHET_VAR") or ROOT / "var") / "failover")  # noqa: F405
    yield made
    made.write()
