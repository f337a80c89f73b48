"""P2, C3-C6, R3-R7: routes, api/openapi.yaml and the answers of a running program agree, in both directions.

Every operation is asked for every answer it describes. Each answer must be as described, with no header or field more,
and every status described must come, but for 500: there is no known way to one.
"""
import json
import re
from functools import lru_cache
from types import SimpleNamespace

import pytest

from lib.freshet import run
from lib.openapi_answers import collect
from lib.openapi_client import DOCUMENT, OPERATIONS, TENANT, Asking, committed, item, raw, target_of, update
from lib.refdata import make_table, module_refdata_db, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually, free_port
from lib.wire import request_bytes


def test_every_route_is_described_and_every_described_one_exists():
    """The operator's API is described by docs/OPS.md alone so far."""
    routes = {tuple(line.split()[:2]) for line in run("routes").stdout.splitlines()}
    described = {(operation.method, operation.path) for operation in OPERATIONS.values()}
    assert described == {route for route in routes if not route[1].startswith("/v1/ops/")}


# ---- servers ----

def fill(server, bearer):
    """Takes the only connection the server gives, by a stream that does not end."""
    def follow():
        connection = server.raw()
        connection.send(request_bytes("GET", target_of(OPERATIONS["watch"]), {"Authorization": f"Bearer {bearer}"}))
        return connection.read_head().status == 200
    eventually(follow)


@pytest.fixture(scope="module")
def servers(module_serve, module_refdata_db, token):
    """One that works, one with little patience, one that is full, one with a rate limit, and one whose PostgreSQL is not there."""
    write_builtin(module_refdata_db, "COUNTRY", {"DE": {"name": "Germany"}, "JP": ["Japan"], "ключ, / 🔑": None},
                  version=1, tenant=TENANT)
    broken = {"code": "BROKEN", "loadSql": "select 1 as nothing", "shared": True}
    strict = {"code": "STRICT", "loadSql": "select k, v from strict where tenant_id = :tenantId",
              "apply": {"upsertSql": "insert into strict select :tenantId, :key, to_jsonb((:payload #>> '{}')::int)"}}
    make_table(module_refdata_db, "strict")
    read_only = {"code": "READ_ONLY", "loadSql": "select k, v from strict where tenant_id = :tenantId"}
    working = pod("COUNTRY", "EMPTY", "FEATURE", "LINES", broken, strict, read_only)  # one for all: any of them may apply an update
    working["refdata"]["updates"] = {"snapshotExpiry": "300ms"}
    working["debug"] = {"enabled": True}
    cut_off = pod("COUNTRY", "FEATURE", cache={"preload": ["demo/COUNTRY"]})
    cut_off["refdata"]["postgres"] = {"jdbcUrl": f"jdbc:postgresql://127.0.0.1:{free_port()}/none"}
    group = SimpleNamespace(
        database=module_refdata_db,
        working=module_serve(module_refdata_db, working),
        impatient=module_serve(module_refdata_db, {**working, "http": {"limits": {"headerTimeout": "200ms"}},
                                                   "entitlement": {"hydration": {"enabled": True}}}),
        full=module_serve(module_refdata_db, {**working, "http": {"limits": {"connections": 1}}}),
        limited=module_serve(module_refdata_db, {**working, "limits": {"rates": [{"rate": 0.001}]}}),
        cut_off=module_serve.make(module_refdata_db, cut_off).start(ready=False),
        token=token(TENANT, scope="entitlement:write entitlement:read notification:read"), strange_token=token("other"),
        homeless_token=token(None))
    fill(group.full, group.token)
    assert Asking(group.limited, group.token).ask(OPERATIONS["getVersion"]).status == 200  # the only one
    eventually(lambda: "serving" in group.cut_off.log())
    group.answers_of = lru_cache(None)(lambda name: collect(group, name))
    return group


# ---- the comparison ----

@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_as_described_and_every_described_one_comes(servers, name):
    responses = OPERATIONS[name].responses
    answers = servers.answers_of(name)
    for answer in answers:
        assert answer.status in responses, f"{answer.status} is not described: {answer.body!r}"
        DOCUMENT.check(responses[answer.status], answer)
    assert {answer.status for answer in answers} == set(responses) - {500}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].method == "GET"])
def test_head_answers_as_described_without_the_body(servers, name):
    operation = OPERATIONS[name]
    for made in ("postUpdate", "postMessage", "createItem"):  # what is asked for below
        Asking(servers.working, servers.token).ask(OPERATIONS[made])
    for bearer in (servers.token, None):
        auth = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        answer = raw(servers.working, request_bytes("HEAD", target_of(operation), auth), "HEAD")
        assert answer.status == (200 if bearer or operation.is_public else 401)
        DOCUMENT.check(operation.responses[answer.status], answer, "HEAD")


