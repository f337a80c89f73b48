"""R4: many items by their keys, in one answer and of one version."""
import json
import threading

import pytest

from lib.refdata import (LabelWriter, keys_path, labelled, make_table, module_refdata_db, path, pod,  # noqa: F401
                         refdata_db, set_version, sql_dictionary)
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    make_table(module_refdata_db, "small", {k: json.dumps(k) for k in ["a", "b", "c", "a,b", "x y", "x+y", "%2C"]})
    module_refdata_db.query("""
        create table big (tenant_id text, k text, v jsonb, primary key (tenant_id, k));
        insert into big select 'demo', 'b' || i, to_jsonb(i || repeat('z', 20000)) from generate_series(1, 1000) i""")
    set_version(module_refdata_db, "SMALL", 7)
    set_version(module_refdata_db, "BIG", 3)
    return module_serve(module_refdata_db, pod(sql_dictionary("SMALL"), sql_dictionary("BIG")))


@pytest.fixture
def client(server, token):
    with server.client(token()) as client:
        yield client


def test_items_come_in_the_order_asked_with_duplicates_and_what_is_missing(client):
    """R4: order, duplicates, missing."""
    answer = client.get(keys_path("SMALL", ["c", "nobody", "a", "c", "nothing", "b", "nobody"]))
    assert answer.json() == {
        "version": 7,
        "items": [{"key": k, "payload": k} for k in "cacb"],
        "missing": ["nobody", "nothing", "nobody"],
    }
    assert answer.headers["x-dict-version"] == "7"
    assert answer.headers["x-data-source"] == "memory"


def test_a_comma_inside_a_key_is_escaped(client):
    """R4: %2C is part of a key, a comma stands between keys; a plus is a space."""
    assert client.get(path("SMALL", "/items?keys=a%2Cb,a,b")).json()["items"] == \
        [{"key": k, "payload": k} for k in ["a,b", "a", "b"]]
    assert client.get(path("SMALL", "/items?keys=%252C,x+y,x%20y,x%2By")).json()["items"] == \
        [{"key": k, "payload": k} for k in ["%2C", "x y", "x y", "x+y"]]


def test_a_list_may_be_given_in_parts(client):
    """Issue 15, 4: `keys=a&keys=b`, as generated clients write a list, is `keys=a,b`; a comma inside a key stays %2C."""
    for query in ("keys=a,b&keys=a%2Cb", "keys=a&keys=b&keys=a%2Cb", "keys=a&k%65ys=b,a%2Cb"):
        assert [each["key"] for each in client.get(path("SMALL", f"/items?{query}")).json()["items"]] == ["a", "b", "a,b"]
    many = "&".join(["keys=a"] * 1000)
    assert len(client.get(path("SMALL", f"/items?{many}")).json()["items"]) == 1000
    assert client.get(path("SMALL", f"/items?{many}&keys=a")).status == 400


def test_missing_keys_are_escaped_as_json(client):
    """R4: nothing a client sends can break the answer."""
    odd = ['"', "\\", "\n\x01\x7f", "</script>", "\u2028", "\U0001f600", '"],"version":8']
    assert client.get(keys_path("SMALL", odd)).json()["missing"] == odd


@pytest.mark.parametrize("query", [
    "", "?", "?keys", "?keys=", "?keys=,", "?keys=a,", "?keys=,a", "?keys=a,,b", "?keys=%", "?keys=a,%zz", "?keys=%00",
    "?keys=%FF", "?keys=a&keys=", "?keys&keys=a", "?key=a", "?keys=a&limit=1", "?KEYS=a", "?keys=" + "x" * 1025,
])
def test_a_bad_list_is_400_naming_the_parameter(client, query):
    """C6, R4: the query is checked whole."""
    answer = client.get(path("SMALL", "/items" + query))
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")
    assert client.get(keys_path("SMALL", ["a"])).status == 200


def test_a_thousand_keys_are_fine_and_one_more_is_not(client):
    """R4: at most 1,000 keys."""
    answer = client.get(keys_path("SMALL", ["a"] * 1000)).json()
    assert len(answer["items"]) == 1000 and answer["missing"] == []
    assert len(client.get(keys_path("SMALL", [f"n{i}" for i in range(1000)])).json()["missing"]) == 1000
    answer = client.get(keys_path("SMALL", ["a"] * 1001))
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")


def test_an_answer_of_many_megabytes_comes_whole(client):
    """R4: what does not fit a socket's buffer is streamed, the missing ones behind it."""
    keys = [f"b{i}" for i in range(1, 1000)] + ['no"body']
    answer = client.get(keys_path("BIG", keys))
    assert len(answer.body) > 19_000_000
    parsed = answer.json()
    assert [item["key"] for item in parsed["items"]] == keys[:-1]
    assert all(item["payload"] == item["key"][1:] + "z" * 20000 for item in parsed["items"])
    assert parsed["missing"] == ['no"body'] and parsed["version"] == 3
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_a_large_answer_pipelined_between_small_ones_keeps_its_place(server, token):
    """R4: a streamed answer does not overtake or swallow its neighbours."""
    auth = {"Authorization": f"Bearer {token()}"}
    small = request_bytes("GET", keys_path("SMALL", ["a"]), auth)
    big = request_bytes("GET", keys_path("BIG", [f"b{i}" for i in range(1, 301)] + ["gone"]), auth)
    connection = server.raw()
    connection.send((small + big) * 3 + small)
    sizes = [len(connection.read_response().json()["items"]) for _ in range(7)]
    assert sizes == [1, 300, 1, 300, 1, 300, 1]


def test_a_reader_that_leaves_in_the_middle_harms_nobody(server, token, client):
    """R4, C6: the snapshot is let go with the connection."""
    auth = {"Authorization": f"Bearer {token()}"}
    for _ in range(10):
        connection = server.raw()
        connection.send(request_bytes("GET", keys_path("BIG", [f"b{i}" for i in range(1, 500)]), auth))
        connection.read_head()
        connection.close()
    assert client.get(keys_path("SMALL", ["a"])).status == 200


@pytest.mark.tsan
def test_every_answer_is_of_one_version_while_versions_are_swapped(serve, refdata_db, token):
    """R4, R13: items and X-Dict-Version all say the same version, whatever a writer does meanwhile."""
    server = serve(refdata_db, pod(labelled(refdata_db, "L", 400), cache={"sweepInterval": "10ms"}))
    keys = [f"k{i:06}" for i in range(0, 400, 3)]
    seen, wrong = set(), []

    def read(stop):
        with server.client(token()) as client:
            while not stop.is_set():
                answer = client.get(keys_path("L", keys))
                labels = {item["payload"]["label"] for item in answer.json()["items"]}
                version = answer.json()["version"]
                if labels != {version} or answer.headers["x-dict-version"] != str(version) or answer.json()["missing"]:
                    wrong.append((version, labels))
                seen.add(version)

    stop = threading.Event()
    readers = [threading.Thread(target=read, args=(stop,)) for _ in range(3)]
    with LabelWriter(refdata_db, "L", "l"):
        for reader in readers:
            reader.start()
        try:
            eventually(lambda: len(seen) > 10 or wrong)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert not wrong
