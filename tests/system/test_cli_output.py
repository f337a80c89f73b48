"""What commands print: results on standard output, messages for people on standard error, log lines only where $FRESHET_LOG asks
for them (issue 15, point 3)."""
import contextlib
import json
import re
import socket
import threading

import pytest

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.refdata import pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import free_port

EVENT = "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77"
PROJECT = "0a4f5a3e-52a4-4a0e-8d3c-2f0c1d8f7a01"
CONFIGURED = "--config CONFIG"
# Each command that ends by itself, as an operator would call it. `serve` logs as its configuration says.
CALLS = [
    f"migrate --status {CONFIGURED}", f"migrate --dry-run {CONFIGURED}", f"migrate --grants r {CONFIGURED}", f"migrate {CONFIGURED}",
    f"doctor {CONFIGURED}", f"ping {CONFIGURED}", f"top --once {CONFIGURED}", f"top --once --databases {CONFIGURED}",
    f"config {CONFIGURED}", f"routes {CONFIGURED}", "get demo D a --timeout 5s", "get demo D a b --timeout 5s",
    "get demo D --all --timeout 5s", "put demo D a 1 --patience 1s", "load demo D FILE --patience 1s", "watch demo D --count 1 --after 0",
    f"tail demo {PROJECT} {EVENT} --count 1", f"status demo {EVENT}", f"updates list {CONFIGURED}", f"updates show {EVENT} {CONFIGURED}",
    f"outbox list {CONFIGURED}", f"outbox retry --all {CONFIGURED}",
    f"dlq list {CONFIGURED}", f"dlq requeue --all {CONFIGURED}", f"verify --patience 5s {CONFIGURED}", f"verify --books {CONFIGURED}",
    "plan --tps 1000", "manual", "completion bash", "token --tenant demo",
]
LEFT_OUT = {"serve"}


def message(line):
    """As docs/CLI.md says that a line of standard error looks."""
    return line.startswith("freshet")


def is_log(line):
    return line.startswith('{"ts":') and {"ts", "level", "event"} <= json.loads(line).keys()


@pytest.fixture
def words(tmp_path):
    """words(config): the calls with their files."""
    items = tmp_path / "items.ndjson"
    items.write_text('{"key":"a","payload":1}\n')
    return lambda config: [[{"CONFIG": str(config), "FILE": str(items)}.get(word, word) for word in call.split()]
                           for call in CALLS]


def test_every_command_is_tried():
    listed = re.findall(r"^  (\w+) ", run("--help").stdout, re.MULTILINE)
    assert set(listed) - LEFT_OUT == {call.split()[0] for call in CALLS}


def test_no_command_logs_while_the_database_and_the_pod_are_down(words, refdata_db, jwks_path, tmp_path):  # noqa: F811
    config = tmp_path / "down.yaml"
    down = merge(base_config(refdata_db, jwks_path), pod("D"))
    config.write_text(re.sub(rf":{refdata_db.server.port}/", ":1/", to_yaml(down)))
    env = {"FRESHET_TEST_PG_PASSWORD": refdata_db.password, "FRESHET_VAR": str(tmp_path), "FRESHET_URL": f"http://127.0.0.1:{free_port()}"}
    failed = 0
    for call in words(config):
        done = run(*call, env=env)
        failed += done.returncode == 1
        assert not any(map(is_log, done.stdout.splitlines())), call
        assert all(map(message, done.stderr.splitlines())), (call, done.stderr)
        assert refdata_db.password not in done.stdout + done.stderr
    assert failed > 12  # it is down


def test_log_lines_that_are_asked_for_are_on_standard_error(words, serve, refdata_db, tmp_path):  # noqa: F811
    """At the level debug, of commands that work: standard output is the same as without."""
    env = {"FRESHET_VAR": str(tmp_path / "var")}
    assert run("token", "--tenant", "demo", env=env).returncode == 0
    write_builtin(refdata_db, "D", {"a": 1}, 1)
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(tmp_path / "var/keys/jwks.json")}), env=env)
    env = {**server.env, "FRESHET_URL": f"http://127.0.0.1:{server.port}"}
    logged = 0
    for call in words(server.config_path):
        quiet, loud = run(*call, env=env), run(*call, env={**env, "FRESHET_LOG": "debug"})
        assert all(map(message, quiet.stderr.splitlines())), (call, quiet.stderr)
        assert all(is_log(line) if line.startswith("{") else message(line) for line in loud.stderr.splitlines()), (call, loud.stderr)
        assert not any('"level":' in line for line in loud.stdout.splitlines()), call
        logged += "{" in loud.stderr
    assert logged > 5


def test_a_level_that_is_none_is_refused():
    done = run("plan", "--tps", "1000", env={"FRESHET_LOG": "loud"})
    assert (done.returncode, done.stdout) == (2, "") and "FRESHET_LOG" in done.stderr


@pytest.mark.parametrize("call, said", [
    ("verify --json", "--json is for --books"), ("verify --books --show-keys", "with --books give only"),
    ("updates list --since yesterday", "--since needs a time, 2026-01-31T12:00:00Z, or how long ago"),
    ("updates list --until soon", "--until needs a time"), ("serve --listen foo", "--listen: "), ("serve --listen 127.0.0.1:99999", "--listen: "),
])
def test_a_wrong_call_is_answered_with_what_is_right(call, said):
    done = run(*call.split())
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_what_matters_in_top_is_within_80_columns(refdata_db, jwks_path, tmp_path):  # noqa: F811
    write_builtin(refdata_db, "D", {"a": 1}, 1)
    config = tmp_path / "freshet.yaml"
    config.write_text(to_yaml(merge(base_config(refdata_db, jwks_path), pod("D"))))
    done = run("top", "--once", "--databases", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password})
    (head,) = [line for line in done.stdout.splitlines() if line.startswith("DICTIONARY")]
    assert head.index("FRESHNESS") < head.index("PODS") < 76


def test_no_more_of_a_pod_s_answer_is_kept_than_an_answer_can_have(refdata_db, jwks_path, tmp_path):  # noqa: F811
    config = tmp_path / "freshet.yaml"
    config.write_text(to_yaml(merge(base_config(refdata_db, jwks_path), pod("D"))))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        held = []
        threading.Thread(target=answer, daemon=True).start()
        done = run("top", "--once", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}", "--token", "x", "--config", config,
                   env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password})
        listener.shutdown(socket.SHUT_RDWR)
    assert "! " in done.stdout and "more than 67108864 bytes" in done.stdout, done.stdout + done.stderr
