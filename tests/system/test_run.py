"""`./dev run` as a newcomer meets it: one command, a served dictionary, Ctrl-C and nothing is left."""
import json
import os
import re
import signal
import subprocess
import threading

import pytest

from lib.wait import PATIENCE, eventually, free_port


class Run:
    """A `./dev run` in a terminal's place: a session of its own, its output collected as it comes."""

    def __init__(self, root, env, *args):
        self.root, self.env, self.lines = root, env, []
        self.process = subprocess.Popen([root / "dev", "run", *args], cwd=root, env=env, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                        # as in a terminal, even where these tests run as a background job
                                        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()

    @property
    def output(self):
        return "".join(self.lines)

    def wait_greeting(self):
        def progress():
            if self.process.poll() is not None:
                return "ended"
            return "greeted" if "Ctrl-C stops it" in self.output else None

        assert eventually(progress, timeout=5 * PATIENCE) == "greeted", self.output
        return self

    def dev(self, *args):
        return subprocess.run([self.root / "dev", *args], cwd=self.root, env=self.env, text=True,
                              capture_output=True, timeout=2 * PATIENCE, check=False)

    def ctrl_c(self):
        os.killpg(self.process.pid, signal.SIGINT)
        status = self.process.wait(2 * PATIENCE)
        self.reader.join(PATIENCE)
        return status


@pytest.fixture
def start(root, clean_env, var):
    """start(**env) is a Run with a var/ of its own, which borrows the release build of the surrounding ./dev test."""
    build = os.environ.get("FRESHET_TEST_BUILD")
    if not build:
        pytest.fail("needs a release build to borrow: FRESHET_TEST_BUILD, which ./dev test system sets")
    (var / "build").symlink_to(build)
    env = {**clean_env, "FRESHET_VAR": str(var), "FRESHET_PORT": str(free_port())}
    runs = []

    def begin(*args, **more):
        runs.append(Run(root, {**env, **more}, *args))
        return runs[-1]

    yield begin
    for run in runs:
        assert run.dev("down").returncode == 0
        run.process.wait(PATIENCE)


def test_run_serves_what_its_greeting_promises_and_ctrl_c_leaves_nothing(start):
    run = start().wait_greeting()
    assert re.search(r"demo token +[\w-]+\.[\w-]+\.[\w-]+\n", run.output)
    commands = re.findall(r"^  (curl .*)$", run.output, re.M)
    assert len(commands) == 3
    console = re.search(r"^console +(\S+)$", run.output, re.M)[1]
    assert b"<title>freshet</title>" in subprocess.run(["curl", "-fsS", console], capture_output=True, timeout=PATIENCE, check=True).stdout
    item, page, version = (
        json.loads(subprocess.run(["bash", "-c", command.replace("curl ", "curl -fsS ", 1)], cwd=run.root, env=run.env,
                                  text=True, capture_output=True, timeout=PATIENCE, check=True).stdout)
        for command in commands
    )
    assert item["key"] == "DE" and item["payload"]
    assert page["items"] and page["version"] >= 0
    assert version["dictCode"] == "COUNTRY" and version["itemCount"] > 0

    assert run.ctrl_c() == 0, run.output
    assert run.dev("stack", "status").returncode == 1
    assert not os.path.exists(os.path.join(run.env["FRESHET_VAR"], "server.pid"))


def test_run_on_the_engines_carries_an_update_through_them_and_leaves_nothing(start):
    """C2: the same printout and answers, and what carries what."""
    run = start("--engines").wait_greeting()
    told = dict(re.findall(r"^(commands|invalidations|events) +(.+)$", run.output, re.M))
    redis = told["invalidations"].removeprefix("Redis Cluster ").split(",")
    assert len(redis) == 3 and told["events"].startswith("NATS 127.0.0.1:")
    body = json.dumps({"dictCode": "FEATURE", "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": 1}]})
    token = re.search(r"demo token +(\S+)", run.output)[1]
    answer = subprocess.run(["curl", "-fsS", "-H", f"Authorization: Bearer {token}", "-H", "Content-Type: application/json",
                             "-d", body, f"http://127.0.0.1:{run.env['FRESHET_PORT']}/v1/tenants/demo/updates"
                             "?consistencyMode=WAIT_COMMIT&timeoutMs=1000"], text=True, capture_output=True, check=True).stdout
    assert json.loads(answer)["eventId"]
    stream = ["redis-cli", "-c", "-p", redis[0].split(":")[1], "xlen", "refdata:inv:stream"]
    eventually(lambda: int(subprocess.run(stream, text=True, capture_output=True, check=True).stdout) >= 1)
    if told["commands"].startswith("Kafka"):
        assert run.dev("psql", "-XqAt", "-c", "select count(*) from refdata.command_outbox").stdout == "1\n"
    else:  # Maven Central can't be reached
        assert "no Kafka" in told["commands"]
    assert run.ctrl_c() == 0, run.output
    assert run.dev("stack", "status").returncode == 1


def test_a_second_run_of_the_same_var_is_told_so_and_a_taken_port_names_the_variable(start, tmp_path):
    run = start().wait_greeting()
    second = run.dev("run")
    assert second.returncode == 1 and "already running" in second.stderr
    other = tmp_path / "other"
    third = subprocess.run([run.root / "dev", "run"], env={**run.env, "FRESHET_VAR": str(other)}, text=True,
                           capture_output=True, timeout=PATIENCE, check=False)
    assert third.returncode == 1 and "FRESHET_PORT" in third.stderr
    assert run.process.poll() is None


def test_down_stops_a_run_that_was_killed_itself(start):
    run = start().wait_greeting()
    run.process.kill()
    run.process.wait()
    assert run.dev("stack", "status").returncode == 0
    down = run.dev("down")
    assert (down.returncode, down.stdout, down.stderr) == (0, "", "")
    assert run.dev("stack", "status").returncode == 1


def test_a_server_that_cannot_start_shows_its_reason_and_stops_postgres(start, tmp_path):
    config = tmp_path / "bad.yaml"
    config.write_text("no_such_key: 1\n")
    run = start(FRESHET_CONFIG=str(config))
    assert run.process.wait(5 * PATIENCE) == 1
    run.reader.join(PATIENCE)
    assert "bad.yaml" in run.output and "no_such_key" in run.output
    assert run.dev("stack", "status").returncode == 1
