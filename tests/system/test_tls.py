"""TLS on the listener: what clients see and may bring, and what the command line needs (issue 14.2, C5, C6)."""
import socket
import ssl
import subprocess
import threading

import pytest

from lib.certs import Authority
from lib.freshet import run
from lib.refdata import generate, item_path, lines_of, module_refdata_db, path, pod, set_version  # noqa: F401
from lib.refdata import sql_dictionary, write_builtin
from lib.wait import eventually
from lib.watcher import Watcher
from lib.wire import Client, RawConnection, request_bytes

pytestmark = pytest.mark.roles("query")

URI = "spiffe://mesh/ns/a/sa/app"
HEALTH = request_bytes("GET", "/actuator/health/liveness")
FULL, RESUMED, FAILED = ('http_tls_handshakes_total{result="%s"}' % result for result in ("full", "resumed", "failed"))
REQUESTS = 'freshet_memory_used_bytes{account="requests"}'


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """An authority that no server knows."""
    return Authority(tmp_path_factory.mktemp("strangers"), "stranger")


@pytest.fixture(scope="module")
def filled(module_refdata_db):  # noqa: F811
    write_builtin(module_refdata_db, "D", {"a": 1, "b": [2]}, 1)
    generate(module_refdata_db, "big", 20000, "to_jsonb(repeat('x', 500))")
    set_version(module_refdata_db, "BIG", 1)
    return module_refdata_db


def start(serve, authority, database, tls=None, auth=None, limits=None):
    cert, key = authority.server(f"server{len(serve.started)}")
    http = {"tls": {"certFile": str(cert), "keyFile": str(key), **(tls or {})}}
    if limits:
        http["limits"] = limits
    changes = pod("D", sql_dictionary("BIG"), http=http)
    if auth:
        changes["auth"] = auth
    server = serve.make(database, changes)
    server.tls = authority.trust()
    return server.start()


@pytest.fixture(scope="module")
def server(module_serve, authority, filled):
    """It asks clients for a certificate and knows some by name; a proxy at this address may forward others."""
    clients = [{"identity": URI, "tenant": "demo"}, {"identity": r"CN=legacy\, Inc.,O=A", "tenant": "demo"},
               {"identity": "spiffe://mesh/ns/a/sa/behind", "tenant": "other"}]
    return start(module_serve, authority, filled, {"clientCaFile": str(authority.ca)},
                 {"mtls": {"peers": ["127.0.0.1"], "clients": clients}})


# ---- requests ----

def test_health_items_and_pipelines_are_answered_over_tls(server, token):
    with server.client(token()) as client:
        health = client.get("/actuator/health/readiness")
        assert health.status == 200 and health.json()["components"]["tls:certificate"] == {"status": "UP"}
        assert client.get(item_path("D", "a")).json() == {"key": "a", "payload": 1}
    with server.raw() as raw:
        assert raw.socket.selected_alpn_protocol() is None
        bearer = {"Authorization": f"Bearer {token()}"}
        raw.send(request_bytes("GET", item_path("D", "b"), bearer) * 50 + HEALTH)
        answers = [raw.read_response() for _ in range(51)]
        assert [answer.status for answer in answers] == [200] * 51
        assert answers[0].json() == {"key": "b", "payload": [2]} and answers[50].json() == {"status": "UP"}


