"""The flow's end under attack (C7, R15): a database that hangs while its updates are being written is taken out of the
configuration, and the process is stopped."""
import signal
import threading
import time

import pytest

from lib.config import base_config, merge
from lib.postgres import freeze_cluster, signal_all
from lib.refdata import own_refdata_db, pod, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import Client
from lib.writers import delta, updates_path


class Writers:
    """Writes without a pause, on several connections, whatever comes back."""

    def __init__(self, server, bearer, count=8):
        self.ended, self.answers, self.server, self.bearer = threading.Event(), [], server, bearer
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(count)]

    def run(self, number):
        while not self.ended.is_set():
            try:
                with Client(self.server.port, self.bearer) as client:
                    while not self.ended.is_set():
                        mode = "WAIT_COMMIT" if number % 2 else "ASYNC"
                        answer = client.post(updates_path(mode), delta("B", {f"k{number}": 1}))
                        self.answers.append(answer.status)
            except (OSError, EOFError):
                time.sleep(0.02)
            except Exception:  # noqa: BLE001: a connection that was closed in the middle, in http.client's words
                time.sleep(0.02)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        eventually(lambda: self.answers.count(202) + self.answers.count(200) > 50, timeout=20)
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("reload_first", [False, True])
def test_c7_a_frozen_database_does_not_hold_up_the_end_of_its_flow(serve, own_postgres, own_refdata_db, jwks_path, token,
                                                                   reload_first):
    write_builtin(own_refdata_db, "B", {"a": 1}, version=1)
    server = serve(own_refdata_db, pod("B", http={"stopTimeout": "1s", "loops": 2}))
    frozen = []
    try:
        with Writers(server, token()) as writers:
            frozen = freeze_cluster(own_postgres)
            time.sleep(0.3)
            began = time.monotonic()
            if reload_first:
                gone = merge(base_config(own_refdata_db, jwks_path), pod("B", http={"stopTimeout": "1s", "loops": 2}))
                gone["refdata"]["postgres"]["jdbcUrl"] += "?connectTimeout=2"
                server.write_config(gone)
                server.sighup()
                eventually(lambda: server.logs(event="config_reloaded"))
            writers.ended.set()
            server.stop(timeout=40)
            assert time.monotonic() - began < 25  # a fraction of the time for which the statements would wait
    finally:
        signal_all(frozen, signal.SIGCONT)
