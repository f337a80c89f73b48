"""`freshet load`: a file becomes a chunked snapshot (R8), checked first, sent in parallel, and gone on with."""
import json
import subprocess

import pytest

from lib.fake_pod import FakePod
from lib.freshet import SANITIZER, binary, run

UNKNOWN = (404, {"code": "UNKNOWN_UPDATE", "message": "no update with this eventId"})
GONE = (503, {"code": "UNAVAILABLE", "message": "not available right now, try again"})


@pytest.fixture
def fake():
    with FakePod() as pod:
        yield pod


@pytest.fixture
def load(fake, tmp_path):
    """load(text, *options, name=…) writes the file and loads it."""
    def run_load(text, *options, name="items.ndjson"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return run("load", "demo", "COUNTRY", file, *options, "--url", fake.url, "--token", "x")
    return run_load


def lines(count, start=0):
    return "".join(json.dumps({"key": f"k{i}", "payload": {"i": i}}) + "\n" for i in range(start, start + count))


def items_of(fake):
    """What the pod was given, in the order of chunks; every chunk is checked on the way."""
    posts = sorted(fake.posts(), key=lambda post: post["chunkIndex"])
    assert [post["chunkIndex"] for post in posts] == list(range(1, posts[0]["chunksTotal"] + 1))
    assert len({post["snapshotId"] for post in posts}) == 1
    assert len({post["eventId"] for post in posts}) == len(posts)
    assert {(post["dictCode"], post["eventType"]) for post in posts} == {("COUNTRY", "SNAPSHOT")}
    return [item for post in posts for item in post["items"]]


# ---- files ----

def test_r8_a_file_becomes_chunks_of_one_snapshot(fake, load):
    done = load(lines(25), "--chunk-items", "10")
    assert done.returncode == 0 and done.stdout.startswith("version 1: 25 items in ") and done.stderr == ""
    assert items_of(fake) == [{"key": f"k{i}", "payload": {"i": i}} for i in range(25)]
    assert sorted(len(post["items"]) for post in fake.posts()) == [5, 10, 10]


@pytest.mark.tsan
def test_connections_are_kept(fake, load):
    """One to ask, and one for each chunk in flight."""
    assert load(lines(50), "--chunk-items", "1").returncode == 0
    assert len(fake.posts()) == 50 and fake.connection_count <= 5


def test_chunks_are_bounded_by_bytes_too(fake, load):
    assert load(lines(100), "--chunk-bytes", "500").returncode == 0
    sizes = [len(json.dumps(post["items"])) for post in fake.posts()]
    assert len(sizes) > 5 and max(sizes) < 1000 and len(items_of(fake)) == 100


def test_odd_lines_of_ndjson(fake, load):
    text = '\ufeff{"payload":1.50,"key":"\\u0436"}\r\n\n  \n{"key":"b","payload":null}'
    assert load(text).returncode == 0
    assert items_of(fake) == [{"key": "ж", "payload": 1.5}, {"key": "b", "payload": None}]


def test_csv_columns_are_string_members(fake, load):
    text = 'code,name,note\nDE,Germany,"a ""quoted"", b"\nFR,"France\nand more",\n\nJP,日本,x\n'
    assert load(text, name="items.csv").returncode == 0
    assert items_of(fake) == [{"key": "DE", "payload": {"name": "Germany", "note": 'a "quoted", b'}},
                              {"key": "FR", "payload": {"name": "France\nand more", "note": ""}},
                              {"key": "JP", "payload": {"name": "日本", "note": "x"}}]


def test_csv_key_column_and_format_are_options(fake, load):
    assert load("name,code\nGermany,DE\n", "--format", "csv", "--key-column", "code").returncode == 0
    assert items_of(fake) == [{"key": "DE", "payload": {"name": "Germany"}}]


def test_standard_input_that_cannot_be_read_twice(fake):
    done = subprocess.run([binary(), "load", "demo", "COUNTRY", "-", "--url", fake.url, "--token", "x"],
                          input=lines(30), text=True, capture_output=True, check=False)
    assert done.returncode == 0 and len(items_of(fake)) == 30 and not SANITIZER.search(done.stderr)


# ---- mistakes in files ----

@pytest.mark.parametrize("text, line, what", [
    (lines(3) + "{\n", 4, ""),
    (lines(1) + '\n["k",1]\n', 3, "a line is"),
    ('{"key":"k"}\n', 1, "a line is"),
    ('{"key":"k","payload":1,"op":"DELETE"}\n', 1, "nothing else"),
    ('{"key":"k","payload":1,"key":"l"}\n', 1, "each once"),
    ('{"key":7,"payload":1}\n', 1, "must be a string"),
    ('{"key":"","payload":1}\n', 1, "empty"),
    pytest.param(json.dumps({"key": "k" * 1025, "payload": 1}) + "\n", 1, "1024", id="long"),
    ('{"key":"a\\u0000","payload":1}\n', 1, "NUL"),
    ('{"key":"a","payload":["\\u0000"]}\n', 1, "u0000"),
    (b'{"key":"a","payload":"\xff"}\n', 1, ""),
])
def test_a_bad_line_is_named_and_nothing_is_sent(fake, load, text, line, what):
    done = load(text)
    assert (done.returncode, done.stdout, fake.requests) == (1, "", [])
    assert f"items.ndjson:{line}: " in done.stderr and what in done.stderr


@pytest.mark.parametrize("text, line, what", [
    ("", 1, "header"),
    ("a,a\n", 1, "same name"),
    ("a,\n", 1, "no name"),
    ("a,b\n1,2\n1\n", 3, "fewer"),
    ("a,b\n1,2,3\n", 2, "more"),
    ("a,b\n,2\n", 2, "empty"),
    ('a,b\n"1\n2",x\n3,"open\n\n', 4, "not closed"),
    ('a,b\n1,"x"y\n', 2, "after a closing quote"),
    ('a,b\n1,x"y"\n', 2, "not quoted"),
    (b"a,b\n1,\xff\n", 2, "UTF-8"),
    (b"a,b\n1,\x00\n", 2, "NUL"),
])
def test_a_bad_record_of_csv_is_named_and_nothing_is_sent(fake, load, text, line, what):
    done = load(text, name="items.csv")
    assert (done.returncode, done.stdout, fake.requests) == (1, "", [])
    assert f"items.csv:{line}: " in done.stderr and what in done.stderr


def test_a_file_without_items_clears_only_with_yes(fake, load):
    for text, name in (("", "items.ndjson"), ("\n\n", "items.ndjson"), ("a,b\n", "items.csv")):
        done = load(text, name=name)
        assert (done.returncode, fake.requests) == (1, []) and "--yes" in done.stderr
    assert load("", "--yes").returncode == 0
    assert items_of(fake) == []


@pytest.mark.parametrize("words", [
    (), ("demo", "COUNTRY"), ("demo", "a b", "f"), ("demo", "COUNTRY", "f", "--format", "xml"),
    ("demo", "COUNTRY", "f", "--key-column", "k"), ("demo", "COUNTRY", "f", "--chunk-items", "0"),
    ("demo", "COUNTRY", "f", "--patience", "x"), ("demo", "COUNTRY", "f", "--revision", "x")])
def test_called_wrongly_is_exit_2(words):
    done = run("load", *words, "--token", "x")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("freshet load: ")


def test_a_file_that_is_not_there_is_exit_1():
    done = run("load", "demo", "COUNTRY", "/no/such/file", "--token", "x")
    assert done.returncode == 1 and "/no/such/file: No such file" in done.stderr


# ---- trouble, and going on ----

def test_a_503_and_a_lost_connection_are_tried_again_with_the_same_event(fake, load):
    fake.troubles = [UNKNOWN, GONE, GONE, "break", GONE, "break"]
    assert load(lines(40), "--chunk-items", "10").returncode == 0
    sent = [json.dumps(post) for post in fake.posts()]
    assert len(sent) > 4 and len(set(sent)) == 4


def test_a_refused_chunk_ends_it_and_the_same_command_sends_the_same_chunks(fake, load):
    fake.troubles = [UNKNOWN, None, None, (413, {"code": "PAYLOAD_TOO_LARGE", "message": "no"})]
    first = load(lines(50), "--chunk-items", "10")
    assert first.returncode == 1 and "413 PAYLOAD_TOO_LARGE" in first.stderr
    begun = {json.dumps(post) for post in fake.posts()}
    done = load(lines(50), "--chunk-items", "10")
    assert done.returncode == 0 and done.stdout.startswith("version 1: 50 items")
    assert begun <= {json.dumps(post) for post in fake.posts()} and len(fake.events) == 5


def test_the_same_command_goes_on_where_it_was_cut_off(fake, load):
    """As if the first run had ended behind two of five chunks."""
    assert load(lines(50), "--chunk-items", "10").returncode == 0
    posts = sorted(fake.posts(), key=lambda post: post["chunkIndex"])
    fake.events = {post["eventId"]: {"eventId": post["eventId"], "status": "PENDING"} for post in posts[:2]}
    fake.chunks = {posts[0]["snapshotId"]: {post["chunkIndex"]: post for post in posts[:2]}}
    fake.requests.clear()
    done = load(lines(50), "--chunk-items", "10")
    assert done.returncode == 0 and done.stdout.startswith("version 2: 50 items")
    assert done.stderr == "freshet load: 2 of 5 chunks were sent by an earlier run\n"
    assert sorted(fake.posts(), key=lambda post: post["chunkIndex"]) == posts[2:]


def test_the_same_file_is_not_loaded_twice_in_a_row_but_is_after_a_change(fake, load):
    assert load(lines(5)).stdout.startswith("version 1: 5 items")
    done = load(lines(5))
    assert done.returncode == 0 and done.stdout.startswith("version 1: holds this file already")
    assert len(fake.posts()) == 1
    assert load(lines(5), "--again").stdout.startswith("version 2: ")
    fake.version = 10  # somebody else wrote
    assert load(lines(5)).stdout.startswith("version 11: 5 items")
    assert load(lines(6)).stdout.startswith("version 12: 6 items")
    assert len({post["eventId"] for post in fake.posts()}) == len(fake.posts()) == 4


def test_a_snapshot_that_expired_is_begun_anew(fake, load):
    fake.troubles = [UNKNOWN,
                     (422, {"code": "SNAPSHOT_INCOMPLETE", "message": "not all chunks came in time"})]
    done = load(lines(5))
    assert done.returncode == 0 and done.stdout.startswith("version 1: 5 items")
    assert len({post["snapshotId"] for post in fake.posts()}) == 2


def test_a_commit_that_takes_longer_than_wait_is_exit_3(fake, load):
    pending = (202, {"eventId": "e", "status": "PENDING"})
    fake.troubles = [UNKNOWN, pending, (200, pending[1]), (200, pending[1])]
    done = load(lines(5), "--wait", "0")
    assert (done.returncode, done.stdout) == (3, "") and "not committed yet" in done.stderr


def test_a_snapshot_that_fails_says_why(fake, load):
    fake.troubles = [UNKNOWN, (202, {"eventId": "e", "status": "PENDING"}),
                     (200, {"eventId": "e", "status": "FAILED", "errorCode": "UPDATE_REFUSED", "errorMessage": "too long"})]
    done = load(lines(5))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "freshet load: UPDATE_REFUSED: too long\n")


def test_other_content_or_another_dictionary_is_another_snapshot(fake, tmp_path):
    seen = set()
    for number, (tenant, code, count) in enumerate([("demo", "A", 5), ("demo", "B", 5), ("other", "A", 5), ("demo", "A", 6)]):
        file = tmp_path / f"{number}.ndjson"
        file.write_text(lines(count))
        assert run("load", tenant, code, file, "--url", fake.url, "--token", "x").returncode == 0
        seen |= {(post["snapshotId"], post["eventId"]) for post in fake.posts()}
        fake.requests.clear()
    assert len({snapshot for snapshot, _ in seen}) == len({event for _, event in seen}) == 4
