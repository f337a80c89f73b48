"""C5: keys from a file and from a URL: rotation, outage, one refresh per interval; and `freshet token`."""
import base64
import http.server
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.freshet import run
from lib.refdata import path, pod, refdata_db, write_builtin  # noqa: F401
from lib.tokens import AUDIENCE, ISSUER, Key, mint, write_jwks
from lib.wait import eventually, free_port

pytestmark = pytest.mark.roles("query")


class KeyServer:
    """Serves a key set, or an error, and counts who asks."""

    def __init__(self, keys, port=0):
        self.requests = 0
        self.status = 200
        self.serve(keys)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                outer.authorization = self.headers.get("Authorization")
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks.json"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def serve(self, keys):
        self.body = json.dumps({"keys": [key.jwk for key in keys]}).encode()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def old():
    return Key("ES256", kid="old")


@pytest.fixture
def new():
    return Key("EdDSA", kid="new")


@pytest.fixture
def key_server(old):
    server = KeyServer([old])
    yield server
    server.stop()


def status(server, token):
    with server.client(token) as client:
        return client.get(path("D", "/version")).status


def with_url(url, **auth):
    """By URL alone; nothing is read by itself during a test unless it says so."""
    return pod("D", auth={"jwksFile": None, "jwksUrl": url, "jwksRefresh": "1h", "jwksRefreshMin": "1h", **auth})


# ---- file ----

@pytest.mark.tsan
def test_a_changed_key_file_is_read_and_withdrawn_keys_count_no_more(serve, refdata_db, old, new, tmp_path):
    """C5: rotation by kid, from a file."""
    jwks = write_jwks(tmp_path / "rotating.json", [old])
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    by_old, by_new = mint(old), mint(new)
    assert (status(server, by_old), status(server, by_new)) == (200, 401)
    write_jwks(jwks, [old, new])
    eventually(lambda: status(server, by_new) == 200)
    assert status(server, by_old) == 200
    write_jwks(jwks, [new])
    eventually(lambda: status(server, by_old) == 401)
    assert status(server, by_new) == 200


def test_a_key_file_that_went_bad_leaves_the_last_good_keys(serve, refdata_db, old, new, tmp_path):
    jwks = write_jwks(tmp_path / "bad.json", [old])
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    by_old = mint(old)
    assert status(server, by_old) == 200
    jwks.write_text('{"keys": [')
    eventually(lambda: server.logs(event="jwks_read_failed"))
    assert status(server, by_old) == 200
    assert status(server, mint(old, subject="another")) == 200
    jwks.unlink()
    assert status(server, mint(old, subject="third")) == 200
    write_jwks(jwks, [new])
    eventually(lambda: status(server, mint(new)) == 200)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}'])
def test_a_key_file_without_usable_keys_is_refused_at_start(serve, refdata_db, tmp_path, content):
    """C5: weak keys are no keys; a bad configuration exits 1 before listening."""
    jwks = tmp_path / "none.json"
    jwks.write_text(content)
    server = serve.make(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    server.spawn()
    assert server.process.wait(30) == 1
    assert "jwksFile" in server.log() or str(jwks) in server.log()
    server.process = None


def test_a_weak_rsa_key_is_skipped_and_the_others_work(serve, refdata_db, old, tmp_path):
    weak = Key("RS256", kid="weak", bits=1024)
    jwks = write_jwks(tmp_path / "weak.json", [weak, old])
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    assert status(server, mint(old)) == 200
    assert status(server, mint(weak)) == 401
    assert server.logs(event="jwks_key_skipped", kid="weak")


# Two primes as the faulty generator of CVE-2017-15361 made them: k * M + 65537^a mod M, M the product of the first 126 primes.
ROCA_P = int("fcf2bc967bea78b71b50ebee5263687e2a971020e7cd3a11e86b1bd0e7d601f9a35e95bbc0e021508a1f6f62295176f710cfe9a3f0e5b902"
             "961e09dbbd8760864781aba9c7b4123ce4a7c4199d7c539efa6607adaf33b37d34623a2e58d8ef2037c85e29bea7327a0a750e082d227a24"
             "57824874054e15d0eefe206d0afb96fd", 16)
ROCA_Q = int("d1ed64a44c5037c3bb1f3d6a29bfa9911ef728544905aab02a6016771bd9a9118fe07f7da4eb800a166a8e48b8366c29797a3e8f2cae40c4"
             "b6443462b352390eea98b208e9138f0bac5b7d830a43491241ae5d4e987c696d296d54173d5e192c1957a0b82531e98dc50b12c11d5c4db5"
             "21764b30834a1c7a6d6fb0c2e9581883", 16)


def test_a_roca_key_is_skipped_and_the_others_work(serve, refdata_db, old, tmp_path):
    """C5: whoever has the public half of such a key can compute the private one."""
    weak = Key("RS256", kid="roca")
    weak.use_primes(ROCA_P, ROCA_Q)
    jwks = write_jwks(tmp_path / "roca.json", [weak, old])
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    assert status(server, mint(old)) == 200
    assert status(server, mint(weak)) == 401
    assert "ROCA" in server.logs(event="jwks_key_skipped", kid="roca")[0]["error"]


def test_a_key_set_with_too_many_keys_still_withdraws_the_removed_ones(serve, refdata_db, old, tmp_path):
    """C5: at most 100 keys count, the secret and the first of the file; a key that is not listed is not trusted."""
    secret = Key("HS256")
    secret.private = b"thirty-two bytes of plain letters!"
    many = [Key("EdDSA", kid=f"key-{number}") for number in range(100)]
    jwks = write_jwks(tmp_path / "many.json", [old])
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks), "hs256SecretFromEnv": "TEST_HS256"}),
                   env={"TEST_HS256": secret.private.decode()})
    assert status(server, mint(old)) == 200
    write_jwks(jwks, many)
    eventually(lambda: status(server, mint(many[0])) == 200)
    assert status(server, mint(old)) == 401
    assert status(server, mint(secret)) == 200
    assert status(server, mint(many[98])) == 200
    assert status(server, mint(many[99])) == 401
    assert server.logs(event="jwks_truncated")


