"""C5: who may ask, for which tenant, and what a refusal looks like."""
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lib.refdata import module_refdata_db, path, pod, write_builtin  # noqa: F401
from lib.tokens import Key, b64url, claims, encode, hs256, mint, write_jwks
from lib.wait import eventually
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

ALGORITHMS = ["RS256", "ES256", "EdDSA", "HS256"]


@pytest.fixture(scope="module")
def keys():
    """One trusted key of each algorithm."""
    return {alg: Key(alg) for alg in ALGORITHMS}


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db, keys, tmp_path_factory):
    write_builtin(module_refdata_db, "D", {"a": 1}, 1)
    jwks = write_jwks(tmp_path_factory.mktemp("all-keys") / "jwks.json", keys.values())
    return module_serve(module_refdata_db, pod("D", auth={"jwksFile": str(jwks)}))


def ask(server, token=None, target=path("D", "/items/a"), **headers):
    with server.client(token) as client:
        return client.get(target, **headers)


def assert_unauthenticated(answer):
    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"].lower().startswith("bearer")
    assert answer.json()["message"]


@pytest.mark.tsan
@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_good_token_of_each_algorithm_is_accepted_again_and_again(server, keys, alg):
    """C5: RS256, ES256, EdDSA, HS256."""
    token = mint(keys[alg])
    with server.client(token) as client:
        for _ in range(5):
            assert client.get(path("D", "/items/a")).status == 200


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_without_kid_is_accepted(server, keys, alg):
    token = jwt.encode(claims(), keys[alg].private, algorithm=alg)
    assert ask(server, token).status == 200


@pytest.mark.parametrize("authorization", [
    None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer a", "Bearer a.b", "Bearer a.b.c", "Bearer a.b.c.d.e",
    "Bearer ..", "Token a.b.c", "Bearer " + "a" * 9000, "Bearer a.b.c a.b.c", "Digest a.b.c",
])
def test_without_a_token_it_is_401_with_a_challenge(server, authorization):
    """C5: no or bad token is 401 UNAUTHENTICATED with WWW-Authenticate; the connection stays usable."""
    with server.raw() as connection:
        headers = {} if authorization is None else {"Authorization": authorization}
        for _ in range(3):
            assert_unauthenticated(connection.exchange(request_bytes("GET", path("D", "/items/a"), headers)))


def test_two_tokens_are_none(server, keys):
    line = f"Authorization: Bearer {mint(keys['EdDSA'])}\r\n"
    request = f"GET {path('D', '/items/a')} HTTP/1.1\r\nHost: x\r\n{line}{line}\r\n"
    with server.raw() as connection:
        assert connection.exchange(request.encode()).status in (400, 401)


def test_the_scheme_is_taken_in_any_case(server, keys):
    token = mint(keys["EdDSA"])
    assert ask(server, Authorization=f"bearer {token}").status == 200
    assert ask(server, Authorization=f"BEARER {token}").status == 200


# ---- forgeries ----

