"""Issue 15, point 4: which answers are compressed, for whom, and what a compressed one costs the others."""
import gzip
import json
import re
import socket
import subprocess
import time

import pytest

from lib.certs import Authority
from lib.chat import Session
from lib.ops import READ
from lib.refdata import TENANT, generate, item_path, keys_path, lines_of, module_refdata_db, path, pod, set_version  # noqa: F401
from lib.refdata import sql_dictionary, write_builtin
from lib.wait import eventually
from lib.wire import request_bytes

COUNT = 30_000
NDJSON = "application/x-ndjson"
REQUESTS, UNSENT = ('freshet_memory_used_bytes{account="%s"}' % account for account in ("requests", "unsent"))
LIVENESS = request_bytes("GET", "/actuator/health/liveness")
FIXED = ["/console", "/console/app.js", "/console/app.css", "/openapi.yaml"]
STREAMED = [path("MANY", "/all"), path("MANY", "/all?limit=10000"), path("TEXTS", "/all?limit=3")]


@pytest.fixture(scope="module")
def filled(module_refdata_db):  # noqa: F811
    """MANY compresses well, RANDOM hardly: its compressed form is several megabytes."""
    generate(module_refdata_db, "many", COUNT, "jsonb_build_object('name', 'Item ' || i, 'active', i % 2 = 0, 'rank', i)")
    generate(module_refdata_db, "random", 10_000,
             "to_jsonb((select string_agg(md5(i::text || j), '') from generate_series(1, 20) j))")
    generate(module_refdata_db, "texts", 4, "to_jsonb(repeat('🌍é\\\"', 70000))")
    for code in ("MANY", "RANDOM", "TEXTS"):
        set_version(module_refdata_db, code, 1)
    write_builtin(module_refdata_db, "FEW", {"a": 1}, 1)
    return module_refdata_db


def settings(**http):
    return pod("FEW", *map(sql_dictionary, ["MANY", "RANDOM", "TEXTS"]), http=http)


@pytest.fixture(scope="module")
def server(module_serve, filled):
    return module_serve(filled, settings(loops=1))


@pytest.fixture
def client(server, token):
    with server.client(token()) as client:
        yield client


def head(token, accept=None, encoding="gzip"):
    fields = {"Authorization": f"Bearer {token}", "Accept-Encoding": encoding}
    return {**fields, "Accept": accept} if accept else fields


def is_packed(answer):
    assert answer.headers.get("content-encoding", "gzip") == "gzip"
    assert ("content-encoding" in answer.headers) == (answer.body[:2] == b"\x1f\x8b")
    return "content-encoding" in answer.headers


# ---- what is compressed ----

@pytest.mark.parametrize("target", FIXED + STREAMED)
def test_both_forms_have_the_same_content(client, target):
    plain, packed = client.get(target), client.get(target, Accept_Encoding="gzip, deflate, br, zstd")
    assert (plain.status, packed.status) == (200, 200)
    assert not is_packed(plain) and is_packed(packed)
    assert gzip.decompress(packed.body) == plain.body and len(packed.body) < len(plain.body) / 2
    assert plain.headers["content-type"] == packed.headers["content-type"]
    for answer in (plain, packed):
        assert "Accept-Encoding" in answer.headers["vary"].split(", ")


@pytest.mark.parametrize("code", ["MANY", "RANDOM", "TEXTS"])
@pytest.mark.tsan
def test_a_whole_dictionary_as_lines(client, code):
    target = path(code, "/all")
    plain, packed = (client.get(target, Accept=NDJSON, Accept_Encoding=coding) for coding in ("identity", "gzip"))
    assert int(plain.headers["content-length"]) == len(plain.body) and packed.headers["transfer-encoding"] == "chunked"
    assert not is_packed(plain) and is_packed(packed) and gzip.decompress(packed.body) == plain.body
    assert packed.headers["content-type"] == NDJSON and len(packed.body) < len(plain.body)
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept, Accept-Encoding"
    if code == "MANY":
        assert len(lines_of(gzip.decompress(packed.body))) == COUNT


def test_pages_follow_each_other(client):
    keys, query = [], "?limit=7000"
    while query:
        answer = client.get(path("MANY", "/all" + query), Accept_Encoding="gzip")
        page = json.loads(gzip.decompress(answer.body))
        keys += [item["key"] for item in page["items"]]
        query = page["nextCursor"] and f"?limit=7000&cursor={page['nextCursor']}"
    assert keys == [f"k{i:06}" for i in range(COUNT)]


