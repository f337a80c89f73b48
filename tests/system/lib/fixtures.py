"""Fixtures of the system and the fault tests: one PostgreSQL per run, one database per test, servers stopped and checked.

A conftest.py takes all of them by `from lib.fixtures import *`.
"""
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from . import on_engines, tokens
from .config import base_config, merge
from .freshet import Freshet
from .postgres import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def pytest_configure():
    # A TERM must still run the finalizers: no test leaves a process behind. A worker of xdist is now and then not given its main
    # thread, on a busy machine, and has to do without.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    items[:], out = on_engines.left_out(items)
    if out:
        config.hook.pytest_deselected(items=out)


@pytest.fixture(scope="session")
def root():
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def postgres():
    """The run's PostgreSQL, shared by tests that do not harm it."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.destroy()


@pytest.fixture
def own_postgres():
    """A PostgreSQL that the test may stop and start as it likes."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.destroy()


@pytest.fixture
def database(postgres):
    """An empty database of the test's own."""
    fresh = postgres.create_database()
    yield fresh
    fresh.drop()


@pytest.fixture(scope="module")
def module_database(postgres):
    """An empty database for all tests of a file."""
    fresh = postgres.create_database()
    yield fresh
    fresh.drop()


@pytest.fixture(scope="session")
def key():
    """The issuer's key that test servers trust."""
    return tokens.Key("EdDSA")


@pytest.fixture(scope="session")
def jwks_path(key, tmp_path_factory):
    return tokens.write_jwks(tmp_path_factory.mktemp("keys") / "jwks.json", [key])


@pytest.fixture(scope="session")
def token(key):
    """mint(tenant, subject=…, scope=…, ttl=…, claim=…) with the trusted key."""
    return lambda tenant="demo", **options: tokens.mint(key, tenant, **options)


class Servers:
    """Makes servers and sees to it that each is stopped, and was clean, when the test ends."""

    def __init__(self, folder, jwks_path, node):
        self.folder, self.jwks_path = folder, jwks_path
        roles = node.get_closest_marker("roles")
        self.args = ("--roles", ",".join(roles.args)) if roles else ()
        self.started = []

    def make(self, database, changes=None, *, config=None, env=None, args=None):
        """A server not started yet. changes are laid over base_config; config replaces it whole. Without args it has the roles that the
        mark `roles` names: a server of the role query alone starts in a third of the time that one of all roles takes."""
        if config is None:
            config = merge(base_config(database, self.jwks_path), changes or {})
        env = {
            "FRESHET_PG_URL": database.url,
            "FRESHET_TEST_PG_PASSWORD": database.password,
            **(env or {}),
        }
        server = Freshet(config, self.folder / f"server{len(self.started) + 1}", env, self.args if args is None else args)
        self.started.append(server)
        return server

    def __call__(self, *args, **options):
        """A server that is ready."""
        return self.make(*args, **options).start()

    def stop(self):
        """Stops all before it complains about any."""
        wrong = []
        for server in reversed(self.started):
            server.close_clients()
            try:
                if server.process and server.process.poll() is None:
                    server.stop()
                elif server.process:
                    server.check_sanitizers()
            except AssertionError as error:
                wrong.append(str(error))
            finally:
                server.kill()
        assert not wrong, "\n".join(wrong)


@pytest.fixture
def serve(request, tmp_path, jwks_path):
    """serve(database, changes) starts a server; serve.make(…) only prepares it."""
    servers = Servers(tmp_path, jwks_path, request.node)
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def module_serve(request, tmp_path_factory, jwks_path):
    """The same for servers that all tests of a file share."""
    servers = Servers(tmp_path_factory.mktemp("servers"), jwks_path, request.node)
    yield servers
    servers.stop()


@pytest.fixture
def var():
    """A folder for FRESHET_VAR that user postgres can reach too, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="freshet-test-var-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def clean_env():
    """The environment without what a surrounding ./dev may have set, but for what it has fetched already."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith("FRESHET_") or name == "FRESHET_KAFKA_JARS"}
