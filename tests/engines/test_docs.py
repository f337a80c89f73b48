"""The examples of pages that need the engines print what the page says."""
import re
import subprocess

import pytest

from lib.fixtures import ROOT
from lib.freshet import binary, run
from lib.pages import matches, pages
from lib.wait import PATIENCE

MARK = "runs on the engines"

# Stands in for ./dev: the same commands, on the test's server and engines.
DEV = """#!/bin/sh
command=$1
shift
case "$command $1" in
"stack status") printf 'redis %s\\nnats %s\\nkafka %s\\n' "$TEST_REDIS" "$FRESHET_NATS" "$FRESHET_KAFKA" ;;
freshet*) exec "$FRESHET_BIN" "$@" ;;
*) echo "an example calls ./dev $command" >&2; exit 2 ;;
esac
"""


@pytest.fixture
def demo(serve, database, engines, kafka, tmp_path):
    """`./dev run --engines`: the default configuration, told by the environment where the engines are."""
    config = (ROOT / "config/freshet.yaml").read_text(encoding="utf-8")
    env = {"FRESHET_COMMANDS": "kafka", "FRESHET_INVALIDATIONS": "redis", "FRESHET_EVENTS": "nats",
           "FRESHET_KAFKA": kafka.address, "FRESHET_NATS": engines.nats.address,
           "TEST_REDIS": ",".join(engines.redis.addresses),
           **{f"FRESHET_REDIS_{i}": address for i, address in enumerate(engines.redis.addresses, 1)}}
    server = serve.make(database, config=config, env=env)
    assert run("migrate", "--config", server.config_path, env=server.env).returncode == 0
    database.run_file(ROOT / "config/demo.sql")
    assert run("token", "--tenant", "demo", env=server.env).returncode == 0
    (tmp_path / "dev").write_text(DEV)
    (tmp_path / "dev").chmod(0o755)
    return server.start()


@pytest.mark.parametrize("page", [page for page in pages(ROOT) if page.examples(MARK)], ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(page, demo, tmp_path):
    examples = page.examples(MARK)
    parts = (f"printf '\\n@@ %s\\n' {number}\n{block.text}" for number, (block, _) in enumerate(examples))
    script = "set -euo pipefail\n" + "\n".join(parts)
    done = subprocess.run(["bash"], input=script.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}"), cwd=tmp_path, text=True,
                          env={**demo.env, "FRESHET_BIN": binary()}, capture_output=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for (block, answer), printed in zip(examples, re.split(r"(?:^|\n)@@ \d+\n", done.stdout)[1:]):
        assert answer is None or matches(answer, printed), f"{page.name}:{block.line} printed\n{printed}\n{done.stderr}"
