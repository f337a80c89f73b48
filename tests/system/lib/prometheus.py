"""A private Prometheus that scrapes servers of a test and evaluates the rules of deploy/prometheus, and promtool."""
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from .engines import ROOT, Engine

RULES = ROOT / "deploy/prometheus/freshet.rules.yml"
INTERVAL_S = 1


def promtool(*args, text=None):
    """Runs it: CompletedProcess with text."""
    return subprocess.run(["promtool", *map(str, args)], input=text, text=True, capture_output=True, timeout=60, check=False)


class Prometheus(Engine):
    """Scrapes {job: [Freshet, …]} every second, once started."""

    def __init__(self, servers):
        super().__init__("prometheus", tempfile.mkdtemp(prefix="freshet-test-prometheus-"))
        jobs = [{"job_name": job, "metrics_path": "/actuator/prometheus",
                 "static_configs": [{"targets": [f"127.0.0.1:{server.port}" for server in those]}]}
                for job, those in servers.items()]
        self.config = self.folder / "prometheus.yml"
        self.config.write_text(json.dumps({
            "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
            "rule_files": [str(RULES)], "scrape_configs": jobs}))  # JSON is YAML

    def command(self):
        return ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={self.data}",
                f"--web.listen-address={self.address}", "--log.level=warn"]

    def get(self, path, **params):
        """The `data` of an answer of the API; AssertionError with its text when it is an error."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{params}: {error.read().decode()}") from None

    def answers(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def query(self, expression):
        """The result of an instant query."""
        return self.get("query", query=expression)["result"]

    def destroy(self):
        self.stop()
        shutil.rmtree(self.folder.parent, ignore_errors=True)
