"""The certificate of a running server: mistakes at the start, changes under load, the end (issue 14.2, C7)."""
import contextlib
import http.client
import signal
import socket
import ssl
import subprocess
import threading

import pytest

from lib.certs import Authority, organization, replace
from lib.config import merge
from lib.fixtures import ROOT
from lib.freshet import binary, run
from lib.operator import MARK, Operator
from lib.pages import Page
from lib.refdata import item_path, module_refdata_db, path, pod, slow_dictionary, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import Client, RawConnection, request_bytes

pytestmark = pytest.mark.roles("query")

REFUSED, CHANGED = ('http_tls_reloads_total{result="%s"}' % result for result in ("refused", "changed"))
EXPIRY = "http_tls_certificate_expiry_timestamp_seconds"
HEALTH = request_bytes("GET", "/actuator/health/liveness")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "certs")


@pytest.fixture(scope="module")
def filled(module_refdata_db):  # noqa: F811
    write_builtin(module_refdata_db, "D", {"a": 1}, 1)
    return module_refdata_db


def settings(authority, **more):
    cert, key = authority.server()
    return pod("D", slow_dictionary("SLOW", 2), http={"tls": {"certFile": str(cert), "keyFile": str(key), **more}})


def serves(server):
    """The organization in the certificate that a new connection sees."""
    with RawConnection(server.port, tls=server.tls) as raw:
        return organization(raw.socket)


# ---- the configuration ----