def test_metrics(client):
    packed, plain = client.get("/actuator/prometheus", Accept_Encoding="gzip"), client.get("/actuator/prometheus")
    assert is_packed(packed) and not is_packed(plain) and int(packed.headers["content-length"]) == len(packed.body)
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    names = [{line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
             for text in (plain.body, gzip.decompress(packed.body))]
    assert names[0] and names[0] <= names[1] | {"http_request_duration_seconds"}


def test_curl_reads_it(server, token):
    done = subprocess.run(["curl", "-sS", "--compressed", "-H", f"Authorization: Bearer {token()}", "-H", f"Accept: {NDJSON}",
                           f"http://127.0.0.1:{server.port}{path('MANY', '/all')}"], capture_output=True, check=True)
    assert len(lines_of(done.stdout)) == COUNT


def test_answers_of_one_item_or_person_short_ones_and_errors_are_not(server, token):
    """Compressed, their length would tell about what is in them (BREACH)."""
    bearer = token(TENANT, scope=READ)
    texts = "k000000"
    with Session(server, bearer) as chat, server.client(bearer) as client:
        chat.say("x" * 5000)
        targets = [item_path("TEXTS", texts), keys_path("TEXTS", [texts]), path("TEXTS", "/version"), path("FEW", "/all"),
                   path("NONE", "/all"), path("MANY", "/all?limit=0"), "/v1/ops/overview", "/v1/ops/config", "/actuator/health",
                   f"/my/projects/{chat.project}/chat/{chat.session}/messages", "/console/none.js", "/none"]
        for target in targets:
            answer = client.get(target, Accept_Encoding="gzip")
            assert answer.body and not is_packed(answer), target
            assert ("Accept-Encoding" in answer.headers.get("vary", "")) == (target == path("FEW", "/all")), target


# ---- for whom ----

@pytest.mark.parametrize("value, packed", [
    ("gzip", True), ("x-gzip", True), ("GZIP", True), ("*", True), ("br, gzip;q=0.001", True), ("gzip, identity", True),
    ("gzip;q=0.5, identity;q=0.5", True), ("identity;q=0, *", True), (",gzip,", True), ("gzip" + ",br" * 31, True),
    ("", False), ("identity", False), ("gzip;q=0", False), ("*;q=0", False), ("gzip;q=0, *", False), ("br", False),
    ("gzip;q=0.5, identity", False), ("gzip, gzip;q=0", False), ("gzip" + ",br" * 32, False), ("gzip, ;q=1", False),
    ("gzip;q=2", False), ("gzip;level=1", False), ("gzip;q=0.1234", False), ("gzip br", False), ("gzip, \"br\"", False),
])
def test_the_client_decides(client, value, packed):
    for target in ("/console/app.js", path("MANY", "/all")):
        answer = client.get(target, Accept_Encoding=value)
        assert answer.status == 200 and is_packed(answer) == packed


def test_several_lines_are_one_list(server, token):
    with server.raw() as connection:
        for lines, packed in [(["br", "gzip"], True), (["gzip", "gzip;q=0"], False), (["gzip", "identity, gzip;q=0.1"], False)]:
            fields = b"".join(f"Accept-Encoding: {line}\r\n".encode() for line in lines)
            request = request_bytes("GET", path("MANY", "/all"), {"Authorization": f"Bearer {token()}"})
            answer = connection.exchange(request.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n"))
            assert is_packed(answer) == packed


@pytest.mark.parametrize("target", FIXED)
def test_a_tag_of_either_form_is_answered_304(client, target):
    tags = [client.get(target, Accept_Encoding=coding).headers["etag"] for coding in ("identity", "gzip")]
    assert tags[0] != tags[1] and all(re.fullmatch(r'"[0-9a-f]{32}(-gzip)?"', tag) for tag in tags)
    for tag in tags:
        for coding in ("identity", "gzip"):
            answer = client.get(target, If_None_Match=f'"other", {tag}', Accept_Encoding=coding)
            assert (answer.status, answer.headers["etag"], answer.body) == (304, tag, b"")
            assert answer.headers["vary"] == "Accept-Encoding" and "content-encoding" not in answer.headers
    assert client.get(target, If_None_Match='"other"', Accept_Encoding="gzip").status == 200


@pytest.mark.parametrize("target", [*FIXED, *STREAMED, "/actuator/prometheus"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_head_has_the_fields_of_get_and_ranges_are_ignored(client, target, coding):
    got = client.get(target, Accept_Encoding=coding, Range="bytes=0-9")
    told = client.request("HEAD", target, headers={"Accept-Encoding": coding})
    assert (got.status, told.status, told.body) == (200, 200, b"")
    varying = {"date", "content-length"} if "prometheus" in target else {"date"}
    assert {name: value for name, value in told.headers.items() if name not in varying} == \
           {name: value for name, value in got.headers.items() if name not in varying}


def test_http_1_0_gets_streams_with_their_length(server, token):
    """It has no chunks; a file has a length in both forms."""
    for target, packed in [(path("MANY", "/all"), False), ("/openapi.yaml", True)]:
        with server.raw() as connection:
            request = request_bytes("GET", target, head(token())).replace(b"HTTP/1.1", b"HTTP/1.0")
            answer = connection.exchange(request)
            assert is_packed(answer) == packed and int(answer.headers["content-length"]) == len(answer.body)


# ---- beside others ----

def begin_all(server, bearer, code="RANDOM"):
    """A client that has asked for a whole dictionary and reads little of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    connection.settimeout(30)
    connection.sendall(request_bytes("GET", path(code, "/all"), head(bearer, NDJSON)))
    assert connection.recv(1)
    return connection


def settled(server):
    """The memory of requests when no other one is there."""
    seen = []

    def is_steady():
        seen.append((server.metrics()[REQUESTS], server.metrics()[UNSENT]))
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]
    eventually(is_steady)
    return seen[-1]


@pytest.mark.tsan
def test_clients_that_leave_or_stop_reading_leave_nothing(server, token):
    for connection in [begin_all(server, token()) for _ in range(12)]:
        connection.close()  # the memory of their requests is kept for those that follow
    before = settled(server)
    readers = [begin_all(server, token()) for _ in range(8)]
    eventually(lambda: server.metrics()[REQUESTS] >= before[0] + 8 * 32 * 1024)
    assert server.metrics()[UNSENT] <= 8 * 256 * 1024
    for connection in readers:
        connection.close()
    eventually(lambda: (server.metrics()[REQUESTS], server.metrics()[UNSENT]) == before)


def test_a_slow_reader_gets_all_of_it(server, token):
    before = settled(server)
    with begin_all(server, token()) as connection:
        received = b"H"
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += connection.recv(65536)
            if len(received) % 7 == 0:
                time.sleep(0.002)
    chunks = received.partition(b"\r\n\r\n")[2]
    body = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        body, chunks = body + chunks[:int(size, 16)], chunks[int(size, 16) + 2:]
    assert len(lines_of(gzip.decompress(body))) == 10_000
    eventually(lambda: (server.metrics()[REQUESTS], server.metrics()[UNSENT]) == before)


def test_others_are_answered_while_large_ones_are_compressed(server, token):
    """There is one loop. Requests behind one on its connection are answered after it."""
    request = request_bytes("GET", path("RANDOM", "/all"), head(token(), NDJSON))
    with server.raw() as other, server.raw() as large:
        large.send(request * 4 + LIVENESS)
        times = []
        for _ in range(50):
            begun = time.monotonic()
            assert other.exchange(LIVENESS).status == 200
            times.append(time.monotonic() - begun)
        bodies = {large.read_response().body for _ in range(4)}
        assert len(bodies) == 1 and large.read_response().status == 200
    assert sorted(times)[25] < 0.05


def test_a_stop_lets_a_compressed_answer_end(serve, filled, token):
    server = serve(filled, settings(loops=1, stopTimeout="20s"))
    with begin_all(server, token()) as connection:
        server.process.terminate()
        eventually(lambda: server.logs(event="stopping"))
        received = b""
        while more := connection.recv(65536):
            received += more
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert server.process.wait(60) == 0


def test_over_tls(serve, filled, token, tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.server("server")
    server = serve.make(filled, settings(tls={"certFile": str(cert), "keyFile": str(key)}))
    server.tls = authority.trust()
    server.start()
    with server.client(token()) as client:
        plain, packed = (client.get(path("RANDOM", "/all"), Accept=NDJSON, Accept_Encoding=coding) for coding in ("br", "gzip"))
        assert is_packed(packed) and gzip.decompress(packed.body) == plain.body


def test_one_setting_turns_it_off(serve, filled, token):
    server = serve(filled, settings(gzip=False))
    with server.client(token()) as client:
        for target in [*FIXED, *STREAMED, "/actuator/prometheus"]:
            answer = client.get(target, Accept_Encoding="gzip")
            assert answer.status == 200 and not is_packed(answer), target
            assert "Accept-Encoding" not in answer.headers.get("vary", "")
