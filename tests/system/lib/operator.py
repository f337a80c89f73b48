"""An operator's shell on a small installation: freshet, psql and PostgreSQL's programs on the PATH, and a systemctl that starts and
stops the processes of the test. It runs the examples of the runbook as they are written.

A command of systemctl goes to the test by a named pipe, and its status comes back by another one.
"""
import os
import re
import subprocess
import threading
from pathlib import Path

from .freshet import binary
from .pages import matches
from .postgres import bin_dir
from .wait import PATIENCE

MARK = "runs as an operator"
OWNERS = ("pg_ctl", "pg_basebackup", "pg_rewind")  # programs that the owner of a cluster runs
SYSTEMCTL = """#!/bin/sh
echo "$*" > "$CONTROL/request"
read -r status < "$CONTROL/answer"
exit "$status"
"""


class Operator:
    """units: {name: a server} that systemctl knows."""

    def __init__(self, folder, database, units, url, **variables):
        self.folder, self.units = Path(folder), units
        self.path = self.folder / "bin"
        self.path.mkdir(parents=True)
        self._write("freshet", f'#!/bin/sh\nexec "{binary()}" "$@"\n')
        self._write("systemctl", SYSTEMCTL)
        prefix = "runuser -u postgres -- " if os.geteuid() == 0 else ""
        for name in OWNERS:
            self._write(name, f'#!/bin/sh\ncd /\nexec {prefix}"{bin_dir()}/{name}" "$@"\n')
        server = next(iter(units.values()))
        self.env = {**server.env, "PATH": f"{self.path}:{bin_dir()}:{os.environ['PATH']}", "CONTROL": str(self.folder),
                    "FRESHET_CONFIG": str(server.config_path), "FRESHET_URL": url, "PGHOST": "127.0.0.1",
                    "PGPORT": str(database.server.port), "PGDATABASE": database.name, "PGUSER": database.user,
                    "PGPASSWORD": database.password, **{name: str(value) for name, value in variables.items()}}
        for pipe in ("request", "answer"):
            os.mkfifo(self.folder / pipe)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _write(self, name, text):
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    # ---- systemctl ----

    def _serve(self):
        while (request := (self.folder / "request").read_text().split()) != ["end"]:
            try:
                self._control(*request)
                status = 0
            except Exception as error:  # pylint: disable=broad-exception-caught
                print("systemctl", *request, repr(error))
                status = 1
            (self.folder / "answer").write_text(f"{status}\n")

    def _control(self, verb, unit):
        server = self.units[unit]
        if verb in ("stop", "restart"):
            server.stop()
        if verb in ("start", "restart"):
            server.start()

    def close(self):
        (self.folder / "request").write_text("end\n")
        self.thread.join()

    # ---- examples ----

    def run(self, page, examples):
        """Runs them in one shell and compares what they print. Returns all of it."""
        assert examples, f"{page.name}: nothing to run"
        parts = (f"printf '\\n@@ %s\\n' {number}\n{block.text}" for number, (block, _) in enumerate(examples))
        done = subprocess.run(["bash"], input="set -euo pipefail\n" + "\n".join(parts), cwd=self.folder, env=self.env, text=True,
                              capture_output=True, timeout=2 * PATIENCE, check=False)
        printed = re.split(r"(?:^|\n)@@ \d+\n", done.stdout)[1:]
        assert done.returncode == 0, f"{page.name}:{examples[len(printed) - 1][0].line} failed\n{done.stderr}\n{printed[-1]}"
        for (block, answer), text in zip(examples, printed):
            assert answer is None or matches(answer, text), f"{page.name}:{block.line} printed\n{text}\n{done.stderr}"
        return done.stdout
