"""R3: one item by its key."""
import json
from urllib.parse import quote

import pytest

from lib.refdata import item_path, make_table, module_refdata_db, path, pod, set_version, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

ODD_KEYS = [
    "RU", "a b", "a+b", "a/b", "a,b", "a%b", "%2F", "%", "a&b=c", "a?b#c", "a;b", "a:b@c", "~-._", "'quoted'", '"',
    "\\",
    "{}[]<>|^`", "\t", "\n", "\r\n", "\x01\x1f\x7f", "é", "e\u0301", "Россия", "日本", "\U0001f600", "\u202e\u200d",
    "\uffff", "\U0010ffff", "items", "..", "$1", "'; drop table odd; --", " leading", "trailing ", "x" * 1024, "é" * 512,
]
PAYLOADS = {
    "past int64": "9223372036854775809",
    "exact fraction": "0.1",
    "many digits": "3.14159265358979323846264338327950288419716939937510",
    "huge": "1e400",
    "negative zero": "-0.0",
    "nested": '{"a": [1, {"b": [[], {}, null]}], "c": {"d": true, "e": false}}',
    "text": '"plain"',
    "null": "null",
    "unicode": '"\\u00e9 é 日本 \\ud83d\\ude00 \U0001f600"',
    "escapes": '"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001"',
    "repeated names": '{"a": 1, "a": 2}',
    "spaces": '{ "a" : [ 1 , 2 ] }',
}


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    make_table(module_refdata_db, "odd", {key: json.dumps({"is": key}) for key in ODD_KEYS})
    make_table(module_refdata_db, "exact", PAYLOADS, "json")
    make_table(module_refdata_db, "exact_b", PAYLOADS, "jsonb")
    make_table(module_refdata_db, "changing", {"a": "1"})
    for number, code in enumerate(["ODD", "EXACT", "EXACT_B", "CHANGING"], start=1):
        set_version(module_refdata_db, code, number)
    dictionaries = map(sql_dictionary, ["ODD", "EXACT", "EXACT_B", "CHANGING"])
    return module_serve(module_refdata_db, pod(*dictionaries, "NEVER_WRITTEN"))


@pytest.fixture
def client(server, token):
    with server.client(token()) as client:
        yield client


@pytest.mark.tsan
def test_an_item_is_its_key_and_payload_with_version_source_and_tag(client):
    """R3, R7: body, Content-Type, X-Dict-Version, X-Data-Source, ETag."""
    answer = client.get(item_path("ODD", "RU"))
    assert (answer.status, answer.json()) == (200, {"key": "RU", "payload": {"is": "RU"}})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-dict-version"] == "1"
    assert answer.headers["x-data-source"] == "memory"
    assert answer.headers["etag"].startswith('"') and answer.headers["etag"].endswith('"')


@pytest.mark.parametrize("odd", ODD_KEYS, ids=lambda odd: ascii(odd)[:40])
def test_any_utf8_key_up_to_1024_bytes_is_found_percent_encoded(client, odd):
    """R3: keys are any UTF-8, percent-encoded."""
    answer = client.get(item_path("ODD", odd))
    assert (answer.status, answer.json()) == (200, {"key": odd, "payload": {"is": odd}})
    everything_escaped = "".join(f"%{byte:02x}" for byte in odd.encode())
    assert client.get(path("ODD", "/items/" + everything_escaped)).body == answer.body


def test_a_plus_in_a_path_is_a_plus(client):
    """R3: only a query's plus is a space."""
    assert client.get(path("ODD", "/items/a+b")).json()["key"] == "a+b"


def test_a_missing_key_is_404_and_still_says_version_and_source(client):
    """R3, R7: 404 ITEM_NOT_FOUND is a data answer."""
    for key in ["ru", "RU ", "R"]:
        answer = client.get(item_path("ODD", key))
        assert (answer.status, answer.code) == (404, "ITEM_NOT_FOUND")
        assert answer.headers["x-dict-version"] == "1"
        assert answer.headers["x-data-source"] == "memory"
        assert "etag" not in answer.headers


