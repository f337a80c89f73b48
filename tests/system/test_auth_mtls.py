"""C5: clients behind the mesh, known by X-Forwarded-Client-Cert."""
import pytest

from lib.refdata import module_refdata_db, path, pod, write_builtin  # noqa: F401

TRUSTED, PLAIN = "spiffe://mesh/ns/a/sa/trusted", "spiffe://mesh/ns/a/sa/plain"
CLIENTS = [
    {"identity": TRUSTED, "trusted": True},
    {"identity": PLAIN, "tenant": "demo"},
    {"identity": "CN=legacy,O=A", "tenant": "demo"},
    {"identity": r"CN=Acme\, Inc.,O=B", "tenant": "demo"},
    {"identity": 'CN=quoted,O="C, D"', "tenant": "demo"},
]


def changes(peers, allow):
    tenant = {"source": "JWT_CLAIM", "claim": "tenant_id", "allowHeaderOverrideForTrustedClients": allow}
    config = pod("D", auth={"mtls": {"peers": peers, "clients": CLIENTS}})
    config["refdata"]["security"] = {"tenant": tenant}
    return config


@pytest.fixture(scope="module")
def filled(module_refdata_db):
    for tenant in ["demo", "other"]:
        write_builtin(module_refdata_db, "D", {"of": tenant}, 1, tenant)
    return module_refdata_db


@pytest.fixture(scope="module")
def server(module_serve, filled):
    """Behind a sidecar on this machine, tenants may be named."""
    return module_serve(filled, changes(["127.0.0.0/8", "::1"], True))


def ask(server, cert=None, tenant=None, token=None, of="demo"):
    headers = {}
    if cert:
        headers["X_Forwarded_Client_Cert"] = cert
    if tenant:
        headers["X_Tenant_Id"] = tenant
    with server.client(token) as client:
        answer = client.get(path("D", "/items/of", of), **headers)
    if answer.status == 200:
        assert answer.json()["payload"] == of
    return answer.status


@pytest.mark.parametrize("cert, status", [
    (f"URI={PLAIN}", 200),
    (f'By=spiffe://mesh/us;Hash=00ff;Subject="";URI={PLAIN}', 200),
    ('Hash=1;Subject="CN=legacy,O=A"', 200),
    (f"URI=spiffe://mesh/edge,URI={PLAIN}", 200),
    (f"URI={PLAIN},URI=spiffe://mesh/edge", 401),
    ("URI=spiffe://mesh/nobody", 401),
    (f'Subject="x;URI={PLAIN}"', 401),
    (f'Subject="x,URI={PLAIN}"', 401),
    (f"URI={PLAIN};", 401),
    (f'URI="{PLAIN}', 401),
    ("nonsense", 401),
    (None, 401),
])
def test_a_client_is_the_last_element_and_its_uri_before_its_subject(server, cert, status):
    assert ask(server, cert) == status


@pytest.mark.parametrize("subject, status", [
    (r"CN=legacy\,O=A", 401),       # one attribute, whose value is "legacy,O=A"
    (r"CN=legacy\2CO=A", 401),
    (r"CN=legacy\\,O=A", 401),      # CN ends in a backslash
    (r"CN\=legacy,O=A", 401),
    (r"CN=le\gacy,O=A", 401),
    (r"CN=Acme\, Inc.,O=B", 200),
    ("CN=Acme, Inc.,O=B", 401),
    (r"CN=Acme\\, Inc.,O=B", 401),
    (r'CN=quoted,O=\"C, D\"', 200),
    (r'CN=quoted,O=\\\"C, D\\\"', 401),
])
def test_an_escaped_separator_inside_an_attribute_does_not_separate(server, subject, status):
    """C5: the subject is compared as the sidecar wrote it, escapes of the distinguished name included."""
    assert ask(server, f'Hash=1;Subject="{subject}"') == status


def test_a_trusted_client_names_the_tenant(server, token):
    assert ask(server, f"URI={TRUSTED}", "demo") == 200
    assert ask(server, f"URI={TRUSTED}", "other", of="other") == 200
    assert ask(server, f"URI={TRUSTED}", "other") == 403  # still the path's
    assert ask(server, f"URI={TRUSTED}") == 403           # it has none of its own
    assert ask(server, f"URI={TRUSTED}", "a b") == 403
    assert ask(server, f"URI={TRUSTED}", "other", token("demo"), of="other") == 200


def test_a_client_is_a_user_and_a_token_without_sub_is_none(server, token):
    """C5: who is known by a certificate has a name; keys of updates need one."""
    target, update = "/v1/tenants/demo/updates", {"dictCode": "D", "type": "DELTA", "items": []}
    chat = "/my/projects/0a4f5a3e-52a4-4a0e-8d3c-2f0c1d8f7a01/chat/6f1b7c1e-8f0a-4f57-9a51-7d3f3f0b9b10/messages"
    cert = {"X-Forwarded-Client-Cert": f"URI={PLAIN}"}
    with server.client() as client:
        assert client.request("POST", target, update, {"Idempotency-Key": "k1", **cert}).status == 400  # the body's fault
        assert client.request("GET", chat, headers=cert).code == "SESSION_NOT_FOUND"
    with server.client(token("demo", subject=None)) as client:
        answer = client.request("POST", target, update, {"Idempotency-Key": "k1"})
        assert (answer.status, answer.code) == (403, "INSUFFICIENT_SCOPE") and "sub" in answer.json()["message"]
        assert client.request("POST", target, update).status == 400
        assert client.request("GET", chat).code == "INSUFFICIENT_SCOPE"


def test_a_plain_client_and_a_token_alone_do_not(server, token):
    assert ask(server, f"URI={PLAIN}", "other", of="other") == 403
    assert ask(server, None, "other", token("demo"), of="other") == 403


def test_a_bad_token_is_bad_whoever_brings_it(server):
    assert ask(server, f"URI={PLAIN}", token="nonsense") == 401


def test_without_leave_nobody_names_the_tenant(serve, filled):
    """C5: only where allowHeaderOverrideForTrustedClients is true."""
    server = serve(filled, changes(["127.0.0.1"], False))
    assert ask(server, f"URI={TRUSTED}", "demo") == 403
    assert ask(server, f"URI={PLAIN}") == 200


@pytest.mark.parametrize("peers", [["10.0.0.0/8"], ["127.0.0.2"], ["::1"]])
def test_from_other_peers_the_header_is_not_believed(serve, filled, token, peers):
    server = serve(filled, changes(peers, True))
    assert ask(server, f"URI={TRUSTED}", "demo") == 401
    assert ask(server, f"URI={TRUSTED}", "other", token("demo"), of="other") == 403
    assert ask(server, f"URI={TRUSTED}", "other", token("demo")) == 200  # the token alone counts


def test_keys_are_counted_only_where_clients_need_them(serve, module_refdata_db):
    """C8: a process that knows its clients by their certificates alone has no key, and misses none."""
    config = changes(["127.0.0.0/8", "::1"], True)
    config["auth"]["jwksFile"] = None
    by_certificate = serve(module_refdata_db, config)
    assert "auth_keys" not in by_certificate.metrics()
    nobody = serve(module_refdata_db, pod("D", auth={"jwksFile": None}))
    assert nobody.metrics()["auth_keys"] == 0
