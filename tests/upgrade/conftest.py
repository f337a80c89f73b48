"""Fixtures of the upgrade tests: those of the system tests, and the program of the release before this one.

tests/upgrade/previous_release names its commit, or tag. ./dev builds it ($FRESHET_PREVIOUS_BIN). It is changed in the commit that
makes a release: from then on that release is the one before.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "system"))

from lib.fixtures import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def previous_program():
    path = os.environ.get("FRESHET_PREVIOUS_BIN")
    assert path and os.access(path, os.X_OK), "FRESHET_PREVIOUS_BIN must name the program; ./dev test upgrade builds it"
    return path


@pytest.fixture(scope="session")
def previous_files():
    """previous_files(): the migrations of the release before, {path: text}."""
    commit = (HERE / "previous_release").read_text().strip()

    def git(*words):
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", HERE, *words], text=True, check=True, stdout=subprocess.PIPE).stdout

    def read():
        names = git("ls-tree", "-r", "--name-only", "--full-tree", commit, "sql/").split()
        return {name: git("show", f"{commit}:{name}") for name in names}
    return read
