"""Fixtures of the tests of clients: those of the system tests, generators, and drivers of the two clients.

A test that takes `drive` runs twice, once with each client of clients/. FRESHET_CLIENTS_WHOLE=1 (./dev test clients) runs everything.
"""
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

from lib.fixtures import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position
from lib.fixtures import ROOT  # noqa: E402 pylint: disable=wrong-import-position

from driver import Driver  # noqa: E402 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def whole():
    """Are the tests to be run whole?"""
    return os.environ.get("FRESHET_CLIENTS_WHOLE") == "1"


def tools(variable, registry):
    folder = os.environ.get(variable)
    if not folder or not (Path(folder) / "complete").exists():
        pytest.fail(f"{variable} names no folder with what is needed of {registry}: ./dev test clients fetches it, and said why it could not",
                    pytrace=False)
    return Path(folder)


@pytest.fixture(scope="session")
def python_tools():
    """A virtual environment with openapi-python-client, a validator and mypy."""
    return tools("FRESHET_CLIENT_PYTHON", "PyPI")


@pytest.fixture(scope="session")
def node_tools():
    """A folder whose node_modules has openapi-typescript, openapi-fetch and TypeScript."""
    return tools("FRESHET_CLIENT_NODE", "npm")


def run_checked(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, timeout=300, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def typescript_sources():
    """A folder that can be built, in the place of clients/typescript."""
    return [ROOT / "api/openapi.yaml", *sorted(path for path in (ROOT / "clients/typescript").rglob("*") if path.is_file()
            and not {"node_modules", "dist", "schema.ts"} & set(path.relative_to(ROOT / "clients/typescript").parts))]


@pytest.fixture(scope="session")
def typescript_package(node_tools):
    """clients/typescript with its types generated and compiled: once for all workers, and again when a file has changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in typescript_sources())).hexdigest()[:16]
    place = node_tools / f"built-{digest}"
    with open(node_tools / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            for old in node_tools.glob("built-*"):
                shutil.rmtree(old)
            for source in typescript_sources():
                copy = place / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
            folder = place / "clients/typescript"
            (folder / "node_modules").symlink_to(node_tools / "node_modules")
            run_checked("node_modules/.bin/openapi-typescript", "../../api/openapi.yaml", "-o", "src/schema.ts", cwd=folder)
            run_checked("node_modules/.bin/tsc", "-p", ".", cwd=folder)
            (place / "complete").touch()
    return place / "clients/typescript"


@pytest.fixture(params=["python", "typescript"])
def language(request):
    return request.param


@pytest.fixture
def drive(language, request, tmp_path):
    """drive(url, token=…) is a client in a process of its own."""
    if language == "python":
        command = [sys.executable, "-B", str(Path(__file__).parent / "drive.py")]
        env = {"PYTHONPATH": str(ROOT / "clients/python/src")}
    else:
        package = request.getfixturevalue("typescript_package")
        script = (Path(__file__).parent / "drive.mjs").read_text().replace("./dist/index.js", (package / "dist/index.js").as_uri())
        (tmp_path / "drive.mjs").write_text(script)
        command, env = ["node", str(tmp_path / "drive.mjs")], {}
    drivers = []

    def start(url, **options):
        drivers.append(Driver(command, env, tmp_path / f"driver{len(drivers)}.log", url, **options))
        return drivers[-1]
    yield start
    for driver in drivers:
        driver.stop()
