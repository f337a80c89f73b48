"""The harness itself: a reader that accepted anything would make every other test worthless."""
import socket

import jwt
import pytest

from lib import freshet, tokens
from lib.config import merge, to_yaml
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes


@pytest.fixture
def answers():
    """answers(bytes) is a RawConnection on which the peer has said just that, and then closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def say(data):
            connection = RawConnection(listener.getsockname()[1], timeout=5)
            peer, _ = listener.accept()
            with peer:
                peer.sendall(data)
            return connection

        yield say


def test_pipelined_answers_are_read_one_by_one(answers):
    connection = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
                         b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ncd\r\n1\r\ne\r\n0\r\n\r\n"
                         b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"
                         b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nend")
    read = [connection.read_response() for _ in range(4)]
    assert [(r.status, r.body) for r in read] == [(200, b"ab"), (200, b"cde"), (304, b""), (400, b"end")]


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nno length",
])
def test_a_malformed_answer_is_not_accepted(answers, data):
    with pytest.raises(AssertionError):
        answers(data).read_response()


def test_an_answer_cut_short_is_not_accepted(answers):
    with pytest.raises(EOFError):
        answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort").read_response()


def test_a_closed_connection_is_told_from_one_with_more_to_say(answers):
    assert answers(b"").is_closed()
    assert not answers(b"x").is_closed()


def test_request_bytes():
    assert request_bytes("POST", "/x", {"A": "b"}, b"hi") == \
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nA: b\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize("alg", ["EdDSA", "RS256", "ES256", "HS256"])
def test_minted_tokens_verify_with_the_published_key(alg):
    key = tokens.Key(alg)
    public = jwt.PyJWK(key.jwk).key
    read = jwt.decode(tokens.mint(key, "acme"), public, [alg], audience=tokens.AUDIENCE, issuer=tokens.ISSUER)
    assert read["tenant_id"] == "acme"


def test_configuration_is_written_as_nested_yaml():
    config = merge({"a": {"b": 1, "c": [True, {"d": "x\ny"}]}, "gone": 1}, {"a": {"b": 2}, "gone": None, "e": []})
    assert to_yaml(config) == 'a:\n  b: 2\n  c:\n    - true\n    -\n      d: "x\\ny"\ne: []\n'


def test_eventually_tells_what_was_wrong_last():
    def never():
        assert 1 == 2, "still wrong"

    with pytest.raises(AssertionError, match="still wrong"):
        eventually(never, timeout=0)
    with pytest.raises(AssertionError, match="was still 0"):
        eventually(lambda: 0, timeout=0)
    seen = iter([None, "done"])
    assert eventually(lambda: next(seen)) == "done"


@pytest.mark.tsan
def test_a_server_starts_answers_and_stops_cleanly(serve, database, token):
    server = serve(database)
    with server.client(token()) as client:
        assert client.get("/actuator/health").status == 200
        assert client.get("/v1/tenants/demo/dictionaries/NONE/version").code == "UNKNOWN_DICTIONARY"
    assert server.raw().exchange(request_bytes("GET", "/v1/tenants/demo/dictionaries/NONE/version")).status == 401
    assert any(name.startswith("http_") for name in server.metrics())
    assert server.logs(), "it logs"
    server.stop()
    assert server.process.returncode == 0


def test_the_harness_notices_a_server_that_dies(serve, database):
    server = serve(database)
    server.process.send_signal(6)
    server.process.wait()
    with pytest.raises(AssertionError):
        server.stop()


def test_a_command_runs_to_its_end():
    assert freshet.run("--help").returncode == 0
