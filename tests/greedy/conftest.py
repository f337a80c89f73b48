"""Fixtures of the tests with a greedy tenant: those of the system tests, and how far to go.

Each test holds or floods one shared resource on behalf of one tenant, in such a way that it cannot become free by itself (an
advisory lock, a client that does not read …). Requests of another tenant must then succeed: time decides nothing.

FRESHET_GREEDY_WHOLE=1 (./dev test greedy) runs everything; otherwise the tests that ask for `whole` are shortened.
"""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

from lib.fixtures import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def whole():
    """Are the tests to be run whole?"""
    return os.environ.get("FRESHET_GREEDY_WHOLE") == "1"


@pytest.fixture
def program(monkeypatch):
    """Memory is measured of the program as it is released."""
    released = Path(os.environ["FRESHET_TEST_BUILD"]) / "release" / "src" / "app" / "freshet"
    assert released.exists(), f"{released} is missing: ./dev test greedy builds it"
    monkeypatch.setenv("FRESHET_BIN", str(released))