@pytest.mark.parametrize("change, field, reason", [
    ({"certFile": "/none"}, "certFile", "No such file"),
    ({"keyFile": "/none"}, "keyFile", "No such file"),
    ({"keyFile": "OTHER"}, "keyFile", "mismatch"),
    ({"certFile": "GARBAGE"}, "certFile", "start line"),
    ({"clientCaFile": "GARBAGE"}, "clientCaFile", ""),
    ({"keyFile": None}, "keyFile", "is missing"),
    ({"certFile": None}, "certFile", "is missing"),
    ({"clientCert": "required"}, "clientCert", "needs clientCaFile"),
    ({"minVersion": "1.1"}, "minVersion", "1.2"),
])
def test_a_mistake_is_reported_with_its_place_and_field(serve, authority, filled, change, field, reason):
    config = settings(authority)
    other = authority.issue("other", "localhost")[1]
    garbage = authority.folder / "garbage"
    garbage.write_text("not a certificate\n")
    for name, value in change.items():
        config["http"]["tls"][name] = {"OTHER": str(other), "GARBAGE": str(garbage)}.get(value, value)
        if value is None:
            del config["http"]["tls"][name]
    server = serve.make(filled, config)
    done = run("config", "--config", server.config_path, env=server.env)
    assert done.returncode == 1
    assert f"{server.config_path}:" in done.stderr and f"http.tls.{field}" in done.stderr and reason in done.stderr
    line = int(done.stderr.split(f"{server.config_path}:")[1].split(":")[0])
    named = server.config_path.read_text().splitlines()[line - 1]
    assert any(name in named for name in ("certFile", "keyFile", "clientCaFile", "clientCert", "minVersion")), named
    done = subprocess.run([binary(), "serve", "--config", str(server.config_path)], env=server.env, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"http.tls.{field}" in done.stderr


# ---- changes ----

class Load:
    """Requests on connections that stay open, and on new ones, until stopped. Nothing is retried."""

    def __init__(self, server, token):
        self.server, self.token = server, token
        self.done, self.wrong, self.stopped = 0, [], False
        self.threads = [threading.Thread(target=self.run, args=(i % 2 == 0,)) for i in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, stays):
        client = None
        while not self.stopped:
            try:
                client = client or Client(self.server.port, self.token, tls=self.server.tls)
                status = client.get(item_path("D", "a")).status
                if status != 200:
                    self.wrong.append(status)
                self.done += 1
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(repr(error))
            if not stays:
                client.close()
                client = None
        if client:
            client.close()

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        assert not self.wrong and self.done > 0


@pytest.mark.tsan
def test_a_changed_certificate_is_used_without_losing_a_request(serve, authority, filled, token):
    server = serve.make(filled, settings(authority))
    server.tls = authority.trust()
    server.start()
    load = Load(server, token())
    with server.raw() as before:
        assert organization(before.socket) == "first"
        expires = server.metrics()[EXPIRY]
        authority.server(organization="second", days=3)  # two files, one after the other
        eventually(lambda: serves(server) == "second")
        assert before.exchange(HEALTH).status == 200
        authority.server(organization="third", days=3)
        server.sighup()
        eventually(lambda: serves(server) == "third")
        assert before.exchange(HEALTH).status == 200
    metrics = server.metrics()
    assert metrics[CHANGED] >= 2 and metrics[EXPIRY] > expires + 86400
    load.stop()


def test_a_bad_certificate_is_refused_and_the_one_before_it_stays(serve, authority, filled, token):
    server = serve.make(filled, settings(authority))
    server.tls = authority.trust()
    server.start()
    cert, key = authority.folder / "server.pem", authority.folder / "server.key"
    load, good = Load(server, token()), (cert.read_bytes(), key.read_bytes())
    replace(cert, b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    line = eventually(lambda: server.logs(event="tls_certificate_refused"))[0]
    assert str(cert) in line["error"] and line["level"] == "error" and "stays" in line["effect"]

    def component():
        return server.client().get("/actuator/health").json()["components"]["tls:certificate"]

    assert component()["status"] == "DOWN" and serves(server) == "first"
    assert server.client().get("/actuator/health/readiness").status == 200
    server.sighup()  # as a whole: the configuration is refused with its file and field
    refused = eventually(lambda: server.logs(event="config_refused"))[0]
    assert "http.tls.certFile" in refused["error"] and serves(server) == "first"
    replace(key, authority.issue("other", "localhost")[1].read_bytes())
    replace(cert, good[0])
    eventually(lambda: server.metrics()[REFUSED] == 2)  # a key of another certificate
    cert.unlink()
    replace(key, good[1])
    replace(cert, good[0])
    eventually(lambda: component() == {"status": "UP"})
    assert serves(server) == "first"
    load.stop()


def test_an_expired_certificate_is_served_with_a_warning(serve, authority, filled):
    server = serve.make(filled, settings(authority))
    authority.server(days=-1)
    server.tls = authority.trust()
    server.tls.check_hostname, server.tls.verify_mode = False, ssl.CERT_NONE
    server.start()
    assert server.logs(event="tls_certificate_expired")
    health = server.client().get("/actuator/health/readiness")
    assert health.status == 200 and "expired" in health.json()["components"]["tls:certificate"]["detail"]


def test_other_authorities_after_a_reload_end_the_sessions_of_before(serve, authority, filled, tmp_path):
    """A client that the new authorities do not vouch for does not come back by a ticket."""
    config = settings(authority, clientCaFile=str(authority.ca))
    server = serve.make(filled, config)
    mine = authority.issue("mine", "x")
    server.tls = authority.trust(mine)
    server.start()
    with server.raw() as first:
        assert first.exchange(HEALTH).status == 200
        session = first.socket.session
    with RawConnection(server.port, tls=server.tls, session=session) as again:
        assert again.exchange(HEALTH).status == 200 and again.socket.session_reused
    config["http"]["tls"]["clientCaFile"] = str(Authority(tmp_path / "new", "new").ca)
    server.tls = authority.trust()
    server.write_config(serve.make(filled, config).config_path.read_text())
    eventually(lambda: server.logs(event="config_reloaded"))
    context = authority.trust(mine)

    def is_refused():
        try:
            with RawConnection(server.port, tls=context, session=None) as raw:
                return raw.exchange(HEALTH).status != 200
        except OSError:
            return True

    eventually(is_refused)


def test_tls_is_turned_on_by_a_restart_only(serve, filled, authority):
    server = serve(filled, pod("D"))
    server.write_config(serve.make(filled, settings(authority)).config_path.read_text())
    eventually(lambda: server.logs(event="config_needs_restart", field="http.tls"))
    assert server.client().get("/actuator/health/liveness").status == 200


# ---- the end ----

def test_a_stop_answers_what_is_in_flight_and_ends_with_close_notify(serve, authority, filled, token):
    """C7, over TLS: an idle connection reads the end, not a cut; a request in flight is answered."""
    server = serve.make(filled, settings(authority))
    server.tls = authority.trust()
    server.start()
    idle, busy = server.raw(), server.raw()
    assert idle.exchange(HEALTH).status == 200
    idle.socket.suppress_ragged_eofs = False  # a cut would be an error
    busy.send(request_bytes("GET", item_path("SLOW", "k"), {"Authorization": f"Bearer {token()}"}))
    eventually(lambda: server.metrics()["http_connections"] >= 3)
    server.process.send_signal(signal.SIGTERM)
    assert idle.socket.recv(1) == b""
    answer = busy.read_response()
    assert answer.status in (200, 503) and answer.headers["connection"] == "close"
    busy.socket.suppress_ragged_eofs = False
    assert busy.socket.recv(1) == b""
    server.stop()


def test_a_handshake_without_a_request_does_not_hold_up_a_stop(serve, authority, filled):
    """Handshakes that end while the process stops wait for a request, for a moment."""
    server = serve.make(filled, merge(settings(authority), {"http": {"loops": 1, "stopTimeout": "40s"}}))
    server.tls = authority.trust()
    server.start()
    server.process.send_signal(signal.SIGSTOP)  # hellos arrive, of which a tick of the loop takes a few
    clients = []
    for _ in range(200):
        plain = socket.create_connection(("127.0.0.1", server.port))
        plain.setblocking(False)
        clients.append(server.tls.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False))
        with contextlib.suppress(ssl.SSLWantReadError):
            clients[-1].do_handshake()
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGCONT)
    for client in clients:
        client.settimeout(30)
        client.do_handshake()
    assert server.process.wait(20) == 0, "a client that sends nothing held up the stop"
    for client in clients:
        client.close()


def test_a_certificate_is_rotated_by_the_procedure_of_the_runbook(serve, authority, filled, tmp_path):
    """P3: as an operator types it, while the server runs."""
    page = Page(ROOT, ROOT / "docs/RUNBOOK.md")
    server = serve.make(filled, settings(authority))
    server.tls = authority.trust()
    server.start()
    cert, key = authority.folder / "server.pem", authority.folder / "server.key"
    fresh_cert, fresh_key = authority.server("fresh", "second", days=9)
    operator = Operator(tmp_path / "operator", filled, {"freshet": server}, f"https://localhost:{server.port}", CERT=cert, KEY=key,
                        NEW_CERT=fresh_cert, NEW_KEY=fresh_key, CA=authority.ca)
    try:
        assert serves(server) == "first"
        operator.run(page, page.under("Rotation of certificates", MARK))
        assert serves(server) == "second" and server.metrics()[CHANGED] == 1
    finally:
        operator.close()
