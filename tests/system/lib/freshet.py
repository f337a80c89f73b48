"""The real program as a test sees it: started with a file, asked over HTTP, stopped by a signal.

stop() is also a check: the program must end by itself with status 0 and no sanitizer may have said anything.
"""
import json
import os
import re
import signal
import subprocess
from pathlib import Path

from .config import to_yaml
from .wait import PATIENCE, eventually, free_port
from .wire import TIMEOUT, Client, RawConnection

SANITIZER = re.compile(r"(AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehaviorSanitizer|runtime error:)")


def binary():
    path = os.environ.get("FRESHET_BIN")
    if not path:
        raise RuntimeError("FRESHET_BIN must name the program under test; ./dev test system sets it")
    return path


def run(*args, env=None, timeout=PATIENCE, program=None):
    """Runs a command of the program, or of another one, to its end: CompletedProcess with text."""
    done = subprocess.run([program or binary(), *map(str, args)], env={**os.environ, **(env or {})}, text=True,
                          capture_output=True, timeout=timeout, check=False)
    assert not SANITIZER.search(done.stderr), done.stderr
    return done


class Freshet:
    """One `freshet serve`.

    config is a dict (written as YAML) or the text of a file; folder holds the file and the log.
    """

    def __init__(self, config, folder, env=None, args=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config_path = self.folder / "freshet.yaml"
        self.log_path = self.folder / "freshet.log"
        self.env = {**os.environ, "FRESHET_VAR": str(self.folder), **(env or {})}
        self.args = list(args)
        self.program = None  # another than the one under test
        self.wrapper = []  # a command that runs the program: ["prlimit", "--nofile=256"]
        self.port = None
        self.own_port = None  # to listen at, instead of any that is free
        self.tls = None  # an SSLContext, where the server speaks TLS
        self.process = None
        self.clients = []
        self.write_config(config)

    def write_config(self, config):
        """Replaces the file at once: the program may be watching it."""
        text = config if isinstance(config, str) else to_yaml(config)
        fresh = self.config_path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.config_path)

    # ---- life ----

    def start(self, ready=True):
        """Starts on a free port; should somebody take it in between, on another one."""
        for _ in range(5):
            self.spawn()
            if not ready or self._wait_ready():
                return self
        raise AssertionError("no port stayed free")

    def spawn(self):
        self.port = self.own_port or free_port()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, self.program or binary(), "serve", "--config", str(self.config_path), "--listen", f"127.0.0.1:{self.port}",
                 *self.args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def _wait_ready(self):
        def up():
            if self.process.poll() is not None:
                return "ended"
            return "ready" if self.is_ready() and self._is_serving() else None

        if eventually(up) == "ready":
            return True
        if "EADDRINUSE" in self.log() or "in use" in self.log():
            return False
        raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")

    def _is_serving(self):
        """Itself: somebody else may answer at its port."""
        return any(line["port"] == self.port for line in self.logs(event="serving"))

    def is_ready(self, patience=TIMEOUT):
        try:
            with Client(self.port, tls=self.tls, timeout=patience) as client:
                return client.get("/actuator/health/readiness").status == 200
        except OSError:
            return False

    def sighup(self):
        self.process.send_signal(signal.SIGHUP)

    def kill(self):
        """As a machine's death would: no chance to clean up."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout=PATIENCE):
        """SIGTERM, and the checks."""
        self.close_clients()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            # ABRT, for a core or a sanitizer's stack to look at.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(f"did not stop within {timeout} s:\n{self.log()}") from None
        self.check_sanitizers()
        assert status == 0, f"exit status {status}:\n{self.log()}"

    def check_sanitizers(self):
        found = SANITIZER.search(self.log())
        assert not found, self.log()[max(0, found.start() - 200):]

    # ---- asking ----

    def client(self, token=None):
        client = Client(self.port, token, tls=self.tls)
        self.clients.append(client)
        return client

    def raw(self):
        connection = RawConnection(self.port, tls=self.tls)
        self.clients.append(connection)
        return connection

    def close_clients(self):
        while self.clients:
            self.clients.pop().close()

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def logs(self, **wanted):
        """Log lines as dicts, those that hold all the wanted fields. Every line must be one JSON object (C9)."""
        lines = [json.loads(line) for line in self.log().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]

    def metrics(self):
        """Prometheus samples by their text up to the value: {'name{label="x"}': 1.0}."""
        with Client(self.port, tls=self.tls) as client:
            text = client.get("/actuator/prometheus").body.decode()
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}
