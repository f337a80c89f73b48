"""E1, E2, C5, C6, C11: grants, revokes and lists as the seed shows them."""
import json

import pytest

from lib.entitlement import GRANTS, REVOKES, ROLE, SCOPES, TIME, body, grant, listed, new_key, revoke
from lib.refdata import module_refdata_db  # noqa: F401


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    return module_serve(module_refdata_db, args=ROLE)


@pytest.fixture
def client(server, token):
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        yield client


@pytest.fixture
def user():
    return f"u_{new_key()}"


# ---- the seed's examples ----

def test_the_seeds_grant_revoke_and_list_word_for_word(client):
    """Seed 004: the four examples, down to the order of the fields. (Its versions cannot be: the first is a grant, so every
    ACTIVE one is odd.)"""
    for number in range(1, 12):
        assert (grant if number % 2 else revoke)(client).json()["version"] == number
    granted = grant(client, key="p_456")
    assert granted.status == 409  # it is ACTIVE since 11: one more revoke, and the seed's story begins
    assert granted.json() == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already ACTIVE"}
    revoke(client)
    revoke(client, "u_124")  # somebody else's is none of it
    text = ('{"user_id": "u_123", "stock_keeping_unit": "item1", "reason": "purchase", "purchase_id": "p_456"}')
    granted = client.request("POST", GRANTS, text, {"Content-Type": "application/json", "Idempotency-Key": "p_456-again"})
    assert granted.status == 200 and granted.headers["content-type"] == "application/json"
    answer = granted.json()
    assert list(answer) == ["user_id", "stock_keeping_unit", "status", "version", "updated_at"]
    assert TIME.fullmatch(answer["updated_at"])
    assert {**answer, "updated_at": ""} == {"user_id": "u_123", "stock_keeping_unit": "item1", "status": "ACTIVE",
                                            "version": 13, "updated_at": ""}
    there = listed(client, "u_123")
    assert there.status == 200 and list(there.json()) == ["user_id", "entitlements"]
    assert list(there.json()["entitlements"][0]) == ["stock_keeping_unit", "status", "version", "updated_at"]
    assert there.json() == {"user_id": "u_123", "entitlements": [
        {"stock_keeping_unit": "item1", "status": "ACTIVE", "version": 13, "updated_at": answer["updated_at"]}]}
    revoked = revoke(client, key="p_457")
    assert (revoked.status, revoked.json()["status"], revoked.json()["version"]) == (200, "REVOKED", 14)


def test_e2_a_state_is_not_entered_twice_and_nothing_is_revoked_that_was_never_granted(client, user):
    assert (revoke(client, user).status, revoke(client, user).json()) == (
        409, {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "never granted"})
    assert grant(client, user).json()["version"] == 1
    assert grant(client, user).json() == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already ACTIVE"}
    assert revoke(client, user).json()["version"] == 2
    assert revoke(client, user).json() == {"code": "ENTITLEMENT_STATE_CONFLICT", "message": "already REVOKED"}
    assert grant(client, user).json()["version"] == 3


def test_e1_a_list_is_sorted_by_sku_and_an_unknown_user_has_none(client, user):
    assert listed(client, user).json() == {"user_id": user, "entitlements": []}
    for sku in ("b", "a", "Z", "ä", "10", "9"):
        grant(client, user, sku)
    revoke(client, user, "b")
    found = listed(client, user).json()["entitlements"]
    assert [entry["stock_keeping_unit"] for entry in found] == ["10", "9", "Z", "a", "b", "ä"]  # bytewise
    assert {entry["stock_keeping_unit"]: entry["status"] for entry in found}["b"] == "REVOKED"


@pytest.mark.parametrize("name", ["a/b", "100%", "ключ 🔑", 'quo"te\\', "a.b-c_d~e", "x" * 255])
def test_any_text_may_be_a_name(client, name):
    """C3: percent-encoded in the path, itself everywhere else."""
    answer = grant(client, name, name)
    assert answer.status == 200 and answer.json()["user_id"] == name
    assert listed(client, name).json()["user_id"] == name
    assert listed(client, name).json()["entitlements"][0]["stock_keeping_unit"] == name


