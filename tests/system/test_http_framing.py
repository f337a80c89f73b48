"""C6 and C4 on the real program: requests that could be read in two ways, bad heads, limits, error bodies."""
import pytest

from lib.refdata import module_refdata_db, path, pod  # noqa: F401
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

HEALTH = "/actuator/health/liveness"
HOST = b"Host: localhost\r\n"
GET = b"GET " + HEALTH.encode() + b" HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    limits = {"target": "2KiB", "headers": "4KiB", "headerCount": 20}
    return module_serve(module_refdata_db, pod("COUNTRY", http={"limits": limits}))


def assert_error(answer, status):
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert isinstance(body["code"], str) and body["message"]
    return body


REFUSED = {
    "length and coding": (GET + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (GET + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "list of lengths": (GET + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "signed length": (GET + b"Content-Length: +3\r\n\r\nabc", 400),
    "unknown coding": (GET + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    "coding behind chunked": (GET + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "vertical tab in the coding": (GET + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "space before the colon": (GET + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "folded line": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "bare CR": (GET + b"X: a\rb\r\n\r\n", 400),
    "bare LF": (GET + b"X: a\nY: b\r\n\r\n", 400),
    "NUL": (GET + b"X: a\0b\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + HOST + b"\r\n", 400),
    "lines of LF": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n", 501),
    "empty chunk extension": (GET + b"Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n0\r\n\r\n", 400),
    "chunk extension with an open quote": (GET + b"Transfer-Encoding: chunked\r\n\r\n5;a=\"b\r\nhello\r\n0\r\n\r\n", 400),
    "two content types": (GET + b"Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "other expectation": (GET + b"Expect: a-miracle\r\n\r\n", 417),
    "long target": (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "large headers": (GET + b"X: " + b"a" * 5000 + b"\r\n\r\n", 431),
    "many headers": (GET + b"".join(b"X%d: a\r\n" % i for i in range(30)) + b"\r\n", 431),
}


@pytest.mark.parametrize("name", REFUSED)
def test_c6_what_cannot_be_trusted_is_refused_and_the_connection_closed(server, name):
    data, status = REFUSED[name]
    with server.raw() as connection:
        # What stands behind it must never be taken for a request.
        answer = connection.exchange(data + b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
        assert_error(answer, status)
        assert answer.headers["connection"] == "close"
        assert connection.is_closed()


@pytest.mark.parametrize("name", REFUSED)
def test_c6_byte_by_byte_it_is_refused_alike(server, name):
    data, status = REFUSED[name]
    with server.raw() as connection:
        try:
            for at in range(len(data)):
                connection.send(data[at:at + 1])
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before the end
        assert_error(connection.read_response(), status)


@pytest.mark.parametrize("target, method, status", [
    ("/nothing/here", "GET", 404), (HEALTH + "/", "GET", 404), (HEALTH, "POST", 405), (path("COUNTRY", "/items"), "PUT", 405),
    (HEALTH, "BREW", 405), (HEALTH, "get", 405), ("/nothing/here", "BREW", 404),
])
def test_c6_unknown_paths_and_methods_keep_the_connection(server, target, method, status):
    with server.raw() as connection:
        answer = connection.exchange(request_bytes(method, target))
        assert_error(answer, status)
        if status == 405:
            assert {"GET", "HEAD", "OPTIONS"} <= set(answer.headers["allow"].split(", "))
        assert connection.exchange(request_bytes(method, target, body=b"GET /smuggled HTTP/1.1\r\n\r\n")).status == status
        assert connection.exchange(GET + b"\r\n").status == 200


def test_http_1_2_is_answered_like_http_1_1(server):
    with server.raw() as connection:
        for _ in range(2):
            assert connection.exchange((GET + b"\r\n").replace(b"HTTP/1.1", b"HTTP/1.2")).status == 200


def test_white_space_around_the_parts_of_a_chunk_extension_is_read_past(server):
    with server.raw() as connection:
        chunks = b'Transfer-Encoding: chunked\r\n\r\n5 ;\ta = "b c"\t; d\r\nhello\r\n0\r\n\r\n'
        assert connection.exchange(GET + chunks).status == 200
        assert connection.exchange(GET + b"\r\n").status == 200


def test_options_tells_the_methods(server):
    with server.raw() as connection:
        for target in (HEALTH, "*"):
            answer = connection.exchange(request_bytes("OPTIONS", target))
            assert answer.status == 204
            assert "GET" in answer.headers["allow"]


def test_head_is_get_without_the_body(server):
    with server.raw() as connection:
        full = connection.exchange(request_bytes("GET", HEALTH))
        bare = connection.exchange(request_bytes("HEAD", HEALTH), "HEAD")
        assert bare.status == 200 and bare.headers["content-length"] == full.headers["content-length"]
        assert connection.exchange(GET + b"\r\n").status == 200


@pytest.mark.tsan
def test_pipelined_answers_come_in_order(server):
    targets = [HEALTH, "/nothing", HEALTH, "/actuator/prometheus"] * 25
    with server.raw() as connection:
        connection.send(b"".join(request_bytes("GET", target) for target in targets))
        statuses = [connection.read_response().status for _ in targets]
    assert statuses == [404 if target == "/nothing" else 200 for target in targets]


def test_a_half_closed_client_still_gets_its_answer(server):
    with server.raw() as connection:
        connection.send(GET + b"\r\n" + GET + b"\r\n")
        connection.finish()
        assert connection.read_response().status == 200
        assert connection.read_response().status == 200
        assert connection.is_closed()


@pytest.mark.parametrize("headers, closes", [(b"", True), (b"Connection: keep-alive\r\n", False)])
def test_http_1_0(server, headers, closes):
    with server.raw() as connection:
        answer = connection.exchange(b"GET " + HEALTH.encode() + b" HTTP/1.0\r\n" + headers + b"\r\n")
        assert answer.status == 200
        assert answer.headers["connection"] == ("close" if closes else "keep-alive")
        if closes:
            assert connection.is_closed()
        else:
            assert connection.exchange(GET + b"\r\n").status == 200


def test_c6_a_head_that_dribbles_is_408_although_bytes_keep_coming(serve, module_refdata_db):
    server = serve(module_refdata_db, pod("COUNTRY", http={"limits": {"headerTimeout": "300ms"}}))
    with server.raw() as connection:
        connection.socket.settimeout(0.05)
        connection.send(b"GET / HTTP/1.1\r\nX: ")
        answer = None
        for _ in range(200):
            try:
                connection.send(b"x")
                answer = connection.read_response()
                break
            except TimeoutError:
                continue
        assert_error(answer, 408)


def test_a_get_with_a_body_is_read_past(server):
    with server.raw() as connection:
        body = b"GET /smuggled HTTP/1.1\r\n\r\n"
        assert connection.exchange(request_bytes("GET", HEALTH, body=body)).status == 200
        chunks = b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: v\r\n\r\n"
        assert connection.exchange(GET + chunks).status == 200
        assert connection.exchange(GET + b"\r\n").status == 200


def test_date_and_metrics(server):
    with server.raw() as connection:
        answer = connection.exchange(GET + b"\r\n")
        assert answer.headers["date"].endswith(" GMT") and len(answer.headers["date"]) == 29
    samples = server.metrics()
    assert samples['http_requests_total{method="GET",route="/actuator/health/liveness",status="200"}'] >= 1
    assert samples['http_request_duration_seconds_count{route="/actuator/health/liveness"}'] >= 1
    assert samples["http_connections"] >= 1
    assert "http_parse_errors_total" in samples
