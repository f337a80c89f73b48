"""R5: the whole dictionary, by pages and as one NDJSON stream."""
import json
import random
import threading

import pytest

from lib.refdata import (LabelWriter, generate, item_path, labelled, lines_of, make_table, module_refdata_db,  # noqa: F401
                         path, pod, refdata_db, rss_bytes, set_version, sql_dictionary)
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

KEYS = ["0", "9", "A", "B", "Z", "a", "aa", "ab", "b", "~", "\x01", "\x7f", "é", "ÿ", "Ж", "日", "\ue000", "\uffff",
        "\U00010000", "\U0001f600", "a\u0301", "a b", "a-b", "a_b", "aé"]
NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    shuffled = list(KEYS)
    random.Random(7).shuffle(shuffled)
    make_table(module_refdata_db, "mixed", {key: json.dumps({"n": i}) for i, key in enumerate(shuffled)})
    generate(module_refdata_db, "many", 12345, "to_jsonb(i)")
    make_table(module_refdata_db, "broken_lines",
               {"a": '{\n "x":\r\n [1,\n\n2]\t}', "b": '"no\\nbreak"', "c": "\n7\n"}, "json")
    for code, version in [("MIXED", 5), ("MANY", 6), ("BROKEN_LINES", 1)]:
        set_version(module_refdata_db, code, version)
    return module_serve(module_refdata_db, pod(*map(sql_dictionary, ["MIXED", "MANY", "BROKEN_LINES"])))


@pytest.fixture
def client(server, token):
    with server.client(token()) as client:
        yield client


def pages(client, code, limit):
    query = f"?limit={limit}"
    while query:
        page = client.get(path(code, "/all" + query)).json()
        yield page
        query = f"?limit={limit}&cursor={page['nextCursor']}" if page["nextCursor"] else None


@pytest.mark.parametrize("limit", [1, 2, 7, len(KEYS) - 1, len(KEYS), len(KEYS) + 1, 10000])
def test_pages_of_any_size_give_every_item_once_in_bytewise_key_order(client, limit):
    """R5: order is that of the keys' bytes, not of any locale; nextCursor is null on the last page only."""
    given = list(pages(client, "MIXED", limit))
    keys = [item["key"] for page in given for item in page["items"]]
    assert keys == sorted(KEYS, key=str.encode)
    assert all(len(page["items"]) == limit for page in given[:-1])
    assert all(page["version"] == 5 and "versionChanged" not in page for page in given)
    assert [page["nextCursor"] is None for page in given] == [False] * (len(given) - 1) + [True]


def test_a_page_is_1000_items_unless_asked_and_10000_at_most(client):
    """R5: default 1,000, at most 10,000."""
    assert len(client.get(path("MANY", "/all")).json()["items"]) == 1000
    assert [len(page["items"]) for page in pages(client, "MANY", 10000)] == [10000, 2345]


@pytest.mark.parametrize("query", [
    "limit=0", "limit=-1", "limit=10001", "limit=", "limit=ten", "limit=1.5", "limit=+5", "limit=%201",
    "limit=99999999999999999999", "limit=5&limit=5", "cursor=", "cursor=x", "cursor=5", "cursor=5.", "cursor=5.zz",
    "cursor=5.6", "cursor=.61", "cursor=-1.61", "cursor=9223372036854775808.61", "cursor=5.61.61",
    "cursor=5." + "61" * 1025, "offset=1",
    "cursor=%00",
])
def test_a_bad_limit_or_cursor_is_400_naming_it(client, query):
    """C6, R5."""
    for headers in [{}, {"Accept": NDJSON}]:
        answer = client.get(path("MIXED", "/all?" + query), **headers)
        assert (answer.status, answer.code) == (400, "BAD_REQUEST")
        assert query.split("=", maxsplit=1)[0] in answer.body.decode()


def test_a_cursor_that_was_tampered_with_gives_a_page_or_400_and_never_harm(client):
    """R5: a cursor is input like any other."""
    cursor = client.get(path("MIXED", "/all?limit=3")).json()["nextCursor"]
    for position in range(len(cursor)):
        for letter in "0fG.%25"[:5]:
            answer = client.get(path("MIXED", f"/all?limit=3&cursor={cursor[:position]}{letter}{cursor[position + 1:]}"))
            assert answer.status in (200, 400)
            assert answer.status == 400 or isinstance(answer.json()["items"], list)


def test_a_page_from_a_later_version_says_so(serve, refdata_db, token):
    """R5: the cursor carries its version."""
    generate(refdata_db, "t", 10, "to_jsonb(i)")
    set_version(refdata_db, "T", 1)
    client = serve(refdata_db, pod(sql_dictionary("T"))).client(token())
    first = client.get(path("T", "/all?limit=4")).json()
    assert [item["key"] for item in first["items"]] == [f"k{i:06}" for i in range(4)]
    refdata_db.query("delete from t where k in ('k000003', 'k000004', 'k000000');"
                     "insert into t values ('demo', 'k000003x', '0')")
    set_version(refdata_db, "T", 2)
    eventually(lambda: client.get(path("T", "/version")).json()["version"] == 2)
    second = client.get(path("T", f"/all?limit=4&cursor={first['nextCursor']}")).json()
    assert second["version"] == 2 and second["versionChanged"] is True
    assert [item["key"] for item in second["items"]] == ["k000003x", "k000005", "k000006", "k000007"]
    third = client.get(path("T", f"/all?limit=4&cursor={second['nextCursor']}")).json()
    assert "versionChanged" not in third or third["versionChanged"] is False
    assert [item["key"] for item in third["items"]] == ["k000008", "k000009"] and third["nextCursor"] is None