def forged(keys):
    """Each a token that some library once took."""
    good = claims()
    ed, rs, es, hs = (keys[alg] for alg in ["EdDSA", "RS256", "ES256", "HS256"])
    stranger = Key("EdDSA", kid=ed.kid)
    public = rs.private.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    honest = ed.sign(good)
    head, body, signature = honest.split(".")
    for alg in ["none", "None", "nOnE", "NONE", ""]:
        yield f"alg {alg!r}", encode({"alg": alg, "typ": "JWT"}, good)
        yield f"alg {alg!r} with a signature", encode({"alg": alg, "kid": ed.kid}, good, b"x" * 64)
    yield "no alg", encode({"kid": ed.kid}, good, b"x" * 64)
    yield "stranger's key under our kid", stranger.sign(good)
    for name, secret in {"PEM": pem, "DER": der, "JWK": json.dumps(rs.jwk).encode(), "n": rs.jwk["n"].encode()}.items():
        yield f"HS256 over RSA's {name}", hs256({"alg": "HS256", "kid": rs.kid}, good, secret)
        yield f"HS256 over RSA's {name}, no kid", hs256({"alg": "HS256"}, good, secret)
    yield "HS256 under another kid", hs256({"alg": "HS256", "kid": ed.kid}, good, hs.private)
    yield "HS256 with an empty secret", hs256({"alg": "HS256", "kid": "../../dev/null"}, good, b"")
    yield "blank ES256", encode({"alg": "ES256", "kid": es.kid}, good, bytes(64))
    yield "empty signature", f"{head}.{body}."
    yield "cut signature", honest[:-4]
    yield "signature of another token", f"{head}.{body}.{ed.sign(claims(subject='bob')).split('.')[2]}"
    yield "changed claims", f"{head}.{b64url(json.dumps({**good, 'tenant_id': 'demo', 'sub': 'root'}).encode())}.{signature}"
    yield "padding", honest + "=="
    yield "trailing dot", honest + "."
    yield "embedded jwk", stranger.sign(good, {"jwk": stranger.jwk})
    yield "embedded jwk, our key", ed.sign(good, {"jwk": ed.jwk})
    yield "jku", ed.sign(good, {"jku": "http://127.0.0.1:1/jwks"})
    yield "x5u", ed.sign(good, {"x5u": "http://127.0.0.1:1/cert"})
    yield "crit", ed.sign(good, {"crit": ["exp"]})
    yield "typ", ed.sign(good, {"typ": "secevent+jwt"})
    for kid in ["../../../etc/passwd", "' or 1=1--", "\u0000", "x" * 300]:
        yield f"kid {kid[:20]!r}", Key("EdDSA", kid=kid).sign(good)
    for claim in [{"exp": None}, {"exp": "9999999999"}, {"exp": -1}, {"exp": 1e300}, {"exp": True},
                  {"exp": int(time.time()) - 1}, {"nbf": int(time.time()) + 600}, {"nbf": "0"}, {"iss": None}, {"iss": "x"},
                  {"iss": ["https://issuer.test"]}, {"aud": None}, {"aud": "x"}, {"aud": []}, {"aud": 7},
                  {"aud": {"freshet": True}}, {"sub": 7}, {"sub": "a\u0000b"}]:
        yield f"claims {claim}", sign_raw(ed, json.dumps({k: v for k, v in {**good, **claim}.items() if v is not None}))
    twice = json.dumps(good)[:-1] + f', "exp": {good["exp"]}}}'
    yield "exp twice", sign_raw(ed, twice)
    yield "claims that are no object", sign_raw(ed, "[]")
    yield "claims that are no JSON", sign_raw(ed, "{")
    yield "deep claims", sign_raw(ed, json.dumps(good)[:-1] + ', "x": ' + "[" * 500 + "]" * 500 + "}")
    yield "alg twice", sign_raw(ed, json.dumps(good), f'{{"alg":"none","alg":"EdDSA","kid":"{ed.kid}"}}')


def sign_raw(key, payload, header=None):
    """Signs these very bytes, which no JWT library would."""
    header = header or json.dumps({"alg": key.alg, "kid": key.kid})
    unsigned = f"{b64url(header.encode())}.{b64url(payload.encode())}"
    return f"{unsigned}.{b64url(key.private.sign(unsigned.encode()))}"


@pytest.mark.tsan
def test_no_forgery_gets_in(server, keys):
    """C5: alg none, key confusion, keys in the token, bad claims."""
    let_in = []
    for name, token in forged(keys):
        answer = ask(server, token)
        if answer.status != 401 or answer.code != "UNAUTHENTICATED":
            let_in.append((name, answer.status, answer.body))
        assert ask(server, token).status == 401, name  # known as bad by now
    assert not let_in
    assert ask(server, sign_raw(keys["EdDSA"], json.dumps(claims()))).status == 200  # the forger can sign


def test_a_refusal_tells_no_token_and_no_secret(server, keys):
    """C9: never a token in an answer or a log."""
    token = mint(Key("EdDSA", kid="not-known-here"))
    answer = ask(server, token)
    assert answer.status == 401
    for part in token.split("."):
        assert part.encode() not in answer.body
        assert part not in server.log()


# ---- time ----

def test_a_token_ends_with_its_exp_however_well_known(server, keys):
    """C5: the cache of verified tokens never outlives exp."""
    token = mint(keys["EdDSA"], ttl=3)
    with server.client(token) as client:
        assert client.get(path("D", "/items/a")).status == 200
        eventually(lambda: client.get(path("D", "/items/a")).status == 401)
        expired_for = time.time() - jwt.decode(token, options={"verify_signature": False})["exp"]
        assert expired_for >= 0, "refused before its time"
        for _ in range(3):
            assert_unauthenticated(client.get(path("D", "/items/a")))


