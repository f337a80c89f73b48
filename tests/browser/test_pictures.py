"""Issue 15: the pictures of the docs are made of a live installation, in $FRESHET_VAR/browser."""
import os
from pathlib import Path

import pytest

from driver import cases_of
from lib.fixtures import Servers
from lib.refdata import migrated
from scene import Scene

pytestmark = [pytest.mark.driver, pytest.mark.whole]


@pytest.fixture
def scene(request, console_postgres, jwks_path, token, tmp_path):
    database = migrated(console_postgres, jwks_path, tmp_path)
    servers = Servers(tmp_path, jwks_path, request.node)
    made = Scene(database, servers, token)
    try:
        yield made.begin()
        made.end()
    finally:
        made.threads.stopping.set()
        servers.stop()


@pytest.mark.parametrize("case", cases_of("cases_pictures.mjs"))
def test_pictures(browser, scene, case):
    folder = Path(os.environ["FRESHET_VAR"]) / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    browser.run("cases_pictures.mjs", case, scene.settings(folder=str(folder)))