def test_large_answers_reach_a_slow_reader_whole(server, token):
    """40 MB, more than the sockets hold, while others are served."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
    plain.settimeout(60)
    plain.connect(("127.0.0.1", server.port))
    with RawConnection.__new__(RawConnection) as raw:
        raw.socket, raw.buffer = server.tls.wrap_socket(plain, server_hostname="localhost"), b""
        bearer = {"Authorization": f"Bearer {token()}", "Accept": "application/x-ndjson"}
        raw.send(request_bytes("GET", path("BIG", "/all"), bearer) * 4)
        assert raw.read_exactly(1) == b"H"
        raw.buffer = b"H" + raw.buffer
        for _ in range(4):
            assert server.client(token()).get(item_path("D", "a")).status == 200
            answer = raw.read_response()
            assert answer.status == 200 and len(lines_of(answer.body)) == 20000


def test_a_watch_streams_over_tls(server, filled, token):
    write_builtin(filled, "D", {"a": 1, "b": [2]}, 1)
    watcher = Watcher.__new__(Watcher)
    watcher.raw, watcher.text, watcher.ended = server.raw(), b"", False
    watcher.raw.send(request_bytes("GET", path("D", "/watch"), {"Authorization": f"Bearer {token()}"}))
    watcher.head = watcher.raw.read_head()
    assert watcher.lines_to(1)[-1]["upToDate"] == 1
    watcher.close()


# ---- handshakes ----

@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_resumed(server, authority, most):
    context = authority.trust(most=most)
    before = server.metrics()
    with RawConnection(server.port, tls=context) as first:
        assert first.exchange(HEALTH).status == 200 and first.socket.version() == most.name.replace("v1_", "v1.")
        session = first.socket.session
    with RawConnection(server.port, tls=context, session=session) as second:
        assert second.exchange(HEALTH).status == 200 and second.socket.session_reused
    after = server.metrics()
    assert after[RESUMED] - before[RESUMED] == 1 and after[FULL] - before[FULL] == 2  # the second is metrics()'


def test_http_1_1_is_chosen_and_an_offer_without_it_is_refused(server, authority):
    context = authority.trust()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with RawConnection(server.port, tls=context) as raw:
        assert raw.socket.selected_alpn_protocol() == "http/1.1" and raw.exchange(HEALTH).status == 200
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError, match="(?i)no.application.protocol"):
        RawConnection(server.port, tls=context)


def test_tls_1_1_and_weak_ciphers_are_refused(server, authority):
    for change in ({"minimum_version": ssl.TLSVersion.TLSv1, "maximum_version": ssl.TLSVersion.TLSv1_1},
                   {"maximum_version": ssl.TLSVersion.TLSv1_2, "ciphers": "AES128-SHA:ECDHE-ECDSA-AES128-SHA@SECLEVEL=0"}):
        context = authority.trust()
        if "ciphers" in change:
            context.set_ciphers(change.pop("ciphers"))
        for name, value in change.items():
            setattr(context, name, value)
        with pytest.raises(ssl.SSLError):
            RawConnection(server.port, tls=context)


def test_openssl_shakes_hands_and_may_not_renegotiate(server, authority):
    """By another client than Python's: s_client asks for a renegotiation when it reads R."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-CAfile", str(authority.ca),
               "-verify_return_error", "-servername", "localhost", "-alpn", "http/1.1"]
    asked = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n").decode()
    done = subprocess.run([*command, "-ign_eof"], input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and '{"status":"UP"}' in done.stdout and "ALPN protocol: http/1.1" in done.stdout
    assert "Compression: NONE" in done.stdout
    done = subprocess.run([*command, "-tls1_2"], input="R\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "RENEGOTIATING" in done.stderr and "no renegotiation" in done.stderr
    assert server.client().get("/actuator/health/liveness").status == 200


@pytest.mark.parametrize("sent", [b"\x00" * 100, b"SSH-2.0-OpenSSH_9\r\n", b"\x16\x03\x01\xff\xff" + b"z" * 70000,
                                  b"\x16\x03\x03\x00\x04\x01\x00\x00\x00", bytes(range(256)) * 40])
def test_garbage_ends_the_connection_and_is_counted(server, sent):
    before = server.metrics()[FAILED]
    with RawConnection(server.port) as raw:
        try:
            raw.send(sent)
            raw.finish()
            answer = raw.read_to_end()
        except OSError:  # closed while it was still sending
            answer = b""
        assert b"HTTP/" not in answer
    eventually(lambda: server.metrics()[FAILED] == before + 1)


def test_plain_http_is_answered_400_in_plain_text(server):
    with RawConnection(server.port) as raw:
        answer = raw.exchange(HEALTH)
        assert answer.status == 400 and "https" in answer.json()["message"] and raw.is_closed()


# ---- certificates of clients ----

def ask(server, tls, token=None, **headers):
    with Client(server.port, token, tls=tls) as client:
        return client.get(item_path("D", "a"), **headers).status


def test_a_client_is_known_by_its_certificate(server, authority, token):
    """C5: by its URI, or its subject where it has none; a token counts before it; without either 401."""
    app = authority.trust(authority.issue("app", "x", uris=[URI]))
    legacy = authority.trust(authority.issue("legacy", "legacy, Inc."))
    assert ask(server, app) == 200 and ask(server, legacy) == 200
    assert ask(server, app, "nonsense") == 401 and ask(server, app, token("other")) == 403
    for unknown in (authority.issue("u1", "legacy", uris=[URI + "2"]), authority.issue("u2", "legacy, Inc.", uris=["spiffe://x"]),
                    authority.issue("u3", "legacy", organization="Inc.,O=A")):
        assert ask(server, authority.trust(unknown)) == 401
    assert ask(server, authority.trust()) == 401 and ask(server, authority.trust(), token()) == 200


def test_a_proxy_with_a_certificate_does_not_lend_its_own_name(server, authority):
    """C5: what a believed peer forwards decides, also where it names nobody; the header twice names nobody."""
    proxy = authority.trust(authority.issue("proxy", "x", uris=[URI]))
    assert ask(server, proxy, X_Forwarded_Client_Cert=f"URI={URI}") == 200
    assert ask(server, proxy, X_Forwarded_Client_Cert="URI=spiffe://mesh/nobody") == 401
    assert ask(server, proxy, X_Forwarded_Client_Cert="URI=spiffe://mesh/ns/a/sa/behind") == 403
    with RawConnection(server.port, tls=proxy) as raw:
        header = f"X-Forwarded-Client-Cert: URI={URI}\r\n".encode()
        assert raw.exchange(request_bytes("GET", item_path("D", "a"))).status == 200
        twice = request_bytes("GET", item_path("D", "a")).replace(b"\r\n\r\n", b"\r\n" + header * 2 + b"\r\n")
        assert raw.exchange(twice).status == 401


def test_a_certificate_of_another_authority_is_refused(server, authority, stranger):
    context = authority.trust(stranger.issue("app", "x", uris=[URI]))
    with pytest.raises((ssl.SSLError, ConnectionResetError), match="(?i)unknown_ca|unknown ca|reset"):
        with RawConnection(server.port, tls=context) as raw:
            raw.exchange(HEALTH)


def test_where_a_certificate_is_required_no_request_comes_without(serve, authority, filled):
    cert, key = authority.server("required")
    server = serve.make(filled, pod("D", http={"tls": {"certFile": str(cert), "keyFile": str(key), "minVersion": "1.3",
                                                       "clientCaFile": str(authority.ca), "clientCert": "required"}}))
    server.tls = authority.trust(authority.issue("app", "x", uris=[URI]))
    server.start()
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        with RawConnection(server.port, tls=authority.trust()) as raw:
            raw.exchange(HEALTH)
    with pytest.raises(ssl.SSLError, match="(?i)protocol.version"):
        RawConnection(server.port, tls=authority.trust(most=ssl.TLSVersion.TLSv1_2))
    assert server.client().get("/actuator/health/liveness").status == 200


# ---- many and slow ----

def test_handshakes_that_do_not_go_on_leave_the_server_to_others(serve, authority, filled, token):
    server = start(serve, authority, filled, limits={"headerTimeout": "2s"})
    client = server.client(token())
    assert client.get(item_path("D", "a")).status == 200
    idle = server.metrics()[REQUESTS]
    silent = [RawConnection(server.port) for _ in range(150)]
    begun = [RawConnection(server.port) for _ in range(150)]
    for raw in begun:
        raw.send(b"\x16\x03\x01\x02\x00\x01\x00\x01")
    assert server.metrics()[REQUESTS] > idle + 300 * 32 * 1024
    for _ in range(50):
        assert client.get(item_path("D", "a")).status == 200
        assert server.client(token()).get(item_path("D", "a")).status == 200
    assert all(raw.is_closed() for raw in silent + begun)
    server.close_clients()
    eventually(lambda: server.metrics()[REQUESTS] < idle + 300 * 1024)
    assert server.metrics()[FAILED] == 300


def test_many_handshakes_at_once_all_succeed_beside_a_working_client(server, authority, token):
    context, wrong = authority.trust(), []

    def connect():
        for _ in range(10):
            with RawConnection(server.port, tls=context) as raw:
                wrong.extend([] if raw.exchange(HEALTH).status == 200 else ["refused"])

    threads = [threading.Thread(target=connect) for _ in range(16)]
    for thread in threads:
        thread.start()
    client = server.client(token())
    while any(thread.is_alive() for thread in threads):
        assert client.get(item_path("D", "a")).status == 200
    for thread in threads:
        thread.join()
    assert not wrong


# ---- the command line ----

def test_commands_talk_to_an_https_address(server, authority, stranger, token):
    url = f"https://localhost:{server.port}"
    words = ["get", "demo", "D", "a", "--url", url]
    done = run(*words, "--ca", authority.ca, "--token", token())
    assert (done.returncode, done.stdout) == (0, '{"key":"a","payload":1}\n')
    done = run(*words, env={"FRESHET_CA": str(authority.ca), "FRESHET_TOKEN": token()})
    assert done.returncode == 0
    for wrong in (["--ca", stranger.ca], []):
        done = run(*words, *wrong, "--token", token())
        assert (done.returncode, done.stdout) == (1, "") and "certificate" in done.stderr.lower()
    done = run("get", "demo", "D", "a", "--url", f"https://127.0.0.1:{server.port}", "--ca", authority.ca, "--token", token())
    assert done.returncode == 1 and "127.0.0.1" in done.stderr  # the certificate is for another name


@pytest.mark.parametrize("command", [["get", "demo", "D", "a"], ["verify", "demo/D"]])
def test_a_command_names_the_file_that_it_cannot_use(command, authority):
    """Exit status 2, before it connects."""
    mine = authority.issue("unused", "x")
    for option in ("--ca", "--cert"):
        done = run(*command, "--url", "https://127.0.0.1:1", option, "/none")
        assert done.returncode == 2 and f"{option}: /none: No such file" in done.stderr
    done = run(*command, "--url", "https://127.0.0.1:1", env={"FRESHET_CA": "/none"})
    assert done.returncode == 2 and "FRESHET_CA: /none: No such file" in done.stderr
    done = run(*command, "--url", "https://127.0.0.1:1", "--cert", mine[0], "--key", "/none")
    assert done.returncode == 2 and "--key: /none: No such file" in done.stderr
    done = run(*command, "--url", "https://127.0.0.1:1", "--key", mine[1])
    assert done.returncode == 2 and "--key needs --cert" in done.stderr


def test_a_command_brings_a_certificate(serve, authority, filled, token):
    cert, key = authority.server("for-commands")
    mine = authority.issue("mine", "x", uris=[URI])
    server = serve.make(filled, pod("D", http={"tls": {"certFile": str(cert), "keyFile": str(key),
                                                       "clientCaFile": str(authority.ca), "clientCert": "required"}}))
    server.tls = authority.trust(mine)
    server.start()
    words = ["get", "demo", "D", "a", "--url", f"https://localhost:{server.port}", "--ca", authority.ca, "--token", token()]
    assert run(*words).returncode == 1
    assert run(*words, "--cert", mine[0], "--key", mine[1]).stdout == '{"key":"a","payload":1}\n'