# ---- tenant ----

@pytest.mark.parametrize("changes, target, status, code", [
    ({}, path("D", "/items/a"), 200, None),
    ({"tenant": "other"}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": "demo"}, path("D", "/items/a", tenant="other"), 403, "TENANT_MISMATCH"),
    ({"tenant": "Demo"}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": None}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": ""}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": 7}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": ["demo"]}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({"tenant": "demo/../other"}, path("D", "/items/a"), 403, "TENANT_MISMATCH"),
    ({}, path("D", "/items/a", tenant="%64emo"), 200, None),
    ({}, path("NO_SUCH", "/items/a", tenant="other"), 403, "TENANT_MISMATCH"),
])
def test_the_tenant_of_the_token_must_be_the_tenant_of_the_path(server, keys, changes, target, status, code):
    """C5: a path tenant that differs, or no tenant claim, is 403; nothing about the other tenant is told."""
    answer = ask(server, mint(keys["EdDSA"], **changes), target)
    assert answer.status == status
    assert status == 200 or answer.code == code


def test_a_header_does_not_change_the_tenant(server, keys):
    """C5: X-Tenant-Id is for trusted mTLS clients only."""
    token = mint(keys["EdDSA"], tenant="other")
    answer = ask(server, token, X_Tenant_Id="demo", X_Forwarded_Client_Cert="URI=spiffe://mesh/trusted")
    assert (answer.status, answer.code) == (403, "TENANT_MISMATCH")
    assert ask(server, mint(keys["EdDSA"]), X_Tenant_Id="other").status == 200


def test_a_token_without_sub_or_with_a_long_one(server, keys):
    assert ask(server, mint(keys["EdDSA"], subject=None)).status == 200
    assert ask(server, mint(keys["EdDSA"], subject="s" * 255)).status == 200
    assert ask(server, mint(keys["EdDSA"], subject="s" * 256)).status == 401


# ---- what needs no token ----

@pytest.mark.parametrize("target", ["/actuator/health", "/actuator/health/liveness", "/actuator/health/readiness",
                                    "/actuator/prometheus"])
def test_actuator_needs_no_token_and_looks_at_none(server, target):
    """C5: /actuator/* is open."""
    assert ask(server, None, target).status == 200
    assert ask(server, "nonsense", target).status == 200


def test_metrics_count_tokens_by_result(server, keys):
    ask(server, mint(keys["EdDSA"]))
    ask(server, mint(Key("EdDSA")))
    metrics = server.metrics()
    assert metrics['auth_tokens_total{result="valid"}'] >= 1
    assert metrics['auth_tokens_total{result="unknown_key"}'] >= 1
    assert metrics["auth_keys"] == len(ALGORITHMS)
    assert metrics["auth_verify_seconds_count"] >= 2


# ---- many at once ----

@pytest.mark.tsan
def test_pipelined_requests_with_different_tokens_are_answered_each_by_its_own(server, keys):
    """C5, issue 2: misses are verified off the loop and answers keep their order."""
    tokens = [mint(keys["EdDSA"], tenant=tenant) for tenant in ["demo", "other"] * 20]
    with server.raw() as connection:
        connection.send(b"".join(
            request_bytes("GET", path("D", "/items/a"), {"Authorization": f"Bearer {token}"}) for token in tokens))
        assert [connection.read_response().status for _ in tokens] == [200, 403] * 20


@pytest.mark.parametrize("tenant", ["bad%20tenant", "*", "%0a", "a%2Fb", "a" * 65, "%D0%B0"])
def test_without_authentication_a_tenant_is_still_a_name(serve, database, tenant):
    """C6: [A-Za-z0-9._-]{1,64}, whoever asks; nothing else takes memory or becomes a label."""
    server = serve(database, {"auth": {"enabled": False}, "refdata": {"dictionaries": [{"code": "D"}]}})
    answer = server.client().get(f"/v1/tenants/{tenant}/dictionaries/D/version")
    assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", "tenantId")
    assert server.client().get("/v1/tenants/demo/dictionaries/D/version").status == 200
