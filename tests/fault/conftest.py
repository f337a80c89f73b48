"""Fixtures of the fault tests: those of the system tests, and how long to go on.

FRESHET_FAULT_WHOLE=1 (./dev test fault) runs the loops whole; otherwise they are shortened.
"""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

from lib.fixtures import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def whole():
    """Are the loops to be run whole?"""
    return os.environ.get("FRESHET_FAULT_WHOLE") == "1"
