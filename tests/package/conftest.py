"""Fixtures of the tests of what is installed: the package as ./dev built it, unpacked."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def package():
    """The package's file: made of the release build, or in `./dev test package` from what is committed."""
    return Path(os.environ["FRESHET_PACKAGE"])


@pytest.fixture(scope="session")
def tree(package, tmp_path_factory):
    """What it installs, in a folder."""
    folder = tmp_path_factory.mktemp("tree")
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def program(tree):
    return tree / "usr/bin/freshet"
