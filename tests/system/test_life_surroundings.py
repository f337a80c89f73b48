"""The process in bad surroundings: standard descriptors closed, a FIFO for a file, a key server that hangs (C7, C10)."""
import os
import signal
import socket
import subprocess

import pytest

from lib.config import base_config, to_yaml
from lib.freshet import binary, run
from lib.refdata import item_path, path, pod, refdata_db, set_version, slow_dictionary  # noqa: F401
from lib.wait import eventually, free_port
from lib.wire import request_bytes


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_c10_the_log_never_goes_down_a_connection(database, jwks_path, tmp_path, closed):
    config = tmp_path / "freshet.yaml"
    config.write_text(to_yaml(base_config(database, jwks_path)))
    done = subprocess.run(["sh", "-c", f'exec "$0" migrate --config "$1" {closed}', binary(), config], check=False,
                          env={**os.environ, "FRESHET_TEST_PG_PASSWORD": database.password})
    assert done.returncode == 0
    assert database.value("select count(*) from refdata.dictionary_meta") == 0


def test_a_fifo_that_nobody_writes_to_is_an_empty_file(tmp_path):
    os.mkfifo(tmp_path / "freshet.yaml")
    done = run("config", "--config", tmp_path / "freshet.yaml")
    assert done.returncode == 1 and "is missing" in done.stderr


def fill(pipe):
    with open(f"/proc/self/fd/{pipe}", "wb", buffering=0, opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as full:
        while full.write(b"x" * 4096):
            pass


def test_a_log_that_nobody_reads_holds_up_no_request(refdata_db, serve, token):
    server = serve.make(refdata_db, pod("A"))
    server.port = free_port()
    server.log_path.touch()
    reader, writer = os.pipe()
    server.process = subprocess.Popen([binary(), "serve", "--config", str(server.config_path), "--listen",
                                       f"127.0.0.1:{server.port}"], stderr=writer, env=server.env)
    eventually(server.is_ready)
    client = server.client(token())
    assert client.get(path("A", "/version")).json()["version"] == 0
    fill(writer)
    set_version(refdata_db, "A", 1)  # the load is logged by the loop that accepts half of the connections
    for _ in range(30):
        assert server.client(token()).get(path("A", "/version")).status == 200
    eventually(lambda: client.get(path("A", "/version")).json()["version"] == 1)
    server.process.terminate()
    assert server.process.wait() == 0
    os.close(reader)
    os.close(writer)


def test_c7_a_key_server_that_hangs_does_not_hold_up_the_stop(database, serve, jwks_path, token):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        keys = {"jwksFile": str(jwks_path), "jwksUrl": f"http://127.0.0.1:{silent.getsockname()[1]}/",
                "jwksTimeout": "60s"}
        server = serve.make(database, {"auth": keys, **pod("A")})
        server.spawn()
        first, _ = silent.accept()
        first.close()  # the reading at the start fails at once; the next one, a second later, hangs
        eventually(server.is_ready)
        assert server.client(token()).get(path("A", "/version")).status == 200
        second, _ = silent.accept()
        server.stop(timeout=30)
        second.close()


def test_c7_who_waits_past_the_stop_timeout_is_told_503(refdata_db, serve, token):
    """Parked reads, and a request whose head is half there: an answer each, never an empty one."""
    server = serve(refdata_db, pod(slow_dictionary("S", 600), cache={"firstReadTimeout": "1h"},
                                   http={"stopTimeout": "300ms", "loops": 1}))
    auth = {"Authorization": f"Bearer {token()}"}
    waiting = [server.raw() for _ in range(20)]
    for connection in waiting:
        connection.send(request_bytes("GET", item_path("S", "k"), auth))
    half = server.raw()
    half.send(b"GET /actuator/health HTTP/1.1\r\nHost:")
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(600)%%'"
                                        " and state = 'active' and pid <> pg_backend_pid()"))
    for _ in range(2):  # the one loop takes what came first first: then it has read all of them
        assert server.client(token()).get("/actuator/health/liveness").status == 200
    server.process.send_signal(signal.SIGTERM)
    for connection in [*waiting, half]:
        answer = connection.read_response()
        assert (answer.status, answer.headers.get("connection")) == (503, "close")
        assert answer.json()["code"] == "UNAVAILABLE"
    assert server.process.wait(30) == 0
