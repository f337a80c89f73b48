"""Fixtures of the tests of deploy/: the chart as Helm renders it, and the real program.

Helm and the published schemas are fetched by ./dev test deploy (tools/dev/deploy.sh). Tests that need them are marked `whole`; where
they could not be fetched, these tests fail and name the reason. The other tests need neither, nor a network.
"""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

from lib.fixtures import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position

from chart import Chart  # noqa: E402 pylint: disable=wrong-import-position
from schemas import Schemas  # noqa: E402 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def chart():
    return Chart()


@pytest.fixture(scope="session")
def schemas():
    return Schemas()
