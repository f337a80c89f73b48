"""`freshet get`: items, whole dictionaries and versions on the command line (R3 to R7)."""
import json
import os
import subprocess

import pytest

from lib.freshet import SANITIZER, binary, run
from lib.refdata import generate, lines_of, module_refdata_db, path, pod, refdata_db, set_version  # noqa: F401
from lib.refdata import sql_dictionary, write_builtin
from lib.wait import PATIENCE, free_port

pytestmark = pytest.mark.roles("query")

ODD_KEYS = ["a/b", "a,b", "100%", "%41", "..", ".", "-x", "--all", "a b", "a+b", "a?b#c&d=e", "ключ", "日本", "\"q\"", "\\"]
ITEMS = {**{key: {"is": key} for key in ODD_KEYS}, **{f"k{i:04}": i for i in range(1500)}}


@pytest.fixture(scope="module")
def pod_of_all(module_serve, module_refdata_db):  # noqa: F811
    write_builtin(module_refdata_db, "ODD", ITEMS, 7)
    generate(module_refdata_db, "big", 150000, "jsonb_build_object('i', i, 'filler', repeat('x', 200))")
    set_version(module_refdata_db, "BIG", 3)
    return module_serve(module_refdata_db, pod("ODD", "EMPTY", sql_dictionary("BIG")))


@pytest.fixture
def get(pod_of_all, token):
    """get(*words, …) runs the command against the pod with a good token."""
    def run_get(*args, **env):
        return run("get", "--url", f"http://127.0.0.1:{pod_of_all.port}", *args,
                   env={"FRESHET_TOKEN": token("demo"), **env})
    return run_get


# ---- one item, several ----

@pytest.mark.parametrize("odd", ODD_KEYS)
def test_one_item_is_printed_whatever_its_key(get, odd):
    """R3."""
    done = get("demo", "ODD", "--", odd)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("}\n") and json.loads(done.stdout) == {"key": odd, "payload": {"is": odd}}


def test_a_missing_item_is_exit_1_and_a_line_on_standard_error(get):
    done = get("demo", "ODD", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "freshet get: 404 ITEM_NOT_FOUND: there is no item with this key\n"


def test_several_items_are_lines_in_the_order_asked(get):
    """R4."""
    done = get("demo", "ODD", "--", *ODD_KEYS)
    assert (done.returncode, done.stderr) == (0, "")
    assert [item["key"] for item in lines_of(done.stdout.encode())] == ODD_KEYS


def test_missing_ones_among_several_are_named_on_standard_error(get):
    done = get("demo", "ODD", "k0002", "no\"ne", "k0001", "nothing")
    assert done.returncode == 1
    assert [item["key"] for item in lines_of(done.stdout.encode())] == ["k0002", "k0001"]
    assert [line.split("the key ")[1] for line in done.stderr.splitlines()] == ['"no\\"ne"', '"nothing"']


def test_more_keys_than_one_request_takes(get):
    """R4's 1,000 keys and C6's 64 KiB are limits of a request, not of the command."""
    keys = sorted(key for key in ITEMS if key.startswith("k"))
    assert len(keys) == 1500
    assert [item["key"] for item in lines_of(get("demo", "ODD", *keys).stdout.encode())] == keys
    long = [f"{i:03}" + "ж" * 500 for i in range(100)]
    done = get("demo", "ODD", *long)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == len(long) and "414" not in done.stderr


def test_options_stand_before_between_and_behind(get):
    first = get("--min-version", "7", "demo", "ODD", "k0001")
    assert first.returncode == 0 and first.stdout == get("demo", "--min-version=7", "ODD", "k0001").stdout
    assert first.stdout == get("demo", "ODD", "k0001", "--min-version", "7").stdout


# ---- everything, the version, the barrier ----

def test_all_is_the_stream_of_the_route(get, pod_of_all, token):
    """R5."""
    with pod_of_all.client(token("demo")) as client:
        expected = client.get(path("ODD", "/all"), Accept="application/x-ndjson").body
    done = get("demo", "ODD", "--all")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.encode() == expected
    done = get("demo", "EMPTY", "--all")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_version_is_the_answer_of_the_route(get):
    """R6."""
    done = get("demo", "ODD", "--version")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["version"], answer["itemCount"]) == (0, 7, len(ITEMS))


