"""The examples of clients/*/README.md run against the demo and print what the pages say; their links lead somewhere."""
import os
import re
import sys

import pytest

from conftest import ROOT, run_checked
from lib.freshet import run
from lib.pages import Page, matches
from test_generators import compiled

PYTHON, TYPESCRIPT = (Page(ROOT, ROOT / f"clients/{name}/README.md") for name in ("python", "typescript"))


@pytest.fixture
def demo(serve, database):
    """`./dev run` with the default configuration: (the server, a token)."""
    config = (ROOT / "config/freshet.yaml").read_text(encoding="utf-8")
    server = serve.make(database, config=config)
    assert run("migrate", "--config", server.config_path, env=server.env).returncode == 0
    database.run_file(ROOT / "config/demo.sql")
    bearer = run("token", "--tenant", "demo", env=server.env)
    assert bearer.returncode == 0
    return server.start(), bearer.stdout.strip()


def examples(page, language):
    """[(block, what it prints or None)]"""
    found = []
    for block in page.blocks:
        if block.mark == "runs":
            assert block.language == language
            found.append((block, None))
        elif block.mark == "answers":
            found[-1] = (found[-1][0], block.text)
    assert len(found) >= 5 and all(answer for _, answer in found)
    return found


def check(page, found, printed):
    parts = re.split(r"^@@\n", printed, flags=re.M)[1:]
    assert len(parts) == len(found)
    for (block, answer), part in zip(found, parts):
        assert matches(answer, part), f"{page.name}:{block.line} printed\n{part}"


def test_the_examples_of_the_python_client_run(demo, tmp_path):
    server, bearer = demo
    found = examples(PYTHON, "python")
    script = "\n".join(f"print('@@')\n{block.text}" for block, _ in found).replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    (tmp_path / "readme.py").write_text(script)
    env = {**os.environ, "TOKEN": bearer, "PYTHONPATH": str(ROOT / "clients/python/src")}
    check(PYTHON, found, run_checked(sys.executable, "-B", tmp_path / "readme.py", env=env))


def test_the_examples_of_the_typescript_client_compile_and_run(demo, typescript_package, node_tools, tmp_path):
    server, bearer = demo
    found = examples(TYPESCRIPT, "ts")
    script = "declare const process: { env: Record<string, string> };\n"
    script += "\n".join(f"console.log('@@');\n{block.text}" for block, _ in found).replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/freshet-client").symlink_to(typescript_package)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    program = compiled(tmp_path, node_tools, "readme", script)
    check(TYPESCRIPT, found, run_checked("node", program, env={**os.environ, "TOKEN": bearer}))


@pytest.mark.parametrize("page", [PYTHON, TYPESCRIPT], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert list(page.broken_links()) == []