@pytest.mark.parametrize("raw", [
    "x" * 1025, "%C3%A9" * 513, "%00", "a%00b", "%80", "%C3", "%C0%AF", "%ED%A0%80", "%F4%90%80%80", "%FF", "%", "%4",
    "%zz", "%%41", "%u0041",
])
def test_a_bad_key_is_400_naming_the_key_and_the_connection_goes_on(client, raw):
    """C6: over 1,024 bytes, NUL, invalid UTF-8 and bad escapes are clear 4xx."""
    answer = client.get(path("ODD", "/items/" + raw))
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")
    assert "key" in answer.body.decode()
    assert client.get(item_path("ODD", "RU")).status == 200


def test_an_empty_key_is_no_item(client):
    """R3: keys have 1 to 1,024 bytes."""
    answer = client.get(path("ODD", "/items/"))
    assert answer.status in (400, 404) and answer.code in ("BAD_REQUEST", "NOT_FOUND")


def test_an_escaped_slash_is_not_a_path_of_its_own(client):
    """R3: routing happens before decoding."""
    assert client.get(path("ODD", "/items/a%2Fb")).json()["key"] == "a/b"
    answer = client.get(path("ODD", "/items/a/b"))
    assert (answer.status, answer.code) == (404, "NOT_FOUND")
    assert client.get("/v1/tenants/demo/dictionaries/ODD%2Fitems%2FRU").code in ("NOT_FOUND", "BAD_REQUEST")


def test_a_payload_of_type_json_is_served_byte_for_byte(client):
    """R3: a payload is carried as the bytes that came."""
    for key, text in PAYLOADS.items():
        answer = client.get(item_path("EXACT", key))
        assert answer.body == b'{"key":' + json.dumps(key).encode() + b',"payload":' + text.encode() + b"}"


def test_a_payload_of_type_jsonb_keeps_every_digit(client, module_refdata_db):
    """R3: numbers past 2^63 and past a double's range survive."""
    for key, text in module_refdata_db.query("select k, v::text from exact_b"):
        answer = client.get(item_path("EXACT_B", key))
        assert answer.body == b'{"key":' + json.dumps(key).encode() + b',"payload":' + text.encode() + b"}"
    assert len(client.get(item_path("EXACT_B", "huge")).body) > 400


@pytest.mark.parametrize("shape", [
    "{tag}", "W/{tag}", '"other", {tag}', '"a,b",W/"c" , {tag},"d"', "*", " {tag} ",
])
def test_a_tag_that_matches_is_304_without_a_body(client, shape):
    """R3: If-None-Match as a list, weak, or a star."""
    tag = client.get(item_path("ODD", "RU")).headers["etag"]
    answer = client.get(item_path("ODD", "RU"), If_None_Match=shape.format(tag=tag))
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["etag"] == tag
    assert answer.headers["x-dict-version"] == "1"
    assert answer.headers["x-data-source"] == "memory"


@pytest.mark.parametrize("shape", ['"other"', '"{bare}x"', '"x{bare}"', "{bare}", '"{bare}', "", '"', "W/", "**", ",,,"])
def test_a_tag_that_does_not_match_is_200(client, shape):
    """R3: what is no match, or no tag at all, is no 304."""
    tag = client.get(item_path("ODD", "RU")).headers["etag"]
    answer = client.get(item_path("ODD", "RU"), If_None_Match=shape.format(bare=tag.strip('"')))
    assert answer.status == 200