def test_min_version_is_the_barrier(get):
    """R7."""
    for what in [["k0001"], ["k0001", "k0002"], ["--all"], ["--version"]]:
        assert get("demo", "ODD", *what, "--min-version", "7").returncode == 0
        done = get("demo", "ODD", *what, "--min-version", "8")
        assert (done.returncode, done.stdout) == (1, "") and "409 VERSION_NOT_COMMITTED" in done.stderr


# ---- streams ----

def run_all(server, token, code, env=None, **options):
    """(stdout's length, peak memory) of `get --all`."""
    args = [binary(), "get", "demo", code, "--all", "--url", f"http://127.0.0.1:{server.port}", "--token", token]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}, **options)
    length = 0
    while chunk := process.stdout.read(1 << 16):
        length += len(chunk)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode == 0
    return length, usage.ru_maxrss * 1024


def test_a_large_dictionary_passes_through_little_memory(pod_of_all, token):
    """R5: what the command holds does not grow with what it prints."""
    _, small = run_all(pod_of_all, token("demo"), "EMPTY")
    length, large = run_all(pod_of_all, token("demo"), "BIG")
    assert length > 35_000_000
    assert large - small < 8_000_000


def test_a_stream_cut_short_is_exit_1(serve, refdata_db, token):  # noqa: F811
    generate(refdata_db, "big", 100000, "jsonb_build_object('i', i, 'filler', repeat('x', 200))")
    set_version(refdata_db, "BIG", 1)
    server = serve(refdata_db, pod(sql_dictionary("BIG")))
    process = subprocess.Popen([binary(), "get", "demo", "BIG", "--all", "--url", f"http://127.0.0.1:{server.port}"],
                               env={**os.environ, "FRESHET_TOKEN": token("demo")}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith('{"key":"k000000"')
    server.kill()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and err.startswith("freshet get: ") and not SANITIZER.search(err)
    assert out.count("\n") < 99999


def test_progress_is_shown_where_a_terminal_does_not_show_the_stream(pod_of_all, token):
    leader, follower = os.openpty()
    length, _ = run_all(pod_of_all, token("demo"), "BIG", stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:
        pass  # the other side is closed
    os.close(leader)
    last = shown.decode().rstrip().split("\r")[-1]
    assert last.startswith(f"150000 items, {length / 1e6:.1f} MB, ") and shown.endswith(b"\n")


def test_a_full_disk_is_exit_1(pod_of_all, token):
    for what in [["--all"], ["k0001"], ["k0001", "k0002"]]:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([binary(), "get", "demo", "ODD", *what, "--url", f"http://127.0.0.1:{pod_of_all.port}"],
                                  env={**os.environ, "FRESHET_TOKEN": token("demo")}, stdout=full,
                                  stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        assert done.returncode == 1 and b"No space left" in done.stderr, what


# ---- refusals ----

def test_refusals_are_exit_1_with_the_servers_own_words(get, token):
    assert "404 UNKNOWN_DICTIONARY" in get("demo", "NONE", "k").stderr
    assert "401 UNAUTHENTICATED" in get("demo", "ODD", "k", "--token", "x.y.z").stderr
    assert "403 TENANT_MISMATCH" in get("demo", "ODD", "k", "--token", token("other")).stderr
    for args in [["demo", "NONE", "k"], ["demo", "NONE", "k", "l"], ["demo", "NONE", "--all"], ["demo", "NONE", "--version"]]:
        done = get(*args)
        assert (done.returncode, done.stdout) == (1, "")


def test_a_pod_that_is_down_is_exit_1():
    done = run("get", "demo", "ODD", "k", "--url", f"http://127.0.0.1:{free_port()}", "--token", "x")
    assert (done.returncode, done.stdout) == (1, "") and "connect" in done.stderr


@pytest.mark.parametrize("args", [[], ["demo"], ["demo", "ODD"], ["a b", "ODD", "k"], ["demo", "O/D", "k"],
                                  ["demo", "ODD", ""], ["demo", "ODD", "k", ""], ["demo", "ODD", "k", "--all"],
                                  ["demo", "ODD", "--all", "--version"], ["demo", "ODD", "k", "--version"],
                                  ["demo", "ODD", "k", "--min-version", "x"], ["demo", "ODD", "k", "--min-version", "-1"],
                                  ["demo", "ODD", "k", "--min-version", ""],
                                  ["demo", "ODD", "k", "--min-version", "9223372036854775808"],
                                  ["demo", "ODD", "k", "--url", "ftp://x"], ["demo", "ODD", "k", "--url", ""],
                                  ["demo", "ODD", "k", "--url", "http://"], ["demo", "ODD", "k", "--url", "http://a b:80"],
                                  ["demo", "ODD", "k", "--url", "http://:80"], ["demo", "ODD", "k", "--url", "http://pod:port"],
                                  ["demo", "ODD", "k", "--url", "http://pod:65536"], ["demo", "ODD", "k", "--url", "http://[::1]:0"],
                                  ["demo", "ODD", "k", "--nonsense"], ["demo", "ODD", "-x"]])
def test_a_wrong_call_is_exit_2(args):
    done = run("get", *args, env={"FRESHET_TOKEN": "x"})
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("freshet get")


def test_a_token_that_could_break_a_header_is_refused():
    for bad in ["a\r\nX-Tenant-Id: other", "", "a b", "ж"]:
        done = run("get", "demo", "ODD", "k", "--token", bad)
        assert (done.returncode, done.stdout) == (2, "") and "--token" in done.stderr


@pytest.mark.parametrize("variable,value", [("FRESHET_URL", "nowhere"), ("FRESHET_PORT", "x"), ("FRESHET_TOKEN", "a b")])
@pytest.mark.parametrize("words", [["get", "demo", "ODD", "k"], ["put", "demo", "ODD", "k", "1"], ["load", "demo", "ODD", "-"],
                                   ["watch", "demo", "ODD"], ["tail", "demo", "ODD"], ["verify"],
                                   ["status", "demo", "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77"]])
def test_a_malformed_url_or_token_in_the_environment_is_exit_2(words, variable, value):
    done = run(*words, env={variable: value})
    assert (done.returncode, done.stdout) == (2, "") and "$" + variable in done.stderr


def test_without_a_token_one_is_signed_with_the_development_key(serve, refdata_db, tmp_path):  # noqa: F811
    """As `freshet token` does; where the pod is comes from the environment too."""
    write_builtin(refdata_db, "D", {"k": 1}, 1)
    var = tmp_path / "var"
    assert run("token", "--tenant", "demo", env={"FRESHET_VAR": str(var)}).returncode == 0
    auth = {"jwksFile": str(var / "keys/jwks.json"), "issuer": None, "audiences": None}
    server = serve(refdata_db, pod("D", auth=auth))
    for place in [{"FRESHET_PORT": str(server.port)}, {"FRESHET_URL": f"http://127.0.0.1:{server.port}/"}]:
        done = run("get", "demo", "D", "k", env={"FRESHET_VAR": str(var), **place})
        assert (done.returncode, done.stdout, done.stderr) == (0, '{"key":"k","payload":1}\n', "")


def test_help_is_made_of_the_rows():
    done = run("get", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: freshet get TENANT DICT [KEY…] [OPTIONS]\n")
    for option in ["--all", "--version", "--min-version N", "--url URL", "--token TOKEN", "--help"]:
        assert f"\n  {option} " in done.stdout
