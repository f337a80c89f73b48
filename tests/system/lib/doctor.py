"""`freshet doctor` as an operator uses it: what it finds, and the command that it advises, run by a shell as it is printed."""
import json
import os
import subprocess

from .freshet import binary, run
from .postgres import bin_dir
from .wait import PATIENCE


class Doctor:
    """Of a server's configuration. advised(finding) runs its command; systemctl is a program of the test: services[name]() is called."""

    def __init__(self, server, folder, database, **services):
        self.server, self.database, self.services, self.path = server, database, services, folder / "bin"
        self.path.mkdir()
        self._write("freshet", f'#!/bin/sh\nexec "{binary()}" "$@"\n')
        self._write("systemctl", f'#!/bin/sh\necho "$@" >> "{folder}/systemctl"\n')
        self.calls = folder / "systemctl"
        self.env = {**server.env, "PATH": f"{self.path}:{bin_dir()}:{os.environ['PATH']}", "FRESHET_CONFIG": str(server.config_path),
                    "PGPASSWORD": database.password}
        self.env.pop("FRESHET_URL", None)

    def _write(self, name, text):
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def run(self, *args, env=None):
        return run("doctor", *args, env={**self.env, **(env or {})})

    def report(self, *args):
        """(exit status, problems, what could not be checked)"""
        done = self.run("--json", "--patience", "60s", *args)
        found = json.loads(done.stdout)
        return done.returncode, found["problems"], found["unchecked"]

    def found(self, check, *args):
        """All that this check found; the exit status says that something is wrong."""
        status, problems, _ = self.report(*args)
        own = [problem for problem in problems if problem["check"] == check]
        assert not own or status == 3
        return own

    def one(self, check, *args):
        (problem,) = self.found(check, *args)
        return problem

    def advised(self, problem):
        """Runs its command to its end: CompletedProcess."""
        done = subprocess.run(["bash", "-c", problem["help"]], env=self.env, text=True, capture_output=True, timeout=PATIENCE, check=False)
        while self.calls.exists():
            calls = self.calls.read_text().splitlines()
            self.calls.unlink()
            for call in calls:
                verb, service = call.split()
                assert verb == "restart"
                self.services[service.replace("-", "_")]()
        return done