# ---- keys ----

def test_e1_a_key_is_required(client):
    for path in (GRANTS, REVOKES):
        answer = client.post(path, body())
        assert (answer.status, answer.code) == (400, "BAD_REQUEST")
        assert "Idempotency-Key" in answer.json()["message"]


def test_i2_the_same_key_and_body_is_the_same_answer_byte_for_byte(client, user):
    first = grant(client, user, key="k1" + user)
    again = grant(client, user, key="k1" + user)
    assert (again.status, again.body) == (first.status, first.body)
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    other = grant(client, user, "item2", key="k1" + user)
    assert (other.status, other.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")


def test_i4_a_refusal_is_stored_and_comes_again_even_when_it_would_not_be_refused_now(client, user):
    refused = revoke(client, user, key="r" + user)
    grant(client, user)
    again = revoke(client, user, key="r" + user)
    assert (again.status, again.body) == (409, refused.body) and again.headers["idempotency-replayed"] == "true"
    assert listed(client, user).json()["entitlements"][0]["status"] == "ACTIVE"


def test_i4_a_bad_request_leaves_its_key_free(client, user):
    bad = client.post(GRANTS, {**body(user), "reason": ""}, Idempotency_Key="b" + user)
    assert bad.status == 400
    assert grant(client, user, key="b" + user).status == 200


def test_i2_a_refund_may_share_the_purchases_key(client, user):
    """The seed uses purchase_id as key: grant and revoke are routes of their own."""
    assert grant(client, user, key="p_1" + user).json()["version"] == 1
    assert revoke(client, user, key="p_1" + user).json()["version"] == 2
    assert grant(client, user, key="p_1" + user).json()["version"] == 1


# ---- bad input ----

BAD = [(name, value) for name in body() for value in (None, 7, [], "", " ", "a\nb", "x" * 256)]


@pytest.mark.parametrize("name, value", BAD, ids=[f"{name}-{number}" for number, (name, _) in enumerate(BAD)])
def test_e2_c6_a_bad_field_is_named(client, user, name, value):
    answer = client.post(GRANTS, {**body(user), name: value}, Idempotency_Key=new_key())
    assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", name)


def test_c6_what_is_no_such_body_is_refused_and_the_connection_goes_on(client, user):
    for name in body():
        part = {key: value for key, value in body(user).items() if key != name}
        answer = client.post(GRANTS, part, Idempotency_Key=new_key())
        assert (answer.status, answer.json()["field"]) == (400, name)
    whole = json.dumps(body(user))
    for text in ("", "{", "[]", "null", "7", whole + "x", whole[:-1] + ',"reason":"twice"}', whole.replace("p_456", "\\u0000"),
                 whole.replace("p_456", "\\ud800"), "[" * 100 + "]" * 100):
        answer = client.request("POST", GRANTS, text, {"Content-Type": "application/json", "Idempotency-Key": new_key()})
        assert (answer.status, answer.code) == (400, "BAD_REQUEST"), text
    assert client.request("POST", GRANTS, whole, {"Content-Type": "text/plain", "Idempotency-Key": new_key()}).status == 415
    assert client.request("POST", GRANTS, b'{"x":"' + b"x" * 70000 + b'"}',
                          {"Content-Type": "application/json", "Idempotency-Key": new_key()}).status == 413
    assert listed(client, user).json()["entitlements"] == []


def test_members_that_nobody_asked_for_are_not_looked_at(client, user):
    answer = client.post(GRANTS, {**body(user), "note": {"a": [1]}, "version": 99}, Idempotency_Key=new_key())
    assert (answer.status, answer.json()["version"]) == (200, 1)


def test_c6_the_wrong_method_and_stray_parameters(client):
    assert client.get(GRANTS).headers["allow"] == "POST, OPTIONS"
    answer = client.get("/v1/users/u/entitlements?status=ACTIVE")
    assert (answer.status, answer.json()["field"]) == (400, "status")
    assert client.get("/v1/users/%ff/entitlements").status == 400


# ---- pages ----

def test_a_list_has_pages_and_every_page_a_bound(server, module_refdata_db, token):
    """E1, C6: 1,000 entitlements at most, whatever a user has; cursors go on where a page ended, in bytewise order."""
    skus = sorted([f"s{number:04}" for number in range(1000)] + ["\u00e9", "a,b&c", "\U0001f600"], key=str.encode)
    module_refdata_db.query("insert into entitlement.entitlements select 'demo', 'u_many', sku, 'ACTIVE', 1, now(), now()"
                            " from unnest(%s) as sku", (skus,))
    with server.client(token("demo", subject="u_many")) as client:
        first = listed(client, "u_many").json()
        assert list(first) == ["user_id", "entitlements", "next_cursor"] and len(first["entitlements"]) == 1000
        rest = client.get(f"/v1/users/u_many/entitlements?cursor={first['next_cursor']}").json()
        assert list(rest) == ["user_id", "entitlements"]
        assert [one["stock_keeping_unit"] for page in (first, rest) for one in page["entitlements"]] == skus
        page = client.get("/v1/users/u_many/entitlements?limit=1003").json()
        assert page["field"] == "limit"
        exact = client.get(f"/v1/users/u_many/entitlements?limit=3&cursor={first['next_cursor']}").json()
        assert exact == rest and len(rest["entitlements"]) == 3
        two = client.get(f"/v1/users/u_many/entitlements?limit=2&cursor={first['next_cursor']}").json()
        assert two["entitlements"] == rest["entitlements"][:2] and "next_cursor" in two


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=", "cursor=abc", "cursor=zz", "cursor=ff", "cursor=6100",
                                   "cursor=61&cursor=62"])