# ---- URL ----

def test_a_key_set_without_usable_keys_withdraws_the_removed_ones(serve, refdata_db, key_server, old):
    """C5: what the issuer lists counts, also when no key of it can be used; the next good set is taken."""
    server = serve(refdata_db, with_url(key_server.url, jwksRefresh="1s", jwksRefreshMin="100ms"))
    assert status(server, mint(old)) == 200
    key_server.serve([Key("RS256", kid="weak", bits=1024)])
    eventually(lambda: status(server, mint(old)) == 401)
    with server.client() as client:
        assert client.get("/actuator/health").json()["components"]["auth:keys"]["status"] == "DOWN"
    key_server.serve([old])
    eventually(lambda: status(server, mint(old)) == 200)


def test_credentials_in_the_url_are_used_and_never_shown(serve, refdata_db, key_server, old):
    """C9: no secret in a log line or an error; neither user, password nor query."""
    url = key_server.url.replace("://", "://issuer-user:pass-w0rd@") + "?apikey=query-s3cret"
    server = serve(refdata_db, with_url(url, jwksRefresh="1s", jwksRefreshMin="100ms"))
    assert status(server, mint(old)) == 200
    assert key_server.authorization == "Basic " + base64.b64encode(b"issuer-user:pass-w0rd").decode()
    key_server.serve([Key("RS256", kid="weak", bits=1024), old])
    eventually(lambda: server.logs(event="jwks_key_skipped"))
    key_server.status = 503
    eventually(lambda: server.logs(event="jwks_read_failed"))
    server.write_config(server.config_path.read_text().replace("/jwks.json", "/other.json"))
    server.sighup()
    eventually(lambda: "jwksUrl" in server.log())
    shown = server.log()
    assert key_server.url in shown
    for secret in ["issuer-user", "pass-w0rd", "query-s3cret"]:
        assert secret not in shown


@pytest.mark.tsan
def test_the_first_token_of_a_new_key_is_accepted_at_once(serve, refdata_db, key_server, old, new):
    """C5: an unknown kid makes the keys be read; the request waits for that and not in vain."""
    server = serve(refdata_db, with_url(key_server.url))
    assert status(server, mint(old)) == 200
    key_server.serve([old, new])
    assert status(server, mint(new)) == 200
    assert status(server, mint(old)) == 200
    assert key_server.requests == 2


def test_a_storm_of_unknown_keys_is_one_refresh(serve, refdata_db, key_server, old):
    """Issue 2: at most one refresh per interval."""
    server = serve(refdata_db, with_url(key_server.url))
    tokens = [Key("EdDSA", kid=f"made-up-{number}").sign({"exp": 9999999999}) for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda token: status(server, token), tokens)) == {401}
    assert key_server.requests == 2
    assert status(server, mint(old)) == 200


def test_while_the_url_is_down_the_last_good_keys_serve(serve, refdata_db, key_server, old):
    """C5: cached; an outage of the issuer is not ours."""
    server = serve(refdata_db, with_url(key_server.url, jwksRefresh="1s", jwksRefreshMin="100ms"))
    assert status(server, mint(old)) == 200
    before = key_server.requests
    key_server.status, key_server.body = 503, b"<html>"
    eventually(lambda: key_server.requests >= before + 2)
    assert status(server, mint(old, subject="new to the cache")) == 200
    assert server.is_ready()


