"""P2: a pod of the chart as far as it can be tried without a cluster: the program with the rendered freshet.yaml, the folders mounted as
the kubelet mounts them, the variables that the Deployment sets, two listeners, and the probes."""
import signal
import subprocess

import pytest

from chart import GOLDEN
from lib.freshet import SANITIZER, binary
from lib.mounted import Mount
from lib.wait import eventually, free_port
from lib.wire import Client

ENV = {"FRESHET_LOOPS": "1", "FRESHET_MEMORY": "0", "FRESHET_CACHE_MEMORY": "64MiB", "HOSTNAME": "freshet-0"}


class Pod:
    """The development example, with this machine's addresses."""

    def __init__(self, folder, database, jwks):
        self.http, self.admin, self.database = free_port(), free_port(), database
        self.folder = folder
        self.secret = Mount(folder / "secrets/postgres", {"password": database.password + "\n"})
        self.files = {"freshet.yaml": self._localised(), "jwks.json": jwks}
        self.config = Mount(folder / "config", self.files)
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([binary(), "serve", f"--config={self.config / 'freshet.yaml'}"], env=ENV,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _localised(self):
        text = (GOLDEN / "development.freshet.yaml").read_text(encoding="utf-8")
        for before, after in {
                "jdbc:postgresql://postgresql:5432/freshet": self.database.jdbc_url, "0.0.0.0:8080": f"127.0.0.1:{self.http}",
                "0.0.0.0:9090": f"127.0.0.1:{self.admin}", "/etc/freshet/": f"{self.folder}/",
                "username: freshet": f"username: {self.database.user}"}.items():
            assert before in text, before
            text = text.replace(before, after)
        return text

    def probe(self, path):
        try:
            with Client(self.admin) as client:
                return client.get(path).status
        except OSError:
            return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text(encoding="utf-8")
        assert not SANITIZER.search(self.log.read_text(encoding="utf-8"))


@pytest.fixture
def started(tmp_path, database, jwks_path):
    pod = Pod(tmp_path, database, jwks_path.read_text(encoding="utf-8"))
    yield pod
    if pod.process.poll() is None:
        pod.process.kill()
        pod.process.wait()


def test_a_pod_becomes_ready_serves_reloads_and_ends(started, token):
    """C7, C8, R15."""
    eventually(lambda: started.probe("/actuator/health/liveness") == 200)
    eventually(lambda: started.probe("/actuator/health/readiness") == 200)
    assert started.probe("/actuator/prometheus") == 200
    with Client(started.http, token()) as client:
        put = client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000", {
            "dictCode": "FEATURE", "eventType": "DELTA", "items": [{"key": "a", "op": "UPSERT", "payload": 1}]})
        assert put.status in (200, 202)
        eventually(lambda: client.get("/v1/tenants/demo/dictionaries/FEATURE/items/a").status == 200)
        added = started.files["freshet.yaml"].replace("- code: FEATURE", "- code: FEATURE\n  - code: NEW")
        started.config.swap({**started.files, "freshet.yaml": added})
        eventually(lambda: client.get("/v1/tenants/demo/dictionaries/NEW/version").status == 200)
    started.stop()
