"""Fixtures of tests on the engines: those of the run, which a test may break.

A conftest.py takes all of them by `from lib.engine_fixtures import *`.
"""
import pytest

from . import on_engines
from .engines import kafka_jars


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