def test_a_server_that_starts_before_its_issuer_comes_up_by_itself(serve, refdata_db, old):
    """C5, C8: without keys every token is 401 and readiness says so."""
    port = free_port()
    server = serve.make(refdata_db, with_url(f"http://127.0.0.1:{port}/jwks.json", jwksRefresh="1s"))
    server.start(ready=False)

    def answers():
        try:
            return status(server, mint(old)) == 401
        except OSError:
            return False

    eventually(answers)
    assert not server.is_ready()
    late = KeyServer([old], port)
    try:
        eventually(lambda: status(server, mint(old)) == 200)
        eventually(server.is_ready)
    finally:
        late.stop()


# ---- settings ----

def test_algorithms_can_be_narrowed_and_a_reload_takes_effect(serve, refdata_db, old, new, tmp_path):
    jwks = write_jwks(tmp_path / "two.json", [old, new])
    changes = pod("D", auth={"jwksFile": str(jwks), "algorithms": ["ES256"]})
    server = serve(refdata_db, changes)
    assert (status(server, mint(old)), status(server, mint(new))) == (200, 401)
    server.write_config(server.config_path.read_text().replace("ES256", "EdDSA"))
    server.sighup()
    eventually(lambda: status(server, mint(new)) == 200)
    eventually(lambda: status(server, mint(old)) == 401)


def test_an_hs256_secret_comes_from_the_environment(serve, refdata_db):
    key = Key("HS256")
    key.private = b"thirty-two bytes of plain letters!"
    server = serve(refdata_db, pod("D", auth={"jwksFile": None, "hs256SecretFromEnv": "TEST_HS256"}),
                   env={"TEST_HS256": key.private.decode()})
    assert status(server, mint(key)) == 200
    assert status(server, mint(Key("HS256"))) == 401


def test_auth_off_is_for_loopback_only(serve, refdata_db):
    """C5: switched off only together with a loopback-only listener."""
    write_builtin(refdata_db, "D", {"a": 1}, 1)
    server = serve(refdata_db, pod("D", auth={"enabled": False, "jwksFile": None}))
    with server.client() as client:
        assert client.get(path("D", "/items/a")).status == 200
    assert "auth_keys" not in server.metrics()  # an alert on 0 means that tokens cannot be checked
    open_to_all = serve.make(refdata_db, pod("D", auth={"enabled": False, "jwksFile": None},
                                             http={"listen": [f"0.0.0.0:{free_port()}"]}))
    done = run("serve", "--config", open_to_all.config_path, env=open_to_all.env)
    assert done.returncode == 1
    assert "loopback" in done.stderr


# ---- freshet token ----

def issue(folder, *args):
    done = run("token", *args, "--key", folder / "keys" / "dev.json", "--jwks", folder / "keys" / "jwks.json")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_freshet_token_prints_a_token_the_server_takes(serve, refdata_db, tmp_path):
    """C5: `freshet token` issues development tokens from a local key."""
    printed = issue(tmp_path, "--tenant", "demo", "--ttl", "10m", "--issuer", ISSUER, "--audience", AUDIENCE)
    assert printed.count("\n") == 1 and printed.count(".") == 2
    key, jwks = tmp_path / "keys" / "dev.json", tmp_path / "keys" / "jwks.json"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "d" not in json.loads(jwks.read_text())["keys"][0]
    server = serve(refdata_db, pod("D", auth={"jwksFile": str(jwks)}))
    assert status(server, printed.strip()) == 200
    again = issue(tmp_path, "--tenant", "demo", "--issuer", ISSUER, "--audience", AUDIENCE)
    assert again != printed and status(server, again.strip()) == 200
    other = issue(tmp_path, "--tenant", "other", "--issuer", ISSUER, "--audience", AUDIENCE)
    assert status(server, other.strip()) == 403


def test_many_freshet_token_at_once_make_one_key(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda _: issue(tmp_path, "--tenant", "demo"), range(8)))
    assert len({token.split(".")[0] for token in tokens}) == 1  # one kid
    assert len(json.loads((tmp_path / "keys" / "jwks.json").read_text())["keys"]) == 1


@pytest.mark.parametrize("args", [[], ["--tenant", "a/b"], ["--tenant", ""], ["--tenant", "demo", "--ttl", "0"],
                                  ["--tenant", "demo", "--ttl", "-1h"], ["--tenant", "demo", "--ttl", "soon"]])
def test_freshet_token_refuses_what_no_server_would_take(tmp_path, args):
    done = run("token", *args, "--key", tmp_path / "dev.json", "--jwks", tmp_path / "jwks.json")
    assert done.returncode != 0
    assert done.stdout == "" and done.stderr