@pytest.mark.parametrize("accept", [
    NDJSON, f"application/json;q=0.5, {NDJSON}", f"{NDJSON};q=0.1", f"{NDJSON} ; q=1.000 ", "Application/X-NDJSON",
])
def test_ndjson_is_the_whole_dictionary_one_item_a_line(client, accept):
    """R5: one item a line, in key order."""
    answer = client.get(path("MANY", "/all"), Accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, NDJSON)
    assert answer.headers["x-dict-version"] == "6" and answer.headers["x-data-source"] == "memory"
    lines = lines_of(answer.body)
    assert lines == [{"key": f"k{i:06}", "payload": i} for i in range(12345)]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", f"{NDJSON};q=0", f"{NDJSON};q=0.000, */*", "text/html",
                                    f"application/json, {NDJSON};q=0.5", f"{NDJSON};q=0.1,application/json;q=0.2"])
def test_json_pages_unless_ndjson_is_asked_for(client, accept):
    """R5: a star means the page."""
    answer = client.get(path("MIXED", "/all"), **({"Accept": accept} if accept else {}))
    assert answer.headers["content-type"] == "application/json" and answer.headers["vary"] == "Accept, Accept-Encoding"
    assert answer.json()["version"] == 5


def test_line_breaks_inside_a_json_payload_do_not_break_lines(client):
    """R5: a column of type json keeps its text, line breaks between tokens included; a line stays an item."""
    answer = client.get(path("BROKEN_LINES", "/all"), Accept=NDJSON)
    assert lines_of(answer.body) == [
        {"key": "a", "payload": {"x": [1, 2]}}, {"key": "b", "payload": "no\nbreak"}, {"key": "c", "payload": 7}]
    assert answer.body.count(b"\n") == 3 and b"\r" not in answer.body


@pytest.mark.tsan
def test_a_stream_is_of_one_version_while_versions_are_swapped(serve, refdata_db, token):
    """R5, R13: every line of a stream, and every page, carries the version its header says."""
    server = serve(refdata_db, pod(labelled(refdata_db, "L", 2000, filler=300), cache={"sweepInterval": "10ms"}))
    seen, wrong = set(), []

    def read(stop, accept):
        with server.client(token()) as client:
            while not stop.is_set():
                answer = client.get(path("L", "/all?limit=2000"), Accept=accept)
                items = lines_of(answer.body) if accept == NDJSON else answer.json()["items"]
                labels = {item["payload"]["label"] for item in items}
                if labels != {int(answer.headers["x-dict-version"])} or len(items) != 2000:
                    wrong.append((answer.headers["x-dict-version"], labels, len(items)))
                seen.add(max(labels))

    stop = threading.Event()
    readers = [threading.Thread(target=read, args=(stop, accept)) for accept in [NDJSON, "*/*"]]
    with LabelWriter(refdata_db, "L", "l"):
        for reader in readers:
            reader.start()
        try:
            eventually(lambda: len(seen) > 5 or wrong)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert not wrong


def test_slow_readers_cost_no_memory_block_nobody_and_get_the_version_they_began(serve, refdata_db, token):
    """R5: memory bounded by the socket buffer; a stream keeps its snapshot while versions go on."""
    server = serve(refdata_db, pod(labelled(refdata_db, "L", 16000, filler=1000),
                                   http={"limits": {"writeTimeout": "1h"}}))
    client = server.client(token())
    assert client.get(path("L", "/version")).json()["itemCount"] == 16000
    before = rss_bytes(server.process)
    slow = [server.raw() for _ in range(30)]
    for connection in slow:
        connection.send(request_bytes("GET", path("L", "/all"), {
            "Authorization": f"Bearer {token()}", "Accept": NDJSON, "X-Reader": "slow"}))
        assert connection.read_head().headers["x-dict-version"] == "1"
    for _ in range(50):
        assert client.get(item_path("L", "k000001")).status == 200
    grown = rss_bytes(server.process) - before
    assert grown < 120 * 2**20, f"30 readers of 16 MB that read nothing cost {grown >> 20} MiB"

    writer = LabelWriter(refdata_db, "L", "l")
    with refdata_db.connect().cursor() as cursor:
        writer.write(cursor)
    eventually(lambda: client.get(item_path("L", "k000001")).headers["x-dict-version"] == "2")
    for connection in slow[1:]:
        connection.close()
    connection = slow[0]
    connection.buffer += connection.socket.recv(1 << 20)
    body = b""
    for _ in range(16000):
        while b"\n" not in connection.buffer:
            connection.buffer += connection.socket.recv(1 << 20)
        line, connection.buffer = connection.buffer.split(b"\n", 1)
        body = line
        assert b'"label": 1' in line
    assert json.loads(body)["key"] == "k015999"


def test_a_page_can_be_larger_than_any_buffer(serve, refdata_db, token):
    """R5: a page of megabytes is streamed with its length."""
    generate(refdata_db, "wide", 300, "to_jsonb(repeat('w', 50000) || i)")
    set_version(refdata_db, "WIDE", 1)
    client = serve(refdata_db, pod(sql_dictionary("WIDE"))).client(token())
    answer = client.get(path("WIDE", "/all"))
    assert int(answer.headers["content-length"]) == len(answer.body) > 15_000_000
    assert [item["payload"][50000:] for item in answer.json()["items"]] == [str(i) for i in range(300)]