def test_a_page_that_cannot_be_is_400_and_names_the_parameter(client, query):
    answer = client.get(f"/v1/users/u/entitlements?{query}")
    assert (answer.status, answer.json()["field"]) == (400, query.split("=")[0])


# ---- who may ----

def test_c5_changes_need_a_scope_and_so_do_others_lists(server, token, user):
    with server.client(token("demo", subject=user)) as own:
        for path in (GRANTS, REVOKES):
            answer = own.post(path, body(user), Idempotency_Key=new_key())
            assert (answer.status, answer.code) == (403, "INSUFFICIENT_SCOPE")
        assert listed(own, user).status == 200
        assert (listed(own, "u_123").status, listed(own, "u_123").code) == (403, "INSUFFICIENT_SCOPE")
    with server.client(token("demo", subject=user, scope="entitlement:read")) as reader:
        assert listed(reader, "u_123").status == 200
        assert grant(reader, user).status == 403
    with server.client() as stranger:
        assert (grant(stranger, user).status, listed(stranger, user).status) == (401, 401)


def test_c11_tenants_have_users_and_keys_of_their_own(server, token, user):
    def client_of(tenant):
        return server.client(token(tenant, subject="shop", scope=SCOPES))
    with client_of("acme") as acme, client_of("zenith") as zenith:
        assert grant(acme, user, key="same" + user).json()["version"] == 1
        assert grant(zenith, user, key="same" + user).headers.get("idempotency-replayed") is None
        assert revoke(acme, user).json()["version"] == 2
        assert listed(zenith, user).json()["entitlements"][0]["status"] == "ACTIVE"


def test_c5_a_token_without_a_tenant_may_nothing(server, key):
    from lib import tokens  # pylint: disable=import-outside-toplevel
    with server.client(tokens.mint(key, None, scope=SCOPES)) as client:
        assert (grant(client).status, grant(client).code) == (403, "TENANT_MISMATCH")
        assert (listed(client, "u_123").status, listed(client, "u_123").code) == (403, "TENANT_MISMATCH")
