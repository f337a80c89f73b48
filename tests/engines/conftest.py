"""Fixtures of the tests on the engines: those of the system tests, with engines that a test may break, and a fleet on them."""
import os
import sys
from pathlib import Path

import pytest

for folder in ("system", "fault"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / folder))
os.environ["FRESHET_TEST_ENGINES"] = "1"  # before lib is read: every server's configuration gets the engines

# pylint: disable=wrong-import-position
from lib import on_engines  # noqa: E402
from lib.engines import kafka_jars  # noqa: E402
from lib.fixtures import *  # noqa: E402,F401,F403
from lib.refdata import refdata_db  # noqa: E402,F401
from fleet import Fleet  # noqa: E402


@pytest.fixture
def engines():
    """The run's engines, all of them well. What a test breaks is mended behind it."""
    yield on_engines.engines()
    on_engines.engines().heal()


@pytest.fixture
def redis(engines):
    return engines.redis


@pytest.fixture
def kafka(engines):
    """Kafka, which must be there. Where it can't be had this says so, and counts as a failure: silence is no success."""
    if not kafka_jars():
        pytest.fail("Kafka can't be had here: FRESHET_KAFKA_JARS names no folder with its jars")
    return engines.kafka


@pytest.fixture
def make_fleet(serve, refdata_db, token):  # noqa: F811
    """make_fleet(**options) is a Fleet that runs."""
    return lambda **options: Fleet(serve, refdata_db, token, **options).start()
