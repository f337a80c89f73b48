"""C5, C11: nobody reads another tenant's data."""
import pytest

from lib import tokens
from lib.refdata import (item_path, make_table, module_refdata_db, path, pod, set_version, sql_dictionary,  # noqa: F401
                         write_builtin)
from lib.wire import request_bytes

pytestmark = pytest.mark.roles("query")

ROUTES = ["/items/a", "/items/nobody", "/items?keys=a", "/all", "/all?limit=1", "/version"]
TENANTS = ["one", "two", "One", "one.", "on", "one-x"]


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    make_table(module_refdata_db, "t")
    for tenant in TENANTS:
        module_refdata_db.query("insert into t values (%s, 'a', %s)", (tenant, f'"secret of {tenant}"'))
        set_version(module_refdata_db, "T", 1, tenant)
        write_builtin(module_refdata_db, "B", {"a": f"secret of {tenant}"}, version=1, tenant=tenant)
    shared = {"code": "SHARED", "shared": True, "loadSql": "select 'metre' as k, to_jsonb('m'::text) as v"}
    return module_serve(module_refdata_db, pod(sql_dictionary("T"), "B", shared))


@pytest.mark.parametrize("code", ["T", "B"])
def test_each_tenant_sees_its_own(server, token, code):
    """C11: the same key in every tenant."""
    for tenant in TENANTS:
        client = server.client(token(tenant))
        assert client.get(item_path(code, "a", tenant)).json()["payload"] == f"secret of {tenant}"
        everything = client.get(path(code, "/all", tenant)).json()["items"]
        assert [item["payload"] for item in everything] == [f"secret of {tenant}"]


def test_a_shared_dictionary_is_read_by_every_tenant(server, token):
    """R15: loadSql without :tenantId, where the dictionary says shared: true."""
    for tenant in TENANTS[:2]:
        assert server.client(token(tenant)).get(item_path("SHARED", "metre", tenant)).json()["payload"] == "m"


@pytest.mark.parametrize("rest", ROUTES)
@pytest.mark.parametrize("code", ["T", "B", "NOBODY"])
def test_another_tenants_token_is_403_on_every_route_with_no_byte_of_data(server, token, code, rest):
    """C5: 403 TENANT_MISMATCH, known dictionary or not, loaded or not."""
    for mine in TENANTS:
        client = server.client(token(mine))
        for theirs in [t for t in TENANTS if t != mine] + ["stranger"]:
            for headers in [{}, {"Accept": "application/x-ndjson"}, {"If-None-Match": "*"}, {"X-Tenant-Id": theirs}]:
                answer = client.request("GET", path(code, rest, theirs), headers=headers)
                assert (answer.status, answer.code) == (403, "TENANT_MISMATCH")
                assert b"secret" not in answer.body
                assert "x-dict-version" not in answer.headers and "etag" not in answer.headers
        client.close()


@pytest.mark.parametrize("raw", ["on%65", "%6Fne"])
def test_a_tenant_may_be_escaped_and_is_compared_decoded(server, token, raw):
    """C5: the same tenant, however it is written."""
    assert server.client(token("one")).get(path("T", "/items/a", raw)).status == 200
    assert server.client(token("two")).get(path("T", "/items/a", raw)).status == 403


@pytest.mark.parametrize("claims", [
    {"tenant_id": None}, {"tenant_id": ""}, {"tenant_id": 1}, {"tenant_id": ["one"]}, {"tenant_id": {"a": "one"}},
    {"tenant_id": "one\u0000"}, {"tenant_id": "one/../two"}, {"tenant_id": "x" * 65},
])
def test_a_token_without_a_tenant_reads_nobody(server, key, claims):
    """C5: no tenant claim → 403 TENANT_MISMATCH; one that is no name is no tenant."""
    made = key.sign({**tokens.claims("one"), **claims} if claims["tenant_id"] is not None
                    else {k: v for k, v in tokens.claims("one").items() if k != "tenant_id"})
    for tenant in ["one", "two"]:
        answer = server.client(made).get(item_path("T", "a", tenant))
        assert (answer.status, answer.code) in ((403, "TENANT_MISMATCH"), (401, "UNAUTHENTICATED"))


def test_without_a_token_nothing_is_told_but_401(server):
    """C5: checked before anything else is looked at."""
    for rest in ROUTES:
        for code in ["T", "NOBODY"]:
            answer = server.client().get(path(code, rest, "one"))
            assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_pipelined_requests_of_two_tenants_do_not_mix(server, token):
    """C5: the identity belongs to the request, not to the connection."""
    connection = server.raw()
    order = [tenant for _ in range(30) for tenant in TENANTS]
    connection.send(b"".join(request_bytes("GET", item_path("T", "a", tenant), {"Authorization": f"Bearer {token(tenant)}"})
                             for tenant in order))
    for tenant in order:
        assert connection.read_response().json()["payload"] == f"secret of {tenant}"


@pytest.mark.tsan
def test_a_get_that_waits_for_its_body_keeps_its_own_identity(server, module_serve, module_refdata_db, token):
    """C5: a request between its head and its body is not lent the identity of a token that came meanwhile."""
    pod_of_few = module_serve(module_refdata_db, {**pod("B"), "http": {"loops": 1},
                                              "auth": {"cacheEntries": 16, "negativeEntries": 16}})
    mine, other = TENANTS[0], TENANTS[1]
    path = item_path("B", "a", mine)
    made = token(mine, subject="patient")
    assert pod_of_few.client(made).get(path).status == 200  # known by now: the gate passes at once
    connection = pod_of_few.raw()
    connection.send(request_bytes("GET", path, {"Authorization": f"Bearer {made}", "Content-Length": "2"}))
    for number in range(100):
        pod_of_few.client(token(other, subject=f"pusher{number}")).get(item_path("B", "a", other))
    connection.send(b"{}")
    answer = connection.read_response()
    assert (answer.status, answer.json()["payload"]) == (200, f"secret of {mine}")


@pytest.mark.tsan
def test_more_new_tokens_than_a_loop_remembers_are_each_their_own(server, module_serve, module_refdata_db, token):
    """C5: tokens pushed out of the table of verified ones at once never lend their identity to another."""
    pod_of_few = module_serve(module_refdata_db, {**pod("B"), "auth": {"cacheEntries": 16, "negativeEntries": 16}})
    connections = []
    for number in range(240):
        tenant = TENANTS[number % len(TENANTS)]
        connection = pod_of_few.raw()
        made = token(tenant, subject=f"user{number}")
        connection.send(request_bytes("GET", item_path("B", "a", tenant), {"Authorization": f"Bearer {made}"}) * 3)
        connections.append((tenant, connection))
    for tenant, connection in connections:
        for _ in range(3):
            answer = connection.read_response()
            assert answer.status in (200, 503)
            assert answer.status == 503 or answer.json()["payload"] == f"secret of {tenant}"
