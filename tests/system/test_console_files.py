"""Issue 15, point 2: the console is served from files built into the program, with a strict policy, and one setting turns it off."""
import gzip
import re

import pytest

from conftest import ROOT
from lib.refdata import module_refdata_db, pod, refdata_db  # noqa: F401

FILES = sorted(path.name for path in (ROOT / "console").iterdir())
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'")


@pytest.fixture(scope="module")
def client(module_serve, module_refdata_db):  # noqa: F811
    return module_serve(module_refdata_db, pod()).client()


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_it_is_plain_and_by_gzip(client, name):
    content = (ROOT / "console" / name).read_bytes()
    plain, packed = client.get(f"/console/{name}"), client.get(f"/console/{name}", Accept_Encoding="br, gzip")
    assert (plain.status, plain.body) == (200, content) and "content-encoding" not in plain.headers
    assert (packed.status, packed.headers["content-encoding"], gzip.decompress(packed.body)) == (200, "gzip", content)
    assert plain.headers["etag"] != packed.headers["etag"]


def test_the_page_itself_is_the_index(client):
    assert client.get("/console").body == (ROOT / "console/index.html").read_bytes()
    assert client.get("/console").headers["content-type"] == "text/html; charset=utf-8"


def test_every_answer_lets_the_browser_run_nothing_else(client):
    for target in ["/console", *(f"/console/{name}" for name in FILES)]:
        headers = client.get(target).headers
        assert headers["content-security-policy"].startswith(POLICY), target
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert (headers["cache-control"], headers["vary"]) == ("no-cache", "Accept-Encoding")


@pytest.mark.parametrize("value, encoded", [
    ("gzip", True), ("GZIP", True), ("gzip;q=0.001", True), ("*", True), ("br;q=1.0, *;q=0.5", True), ("deflate, gzip;q=1.0", True),
    ("gzip;q=0", False), ("gzip; q=0.000", False), ("*;q=0", False), ("identity", False), ("", False), ("gzip;q=0, *", False),
    ("x-gzip", True), (",,", False),
])
def test_gzip_is_sent_only_where_it_is_accepted(client, value, encoded):
    answer = client.get("/console/app.js", Accept_Encoding=value)
    assert answer.status == 200 and ("content-encoding" in answer.headers) == encoded


def test_an_unchanged_file_is_not_sent_again(client):
    """A strong tag names the bytes: that of the plain file is not that of the packed one. Either shows that it is unchanged."""
    plain = client.get("/console/app.css").headers["etag"]
    packed = client.get("/console/app.css", Accept_Encoding="gzip").headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', plain)
    for tag, encoding, status in [(plain, "", 304), (packed, "gzip", 304), (plain, "gzip", 304), (packed, "", 304), ('"0"', "gzip", 200)]:
        answer = client.get("/console/app.css", If_None_Match=tag, Accept_Encoding=encoding)
        assert answer.status == status and (answer.body == b"") == (status == 304)


def test_all_of_it_fits_into_100_kib(client):
    sizes = [len(client.get(f"/console/{name}", Accept_Encoding="gzip").body) for name in FILES]
    assert sum(sizes) <= 100 * 1024


def test_there_is_nothing_else_below_it(client):
    for target in ("/console/none.js", "/console/..%2Fapp.js", "/console/App.js", "/console/a/b"):
        assert client.get(target).status == 404
    assert client.get("/console?token=x").json()["field"] == "token"
    assert client.post("/console", {}).status == 405


def test_one_setting_turns_it_off(serve, refdata_db):  # noqa: F811
    for settings in ({"console": False}, {"enabled": False}):
        with serve(refdata_db, {**pod(), "ops": settings}).client() as client:
            answer = client.get("/console")
            assert (answer.status, answer.code) == (404, "NOT_FOUND")
            assert client.get("/console/app.js").status == 404
