"""Updates while the configuration is reloaded (R15): whatever becomes of a database's connections, none is refused."""
import pytest

from lib.config import base_config, merge
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import Threads, delta, updates_path

RELOADS = 5


def settings(connections):
    changes = pod("D")
    changes["refdata"]["postgres"] = {"pool": {"maxSize": connections}}
    return changes


def write(stopping, server, token, number, answers):
    """Every other body is large: a worker parses it, and the reload may come meanwhile."""
    client = server.client(token)
    while not stopping.is_set():
        payload = "x" * 100_000 if len(answers) % 2 else "small"
        answers.append(client.post(updates_path("WAIT_COMMIT"), delta("D", {f"k{number}": payload})))


@pytest.mark.tsan
def test_no_update_is_refused_while_the_connections_are_replaced(serve, refdata_db, jwks_path, token):  # noqa: F811
    server = serve(refdata_db, settings(4))
    eventually(lambda: server.client(token()).post(updates_path("WAIT_COMMIT"), delta("D", {"k": 1})).status == 200)
    answers = []
    with Threads() as threads:
        for number in range(4):
            threads.add(write, server, token(), number, answers)
        for reload in range(1, RELOADS + 1):
            seen = len(answers)
            eventually(lambda: len(answers) > seen + 10)  # pylint: disable=cell-var-from-loop
            server.write_config(merge(base_config(refdata_db, jwks_path), settings(4 + reload)))
            server.sighup()
            eventually(lambda: len(server.logs(event="config_reloaded")) >= reload)  # pylint: disable=cell-var-from-loop
    refused = [(answer.status, answer.body) for answer in answers if answer.status not in (200, 202)]
    assert not refused, f"{len(refused)} of {len(answers)}, such as {refused[0]}"
