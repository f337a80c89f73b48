"""Fixtures of the tests of the console: those of the system tests, a browser for all of them, and a stage to look at.

The cases themselves are in *.mjs and use Playwright; driver.py starts the browser once and runs one case at a time.

FRESHET_BROWSER_WHOLE=1 (./dev test browser) runs everything; otherwise what asks for `whole` is smaller.
"""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

# pylint: disable=wrong-import-position
from lib.fixtures import *  # noqa: E402,F401,F403
from lib.refdata import migrated  # noqa: E402
from driver import Browser  # noqa: E402
from stage import Stage  # noqa: E402


@pytest.fixture(scope="session")
def whole():
    """Are the tests to be run whole?"""
    return os.environ.get("FRESHET_BROWSER_WHOLE") == "1"


@pytest.fixture(scope="session")
def browser():
    """Chromium, for all tests of the run."""
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="session")
def console_postgres():
    """The stage's own: a case stops and starts it."""
    server = PostgresServer()  # noqa: F405
    try:
        yield server.start()
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def stage(request, console_postgres, jwks_path, token, tmp_path_factory):
    """A server with something on every page."""
    database = migrated(console_postgres, jwks_path, tmp_path_factory.mktemp("migrate"))
    servers = Servers(tmp_path_factory.mktemp("servers"), jwks_path, request.node)  # noqa: F405
    try:
        yield Stage(console_postgres, database, servers, token).fill()
    finally:
        servers.stop()
