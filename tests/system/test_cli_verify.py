"""`freshet verify`: what pods hold against what the database holds (R6)."""
import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lib.config import merge
from lib.freshet import run
from lib.refdata import LabelWriter, labelled, make_table, migrated, path, pod, refdata_db, set_version  # noqa: F401
from lib.refdata import sql_dictionary, write_builtin
from lib.tokens import AUDIENCE, ISSUER
from lib.wait import eventually, free_port

pytestmark = pytest.mark.roles("query")

NEVER = {"sweepInterval": "1h"}  # a pod that finds nothing out by itself, but for a last look when it begins to listen
ITEMS = {f"k{i:02}": {"i": i} for i in range(40)}


def url(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def development(tmp_path):
    """Settings of pods that trust the development key, and the environment that signs with it."""
    env = {"FRESHET_VAR": str(tmp_path / "var")}
    assert run("token", "--tenant", "demo", env=env).returncode == 0
    return {"jwksFile": str(tmp_path / "var/keys/jwks.json")}, env


@pytest.fixture
def pods(serve, refdata_db, development):  # noqa: F811
    """pods(*dictionaries, cache=…) starts one more pod on the test's database."""
    auth, _ = development
    return lambda *dictionaries, **options: serve(refdata_db, pod(*dictionaries, auth=auth, **options))


@pytest.fixture
def verify(development):
    """verify(servers, *args): the first one's configuration, every one's URL. Lines of standard output with it."""
    def run_verify(servers, *args, patience="60s", env=None):
        urls = [word for server in servers for word in ("--url", server if isinstance(server, str) else url(server))]
        server = next(server for server in servers if not isinstance(server, str))
        done = run("verify", "--config", server.config_path, "--patience", patience, *urls, *args,
                   env={**server.env, **development[1], **(env or {})})
        assert done.returncode in (0, 1, 3), done.stderr
        return done.returncode, done.stdout.splitlines()
    return run_verify


def hold(server, code, token):
    """Makes a pod load a dictionary, and says which version it has."""
    with server.client(token) as client:
        return client.get(path(code, "/version")).json()["version"]


@pytest.fixture
def dev_token(development):
    """Of tenant demo, as the pods of these tests want it."""
    return run("token", "--tenant", "demo", "--issuer", ISSUER, "--audience", AUDIENCE,
               env=development[1]).stdout.strip()


def follows_no_more(server, database, token, version, items):
    """Writes versions until the pod stays behind, past its last look. (version it has, version of the database)."""
    for newest in range(version + 1, version + 50):
        write_builtin(database, "D", items, newest)
        with contextlib.suppress(AssertionError):
            eventually(lambda: hold(server, "D", token) == newest, timeout=0.5)  # pylint: disable=cell-var-from-loop
            continue
        return newest - 1, newest
    raise AssertionError("it follows for ever")


# ---- equal ----

def test_every_configured_dictionary_of_a_known_tenant_is_compared(pods, verify, refdata_db, dev_token):  # noqa: F811
    """R6, R15: also one that has no version: changed by SQL without refdata.touch, no pod can see it."""
    make_table(refdata_db, "own", {"a": "1"})
    write_builtin(refdata_db, "D", ITEMS, 12)
    server = pods("D", "EMPTY", sql_dictionary("OWN", "own"))
    assert hold(server, "OWN", dev_token) == 0
    assert verify([server]) == (0, ["ok demo/D version 12, 40 items", "ok demo/OWN version 0, 1 item"])
    refdata_db.query("update own set v = '2'")
    status, lines = verify([server])
    assert status == 3 and lines[1].startswith("DIFFERS demo/OWN")
    refdata_db.value("select refdata.touch('demo', 'OWN')")
    assert verify([server]) == (0, ["ok demo/D version 12, 40 items", "ok demo/OWN version 1, 1 item"])



def test_everything_written_is_compared_and_equal(pods, verify, refdata_db):  # noqa: F811
    """Every tenant's pairs whose dictionary is configured, each with a token of its own."""
    write_builtin(refdata_db, "D", ITEMS, 12)
    write_builtin(refdata_db, "D", {"one": 1}, 1, tenant="acme")
    write_builtin(refdata_db, "GONE", {"x": 1}, 5)
    make_table(refdata_db, "t", {"a": "1", "b": '{"x": [1, 2]}'})
    set_version(refdata_db, "T", 3)
    assert verify([pods("D", sql_dictionary("T"))]) == (
        0, ["ok acme/D version 1, 1 item", "ok demo/D version 12, 40 items", "ok demo/T version 3, 2 items"])


def test_only_what_is_named_is_compared(pods, verify, refdata_db):  # noqa: F811
    """R3: a tenant that never wrote has version 0 and no items, here and there."""
    write_builtin(refdata_db, "D", ITEMS, 12)
    write_builtin(refdata_db, "E", ITEMS, 2)
    server = pods("D", "E")
    assert verify([server], "demo/E") == (0, ["ok demo/E version 2, 40 items"])
    assert verify([server], "nobody/D", "demo/D") == (
        0, ["ok nobody/D version 0, 0 items", "ok demo/D version 12, 40 items"])


def test_nothing_written_is_nothing_to_compare(pods, verify):
    assert verify([pods("D")]) == (0, [])


def test_dictionaries_of_two_databases(serve, verify, refdata_db, postgres, jwks_path, tmp_path, development):  # noqa: F811
    """R15: a pair counts in the database its dictionary is configured for, and in no other."""
    second = migrated(postgres, jwks_path, tmp_path)
    write_builtin(refdata_db, "A", {"k": 1}, 1)
    write_builtin(refdata_db, "B", {"stale": 1}, 9)
    write_builtin(second, "B", {"k": 1, "l": 2}, 2)
    changes = merge(pod("A", {"code": "B", "postgres": "second"}, auth=development[0]), {"refdata": {"postgres": [
        {"name": name, "jdbcUrl": db.jdbc_url, "username": db.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
        for name, db in [("first", refdata_db), ("second", second)]]}})
    server = serve(refdata_db, changes)
    assert verify([server]) == (0, ["ok demo/A version 1, 1 item", "ok demo/B version 2, 2 items"])
    server.stop()
    second.drop()


def test_a_pod_that_is_merely_behind_is_given_time(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    server = pods("D", cache={"sweepInterval": "1s"})
    assert hold(server, "D", dev_token) == 1
    write_builtin(refdata_db, "D", {"k": 1}, 2)
    assert verify([server]) == (0, ["ok demo/D version 2, 1 item"])


def test_a_dictionary_that_keeps_changing_is_compared_all_the_same(pods, verify, refdata_db):  # noqa: F811
    """The pod is asked first and the database read at once, so that a moment's quiet is enough."""
    dictionary = labelled(refdata_db, "L", 50)
    server = pods(dictionary)
    with LabelWriter(refdata_db, "L", "l"):
        status, lines = verify([server])
    assert status == 0 and re.fullmatch(r"ok demo/L version \d+, 50 items", *lines)


class Meddler(BaseHTTPRequestHandler):
    """A pod that has something done before it says that it knows nothing."""

    def do_GET(self):  # pylint: disable=invalid-name
        self.server.meddle()
        self.send_error(404)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def test_what_changes_while_pods_are_compared_is_read_anew(pods, verify, refdata_db, dev_token):  # noqa: F811
    """The second pod is ahead of what was read for the first one."""
    write_builtin(refdata_db, "D", ITEMS, 1)
    server = pods("D")

    def meddle():
        write_builtin(refdata_db, "D", {"k": 1}, 2)
        eventually(lambda: hold(server, "D", dev_token) == 2)

    with HTTPServer(("127.0.0.1", 0), Meddler) as meddler:
        meddler.meddle = meddle
        thread = threading.Thread(target=meddler.handle_request)
        thread.start()
        status, lines = verify([f"http://127.0.0.1:{meddler.server_port}", server])
        thread.join()
    assert status == 1 and "404, and the answer is not one of freshet's" in lines[0]
    assert lines[1] == f"ok demo/D at {url(server)}: version 2, 1 item"


# ---- different ----

def test_a_pod_that_stays_behind_differs(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 11)
    server = pods("D", cache=NEVER)
    assert hold(server, "D", dev_token) == 11
    has, newest = follows_no_more(server, refdata_db, dev_token, 11, ITEMS)
    write_builtin(refdata_db, "D", {**ITEMS, "more": 1}, newest + 1)
    status, (line,) = verify([server], patience="5s")
    assert status == 3
    assert re.fullmatch(rf"DIFFERS demo/D at {url(server)}: version {has} \(database {newest + 1}\),"
                        r" items 40 \(database 41\), digest [0-9a-f]{32} \(database [0-9a-f]{32}\)", line)
    write_builtin(refdata_db, "D", ITEMS, newest + 2)
    assert verify([server], patience="5s") == (
        3, [f"DIFFERS demo/D at {url(server)}: version {has} (database {newest + 2})"])


def test_a_pod_ahead_of_its_database_differs(pods, verify, refdata_db, dev_token):  # noqa: F811
    """As after a restore from a backup."""
    write_builtin(refdata_db, "D", ITEMS, 5)
    server = pods("D", cache=NEVER)
    assert hold(server, "D", dev_token) == 5
    has, _ = follows_no_more(server, refdata_db, dev_token, 5, ITEMS)
    set_version(refdata_db, "D", 4)
    assert verify([server], patience="5s") == (3, [f"DIFFERS demo/D at {url(server)}: version {has} (database 4)"])


def edit(database):
    """By hand, without raising the version."""
    database.query("update refdata.dictionary_item set payload = '{\"i\": -1}' where item_key = 'k05'")
    database.query("delete from refdata.dictionary_item where item_key in ('k00', 'k39')")
    database.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                   " values ('demo', 'D', 'k\"10', '1'), ('demo', 'D', 'zz', '1'), ('demo', 'D', 'А', '1')")


def test_a_payload_changed_by_hand_differs_by_its_digest(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    server = pods("D")
    assert hold(server, "D", dev_token) == 1
    refdata_db.query("update refdata.dictionary_item set payload = '{\"i\": -1}' where item_key = 'k05'")
    status, (line,) = verify([server])
    assert status == 3
    assert re.fullmatch(rf"DIFFERS demo/D at {url(server)}: digest [0-9a-f]{{32}} \(database [0-9a-f]{{32}}\)", line)


def test_the_keys_that_differ_are_listed(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    server = pods("D")
    assert hold(server, "D", dev_token) == 1
    edit(refdata_db)
    status, (line, *keys) = verify([server], "--show-keys")
    assert status == 3 and "items 40 (database 41)" in line and "version" not in line
    assert keys == ['    "k\\"10" is only in the database', '    "k00" is only in the pod', '    "k05" has another payload',
                    '    "k39" is only in the pod', '    "zz" is only in the database', '    "А" is only in the database']


def test_a_key_does_not_change_the_terminal(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", {"a": 1}, 1)
    server = pods("D")
    assert hold(server, "D", dev_token) == 1
    refdata_db.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload) values ('demo', 'D', %s, '1')",
                     ["k\u009b2J\u202eend"])
    assert verify([server], "--show-keys")[1][1:] == ['    "k?2J?end" is only in the database']


def test_no_more_than_twenty_keys_are_listed(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    write_builtin(refdata_db, "E", {}, 1)
    server = pods("D", "E")
    assert hold(server, "D", dev_token) == hold(server, "E", dev_token) == 1
    refdata_db.query("delete from refdata.dictionary_item where item_key >= 'k15'")
    refdata_db.query("insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                     " select 'demo', 'E', 'e' || i, '1' from generate_series(10, 29) i")
    status, lines = verify([server], "--show-keys")
    assert status == 3 and len(lines) == 22 + 21
    assert lines[20:22] == ['    "k34" is only in the pod', "    and 5 more"]
    assert lines[-1] == '    "e29" is only in the database'


# ---- several pods, and pods that do not answer ----

def test_every_pod_is_compared(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    fresh, stale = pods("D"), pods("D", cache=NEVER)
    assert verify([fresh, stale]) == (0, [f"ok demo/D at {url(server)}: version 1, 40 items" for server in (fresh, stale)])
    has, newest = follows_no_more(stale, refdata_db, dev_token, 1, ITEMS)
    eventually(lambda: hold(fresh, "D", dev_token) == newest)
    assert verify([stale, fresh], patience="5s") == (3, [
        f"DIFFERS demo/D at {url(stale)}: version {has} (database {newest})",
        f"ok demo/D at {url(fresh)}: version {newest}, 40 items"])


def test_a_pod_that_is_down_fails_and_the_others_are_compared(pods, verify, refdata_db):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    write_builtin(refdata_db, "E", ITEMS, 1)
    server, down = pods("D", "E"), f"http://127.0.0.1:{free_port()}"
    status, lines = verify([down, server])
    assert status == 1 and len(lines) == 4
    for code, failed, equal in zip("DE", lines[::2], lines[1::2]):
        assert failed.startswith(f"FAILED demo/{code} at {down}: ") and "connect" in failed
        assert equal == f"ok demo/{code} at {url(server)}: version 1, 40 items"


def summary(server, *urls, development, patience="3s"):
    """Exit status, and what standard error says in the end."""
    done = run("verify", "--config", server.config_path, "--patience", patience, *(w for u in urls for w in ("--url", u)),
               env={**server.env, **development[1]})
    return done.returncode, done.stderr.splitlines()


def test_what_could_not_be_compared_is_not_called_unequal(pods, refdata_db, development, dev_token):  # noqa: F811
    """Issue 15, point 3: a difference is exit status 3, a failure 1, and where there are both, the difference counts."""
    write_builtin(refdata_db, "D", ITEMS, 1)
    server, down = pods("D"), f"http://127.0.0.1:{free_port()}"
    assert hold(server, "D", dev_token) == 1
    assert summary(server, url(server), down, development=development) == (
        1, ["freshet verify: 1 of 2 could not be compared"])
    edit(refdata_db)
    assert summary(server, url(server), development=development) == (3, ["freshet verify: 1 of 1 are not equal"])
    assert summary(server, url(server), down, development=development) == (
        3, ["freshet verify: 1 of 2 are not equal", "freshet verify: 1 of 2 could not be compared"])


def test_the_development_token_has_the_scope_that_reading_needs(pods, verify, refdata_db):  # noqa: F811
    write_builtin(refdata_db, "A", ITEMS, 1)
    server = pods({"code": "A", "readScope": "a:read"})
    assert verify([server]) == (0, ["ok demo/A version 1, 40 items"])


def test_a_wrong_token_fails(pods, verify, refdata_db, dev_token):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    server = pods("D")
    status, (line,) = verify([server], "--token", "x.y.z")
    assert status == 1 and line.startswith(f"FAILED demo/D at {url(server)}: 401 UNAUTHENTICATED")
    status, (line,) = verify([server], "acme/D", "--token", dev_token)
    assert status == 1 and "403 TENANT_MISMATCH" in line
    assert verify([server], "--token", dev_token)[0] == 0
    assert verify([server], env={"FRESHET_TOKEN": dev_token})[0] == 0


def test_a_dictionary_the_pod_does_not_have_fails(pods, verify, refdata_db):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    with_d, without = pods("D"), pods("E")
    status, lines = verify([with_d, without])
    assert status == 1 and "404 UNKNOWN_DICTIONARY" in lines[1] and lines[0].startswith("ok ")


# ---- databases and templates that do not work ----

def test_a_template_that_postgres_refuses_fails_and_the_rest_is_compared(pods, verify, refdata_db):  # noqa: F811
    write_builtin(refdata_db, "D", ITEMS, 1)
    set_version(refdata_db, "BAD", 1)
    status, lines = verify([pods("D", sql_dictionary("BAD", "no_such_table"))])
    assert status == 1 and lines[1:] == ["ok demo/D version 1, 40 items"]
    assert lines[0].startswith("FAILED demo/BAD: the database main: ") and "no_such_table" in lines[0]


def test_a_database_that_is_down_fails_and_tells_no_secret(pods, verify, refdata_db, tmp_path):  # noqa: F811
    server = pods("D")
    config = tmp_path / "dead.yaml"
    config.write_text(server.config_path.read_text().replace(f":{refdata_db.server.port}/", ":1/"))
    for words in [[], ["demo/D"]]:
        done = run("verify", "--config", config, "--url", url(server), *words, env=server.env)
        assert done.returncode == 1 and done.stdout.startswith("FAILED ")
        assert refdata_db.password not in done.stdout + done.stderr and "{" not in done.stderr


# ---- the call ----

def test_a_wrong_call_is_exit_2(pods):
    server = pods("D")
    for args in [["demo"], ["demo/"], ["/D"], ["demo/D/x"], ["demo/NONE"], ["demo/D", "a b/D"], ["--patience", "soon"],
                 ["--patience", "-1s"], ["--url", "nowhere"], ["--url", ""], ["--nonsense"]]:
        done = run("verify", "--config", server.config_path, *args, env=server.env)
        assert (done.returncode, done.stdout) == (2, ""), args
        assert done.stderr.startswith("freshet verify: ")


def test_a_word_that_is_no_pair_needs_no_configuration(tmp_path):
    done = run("verify", "stray", "--config", tmp_path / "none.yaml")
    assert (done.returncode, done.stdout) == (2, "") and "stray" in done.stderr


def test_a_bad_configuration_is_exit_1(tmp_path):
    config = tmp_path / "bad.yaml"
    config.write_text("nonsense: 1\n")
    done = run("verify", "--config", config)
    assert (done.returncode, done.stdout) == (1, "") and "bad.yaml:1" in done.stderr


def test_help_is_made_of_the_rows():
    done = run("verify", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: freshet verify [TENANT/DICT…] [OPTIONS]\n")
    for option in ["--config FILE", "--url URL", "--token TOKEN", "--patience 3s", "--show-keys", "--help"]:
        assert f"\n  {option} " in done.stdout
