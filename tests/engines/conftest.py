"""Fixtures of the tests on the engines: those of the system tests, with engines that a test may break, and a fleet on them."""
import os
import sys
from pathlib import Path

import pytest

for folder in ("system", "fault"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / folder))
os.environ["FRESHET_TEST_ENGINES"] = "1"  # before lib is read: every server's configuration gets the engines

# pylint: disable=wrong-import-position
from lib.engine_fixtures import *  # noqa: E402,F401,F403
from lib.fixtures import *  # noqa: E402,F401,F403
from lib.refdata import refdata_db  # noqa: E402,F401
from fleet import Fleet  # noqa: E402


@pytest.fixture
def make_fleet(serve, refdata_db, token):  # noqa: F811
    """make_fleet(**options) is a Fleet that runs."""
    return lambda **options: Fleet(serve, refdata_db, token, **options).start()