def test_tags_are_by_content(client, module_refdata_db):
    """R3: equal content has an equal tag over versions, other content another one."""
    first = client.get(item_path("CHANGING", "a"))
    module_refdata_db.query("update changing set v = '2'")
    set_version(module_refdata_db, "CHANGING", 10)
    eventually(lambda: client.get(item_path("CHANGING", "a")).headers["x-dict-version"] == "10")
    second = client.get(item_path("CHANGING", "a"), If_None_Match=first.headers["etag"])
    assert (second.status, second.json()["payload"]) == (200, 2)
    module_refdata_db.query("update changing set v = '1'")
    set_version(module_refdata_db, "CHANGING", 11)
    third = eventually(lambda: (lambda a: a if a.headers["x-dict-version"] == "11" else None)(
        client.get(item_path("CHANGING", "a"), If_None_Match=first.headers["etag"])))
    assert third.status == 304


def test_a_missing_key_is_404_whatever_tag_is_sent(client):
    """R3: there is nothing that could match."""
    assert client.get(item_path("ODD", "nobody"), If_None_Match="*").status == 404


@pytest.mark.parametrize("rest", ["/items/RU", "/items/nobody", "/items?keys=RU,nobody", "/all", "/all?limit=2", "/version"])
def test_head_is_get_without_the_body(server, token, rest):
    """R3–R6: HEAD answers with the headers of GET."""
    seen = {}
    for method in ["GET", "HEAD"]:
        answer = server.raw().exchange(
            request_bytes(method, path("ODD", rest), {"Authorization": f"Bearer {token()}"}), method)
        answer.headers.pop("date", None)
        seen[method] = (answer.status, answer.headers)
    assert seen["HEAD"] == seen["GET"]


@pytest.mark.parametrize("rest", ["/items/a", "/items?keys=a", "/all", "/version"])
def test_an_unknown_dictionary_is_404(client, rest):
    """R3: 404 UNKNOWN_DICTIONARY, on every route."""
    for code in ["NOBODY", "odd", "ODD.", "x" * 64]:
        answer = client.get(path(code, rest))
        assert (answer.status, answer.code) == (404, "UNKNOWN_DICTIONARY")
        assert "x-dict-version" not in answer.headers


@pytest.mark.parametrize("code", ["x" * 65, "a%20b", "a%2Fb", "%D0%A0", "a'b", "%22", "a%00"])
def test_a_name_no_dictionary_can_have_is_400(client, code):
    """C6: names are [A-Za-z0-9._-]{1,64}."""
    answer = client.get(path(code, "/items/a"))
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")


@pytest.mark.parametrize("code", ["NEVER_WRITTEN", "ODD"])
def test_a_dictionary_a_tenant_never_wrote_is_version_0_and_empty(server, token, code):
    """R3: known to the configuration, unknown to the tenant."""
    client = server.client(token("newcomer"))
    assert client.get(path(code, "/items/RU", "newcomer")).code == "ITEM_NOT_FOUND"
    version = client.get(path(code, "/version", "newcomer"))
    assert version.headers["x-dict-version"] == "0"
    assert (version.json()["version"], version.json()["itemCount"]) == (0, 0)
    page = client.get(path(code, "/all", "newcomer")).json()
    assert page == {"version": 0, "items": [], "nextCursor": None}
    assert client.get(path(code, "/items?keys=RU", "newcomer")).json() == {"version": 0, "items": [], "missing": ["RU"]}
    lines = client.get(path(code, "/all", "newcomer"), Accept="application/x-ndjson")
    assert (lines.status, lines.body) == (200, b"")


def test_only_reading_is_offered(client):
    """C6: 405 with Allow."""
    for method in ["POST", "PUT", "DELETE", "PATCH"]:
        answer = client.request(method, item_path("ODD", "RU"))
        assert (answer.status, answer.code) == (405, "METHOD_NOT_ALLOWED")
        assert "GET" in answer.headers["allow"] and "HEAD" in answer.headers["allow"]


def test_a_key_looks_the_same_in_a_path_and_in_a_list(client):
    """R3, R4: one decoding rule, but for the plus."""
    for key in ODD_KEYS:
        raw = quote(key, safe="")
        assert client.get(path("ODD", "/items?keys=" + raw)).json()["items"] == \
            [client.get(path("ODD", "/items/" + raw)).json()]
