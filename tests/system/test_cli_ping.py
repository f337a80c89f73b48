"""`freshet ping`: a container asks its own process, wherever that listens (issue 14.1)."""
import signal

import pytest

from lib.certs import Authority
from lib.config import merge
from lib.freshet import run
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import free_port


@pytest.fixture
def ping(serve, refdata_db):  # noqa: F811
    """ping(host, http): (a process that listens there, asks(…): the finished command)."""
    def start(host="127.0.0.1", http=None, tls=None):
        port = free_port()
        server = serve.make(refdata_db, merge(pod("D"), {"http": {"listen": [f"{host}:{port}"], **(http or {})}}),
                            args=["--listen", f"{host}:{port}"])
        server.own_port, server.tls = port, tls
        server.start()
        return server, lambda *args: run("ping", "--config", server.config_path, *args, env=server.env)
    return start


@pytest.mark.parametrize("host, asked", [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost")])
def test_a_process_is_asked_at_its_own_port(ping, host, asked):
    server, asks = ping(host)
    done = asks()
    assert (done.returncode, done.stdout) == (0, f"http://{asked}:{server.port}/actuator/health/liveness: 200\n"), done.stderr
    server.stop()
    done = asks()
    assert (done.returncode, done.stdout) == (1, "") and "freshet ping: http://" in done.stderr


def test_all_addresses_of_ipv6_are_asked_by_ipv6(serve, refdata_db):  # noqa: F811
    """They are not those of IPv4."""
    server = serve.make(refdata_db, merge(pod("D"), {"http": {"listen": ["[::]:1"]}}))
    done = run("ping", "--config", server.config_path, env=server.env)
    assert done.returncode == 1 and "http://[::1]:1/actuator/health/liveness: " in done.stderr


def test_a_process_that_does_not_answer_is_dead_in_time(ping):
    server, asks = ping()
    server.process.send_signal(signal.SIGSTOP)
    try:
        done = asks("--timeout", "300ms")
        assert done.returncode == 1 and "no answer in time" in done.stderr
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_listener_with_tls_is_asked_whatever_its_certificate_says(ping, tmp_path):
    """It names another host, has expired, and is of an authority that no client knows."""
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server", "other", hosts=["localhost"], days=1)
    http = {"tls": {"certFile": str(certificate), "keyFile": str(key), "clientCaFile": str(authority.ca), "clientCert": "required"}}
    client = authority.issue("client", "c")
    server, asks = ping("0.0.0.0", http, authority.trust(client))
    words = ("--cert", client[0], "--key", client[1])
    done = asks(*words)
    assert (done.returncode, done.stdout) == (0, f"https://127.0.0.1:{server.port}/actuator/health/liveness: 200\n"), done.stderr
    authority.issue("server", "other", hosts=["localhost"], days=-1)
    assert asks(*words).returncode == 0
    assert asks().returncode == 1, "it requires a certificate"
    assert asks("--key", client[1]).returncode == 2


def test_a_mistake_in_the_file_says_nothing_about_the_process(ping):
    """The process keeps what it has read."""
    server, asks = ping()
    server.config_path.write_text("nonsense: 1\n")
    done = asks()
    assert (done.returncode, done.stdout) == (3, "") and "nonsense" in done.stderr
    assert asks("--timeout", "0").returncode == 2
