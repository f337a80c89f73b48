"""Rate limits per tenant and route (limits.rates): 429 with Retry-After, for those that a rule names and for nobody else (C4, C6, I1)."""
import pytest

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.items import PATH, effects, fresh, item, post
from lib.refdata import item_path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes

ITEM_ROUTE = "GET /v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}"
ONE = {"rate": 0.001}  # one request, and the next one after a quarter of an hour: no test waits for it
LIMITED = "http_rate_limited_total"


def limits(*rules):
    return merge(pod("COUNTRY", "FEATURE"), {"limits": {"rates": list(rules)}})


@pytest.fixture
def start(serve, refdata_db, jwks_path):  # noqa: F811
    for tenant in ("a", "b", "c"):
        write_builtin(refdata_db, "COUNTRY", {"DE": 1}, version=1, tenant=tenant)

    def starting(*rules):
        server = serve(refdata_db, limits(*rules))
        server.change = lambda *rules: server.write_config(merge(base_config(refdata_db, jwks_path), limits(*rules)))
        return server
    return starting


def gets(server, bearer, tenant, count):
    client = server.client(bearer)
    return [client.get(item_path("COUNTRY", "DE", tenant)) for _ in range(count)]


def test_a_request_past_the_burst_is_429_with_retry_after_and_the_connection_stays_usable(start, token):
    server = start({"route": ITEM_ROUTE, "rate": 0.01, "burst": 3})
    head = {"Authorization": f"Bearer {token('a')}"}
    get = request_bytes("GET", item_path("COUNTRY", "DE", "a"), head)
    other = request_bytes("GET", "/v1/tenants/a/dictionaries/COUNTRY/version", head)
    connection = server.raw()
    connection.send((get * 5 + other) * 2)  # pipelined
    answers = [connection.read_response() for _ in range(12)]
    assert [answer.status for answer in answers] == [200] * 3 + [429] * 2 + [200] + [429] * 5 + [200]
    for answer in answers[3:5]:
        assert answer.json() == {"code": "RATE_LIMITED", "message": "the tenant has sent too many requests"}
        assert 90 <= int(answer.headers["retry-after"]) <= 100
    assert server.metrics()[f'{LIMITED}{{tenant="*",route="{ITEM_ROUTE}"}}'] == 7


def test_every_tenant_has_its_own_bucket_and_the_first_rule_that_holds_counts(start, token):
    server = start({"tenant": "c", "route": "GET *", "rate": 1000}, {"route": "GET *", **ONE})
    for tenant in ("a", "b"):
        assert [answer.status for answer in gets(server, token(tenant), tenant, 2)] == [200, 429]
    assert {answer.status for answer in gets(server, token("c"), "c", 20)} == {200}
    assert gets(server, token("a", subject="another"), "a", 1)[0].status == 429  # a new token of the same tenant
    client = server.client(token("a"))
    assert post(client, item()).status == 201  # another method
    assert server.is_ready()  # public routes have no tenant


def test_a_keyed_post_that_was_429_has_no_effect_and_can_be_sent_again(start, token, refdata_db):  # noqa: F811
    """I1, I3: the answer 429 is not stored for the key."""
    server = start({"route": f"POST {PATH}", **ONE})
    client, body, key = server.client(token("a")), item(), fresh("key")
    assert post(client, item(), fresh("key")).status == 201
    refused = post(client, body, key)
    assert (refused.status, refused.json()["error_code"]) == (429, "RATE_LIMITED")
    assert effects(refdata_db, body["sku"], "a") == (0, 0, 0)
    server.change()
    answer = eventually(lambda: (again := post(client, body, key)).status != 429 and again)
    assert (answer.status, answer.headers.get("idempotency-replayed")) == (201, None)
    assert post(client, body, key).headers["idempotency-replayed"] == "true"


def test_a_reload_changes_rules_and_keeps_the_buckets_of_those_that_stay(start, token):
    stays = {"tenant": "a", "route": ITEM_ROUTE, **ONE}
    server = start(stays)
    assert [answer.status for answer in gets(server, token("a"), "a", 2)] == [200, 429]
    assert {answer.status for answer in gets(server, token("b"), "b", 5)} == {200}
    server.change(stays, {"tenant": "b", **ONE})
    eventually(lambda: gets(server, token("b"), "b", 1)[0].status == 429)
    assert gets(server, token("a"), "a", 1)[0].status == 429
    server.change()
    eventually(lambda: gets(server, token("a"), "a", 1)[0].status == 200)
    assert {answer.status for answer in gets(server, token("b"), "b", 5)} == {200}


@pytest.mark.parametrize("rules, said", [
    ([{"route": "GET /nothing", "rate": 1}], 'limits.rates[0].route: "GET /nothing" is not a route; `freshet routes` lists them'),
    ([{"route": "FETCH *", "rate": 1}], 'limits.rates[0].route: "FETCH *" is not *, METHOD * or METHOD PATH'),
    ([{"route": "GET /actuator/health", "rate": 1}], "is public: its requests have no tenant"),
    ([{"route": "HEAD *", "rate": 1}], "HEAD counts as GET"),
    ([{"tenant": "a b", "rate": 1}], "limits.rates[0].tenant: a tenant's name is"),
    ([{"rate": 0}], "limits.rates[0].rate: must be 0.001 to 100000"),
    ([{}], "limits.rates[0].rate"),
    ([{"rate": 0.001, "burst": 100}], "limits.rates[0]: rate and burst: a full burst would take longer than a day to return"),
    ([{"route": "GET *", "rate": 1}, {"tenant": "a", "route": ITEM_ROUTE, "rate": 1}], "limits.rates[1]: has no effect: the rule at line"),
])
def test_a_wrong_rule_is_an_error_with_its_place(tmp_path, rules, said):
    file = tmp_path / "freshet.yaml"
    file.write_text(to_yaml({"limits": {"rates": rules}}))
    done = run("serve", "--config", file)
    assert done.returncode == 1
    place, message = done.stderr.split(": ", 1)
    assert place.startswith(f"{file}:") and place.count(":") == 2 and said in message, done.stderr