def test_every_example_of_an_error_was_really_answered(servers):
    said = [answer.json() for name in OPERATIONS for answer in servers.answers_of(name) if answer.status >= 400]
    examples = {name: response["content"]["application/json"]["example"]
                for name, response in DOCUMENT.root["components"]["responses"].items()}
    errors = {name: example for name, example in examples.items() if "code" in example}
    never = {name for name, example in errors.items() if example not in said}
    assert never == {"InternalError"} and len(errors) > 15


def test_every_media_type_and_every_code_came(servers):
    """A schema with a choice: each branch was seen."""
    answers = [answer for name in OPERATIONS for answer in servers.answers_of(name)]
    kinds = {answer.headers.get("content-type") for answer in answers} - {None}
    described = {kind for operation in OPERATIONS.values() for response in operation.responses.values()
                 for kind in response.get("content", {})}
    assert kinds == described
    codes = {answer.json()["code"] for answer in answers if answer.status >= 400 and b'"code"' in answer.body}
    written = set(re.findall(r"code: \{const: (\w+)\}", DOCUMENT.text)) | {"OVERLOADED"}
    assert codes == written - {"INTERNAL_ERROR", "COMMAND_LOST"}  # the latter: test_books.py


def test_a_path_that_is_not_described_is_404(servers):
    answer = raw(servers.working, request_bytes("GET", "/v1/tenants/demo/dictionaries/COUNTRY"))
    assert answer.status == 404
    DOCUMENT.check(DOCUMENT.root["components"]["responses"]["NotFound"], answer)


def test_the_comparison_finds_what_is_not_described(servers):
    """The checker itself: an answer with one header or field more, less or other is refused."""
    response = OPERATIONS["getItem"].responses[200]
    good = raw(servers.working, request_bytes("GET", target_of(OPERATIONS["getItem"]),
                                              {"Authorization": f"Bearer {servers.token}"}))
    DOCUMENT.check(response, good)
    bad_headers = [{**good.headers, "x-new": "1"}, {**good.headers, "x-dict-version": "one"},
                   {**good.headers, "content-type": "text/html"},
                   {name: value for name, value in good.headers.items() if name != "etag"}]
    bad_bodies = [b'{"key":"DE","payload":1,"more":1}', b'{"key":"DE"}', b'{"key":1,"payload":1}', b"[]"]
    for headers, body in [(headers, good.body) for headers in bad_headers] + [(good.headers, body) for body in bad_bodies]:
        with pytest.raises(AssertionError):
            DOCUMENT.check(response, SimpleNamespace(status=200, headers=headers, body=body))


def test_r7_what_the_primary_answers_is_as_described(serve, refdata_db, token):
    """Loading takes for ever, so that only the primary can answer what is demanded."""
    make_table(refdata_db, "country", {"DE": "1"})
    refdata_db.query("create table pause(seconds float8)")
    set_version(refdata_db, "COUNTRY", 1)
    slow = {"code": "COUNTRY",
            "loadSql": "select k, v from country, (select pg_sleep(coalesce(max(seconds), 0)) from pause) as p"
                       " where tenant_id = :tenantId",
            "loadKeysSql": "select k, v from country where tenant_id = :tenantId and k = any(:keys)"}
    configuration = pod(slow, cache={"sweepInterval": "1h"})
    configuration["refdata"]["barrier"] = {"waitMs": 20}
    client = serve(refdata_db, configuration).client(token(TENANT))
    assert client.get(target_of(OPERATIONS["getItem"])).status == 200
    refdata_db.query("insert into pause values (20)")
    set_version(refdata_db, "COUNTRY", 2)
    for name, values, status in (("getItem", {}, 200), ("getItem", {"key": "XX"}, 404), ("getItems", {}, 200)):
        answer = client.get(target_of(OPERATIONS[name], **values), X_Min_Version="2")
        assert (answer.status, answer.headers["x-data-source"]) == (status, "postgres_fallback")
        DOCUMENT.check(OPERATIONS[name].responses[status], answer)


def test_r22_lines_of_a_stream_are_as_described(servers):
    """Written, deleted, up to date: each kind of line."""
    client, operation = Asking(servers.working, servers.token), OPERATIONS["watch"]
    waiting = target_of(OPERATIONS["postUpdate"], consistencyMode="WAIT_COMMIT")
    items = [item("kept", {"ж": [1.5, None]}), {"key": "gone", "op": "DELETE"}]
    version = committed(client, waiting, update(50, "LINES", items)).json()["committedVersion"]
    answer = client.get(target_of(operation, dictCode="LINES", after=version - 1))
    DOCUMENT.check(operation.responses[200], answer)
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line.get("op") for line in lines] == ["DELETE", "UPSERT", None] and lines[2] == {"upToDate": version}
