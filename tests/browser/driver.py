"""Runs cases of *.mjs in one Chromium. A case asks for what only the test can do (stop PostgreSQL, write by SQL) by a line on its
standard output, `{"ask": …}`, and reads the answer from its standard input."""
import json
import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASE = re.compile(r'^cases\["(.+)"\] = ', re.M)


def cases_of(file):
    """Names of the cases of a file, in its order."""
    return CASE.findall((HERE / file).read_text(encoding="utf-8"))


class Browser:
    """A process of Node that keeps Chromium running until its standard input is closed."""

    def __init__(self):
        self.process = subprocess.Popen(["node", str(HERE / "chromium.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = self.process.stdout.readline().strip()
        assert self.endpoint.startswith("ws://"), "Chromium did not start"

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def run(self, file, name, settings, answer=None, timeout=240):
        """Runs one case to its end. settings: what it knows of the server; answer(question): what it may ask for."""
        env = {**os.environ, "BROWSER_ENDPOINT": self.endpoint, "BROWSER_SETTINGS": json.dumps(settings)}
        with subprocess.Popen(["timeout", str(timeout), "node", str(HERE / "run.mjs"), file, name], env=env, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            for line in process.stdout:
                if not line.startswith('{"ask":'):
                    print(line, end="")
                    continue
                process.stdin.write(json.dumps(answer(*json.loads(line)["ask"])) + "\n")
                process.stdin.flush()
            said = process.stderr.read()
        assert process.returncode == 0, f"{file}: {name}\n{said}"
