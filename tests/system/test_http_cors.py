"""Issue 15, point 4: CORS by configuration, on the routes of a running program."""
import contextlib

import pytest

from lib.freshet import run
from lib.openapi_client import OPERATIONS, target_of
from lib.refdata import TENANT, item_path, module_refdata_db, path, pod, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import request_bytes

APP, STRANGE = "https://app.example.com", "https://evil.example.org"
CORS = {"cors": {"allowedOrigins": [APP, "http://localhost:3000"], "maxAge": "90s"}}


def cors_headers(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def asked(server, bearer, method, target, **headers):
    """One answer's head, on a connection of its own: a stream's as well."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if bearer:
        fields["Authorization"] = f"Bearer {bearer}"
    with contextlib.closing(server.raw()) as connection:
        connection.send(request_bytes(method, target, fields))
        return connection.read_head()


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    write_builtin(module_refdata_db, "D", {"a": 1}, version=1)
    return module_serve(module_refdata_db, pod("D", http=CORS))


def test_every_kind_of_answer_names_an_allowed_origin_and_no_other(server, token):
    """Data, 304, streams, errors of the gate, of the route, of the server and of the body."""
    bearer = token(TENANT)
    tag = asked(server, bearer, "GET", item_path("D", "a")).headers["etag"]
    requests = [
        (200, "GET", item_path("D", "a"), bearer, {}),
        (200, "HEAD", item_path("D", "a"), bearer, {}),
        (304, "GET", item_path("D", "a"), bearer, {"If_None_Match": tag}),
        (200, "GET", path("D", "/all"), bearer, {"Accept": "application/x-ndjson"}),
        (200, "GET", path("D", "/watch"), bearer, {"Accept": "text/event-stream"}),
        (401, "GET", item_path("D", "a"), None, {}),
        (403, "GET", item_path("D", "a", "other"), bearer, {}),
        (404, "GET", item_path("D", "none"), bearer, {}),
        (404, "GET", "/nowhere", bearer, {}),
        (405, "PUT", item_path("D", "a"), bearer, {}),
        (409, "GET", item_path("D", "a"), bearer, {"X_Min_Version": "99"}),
        (413, "POST", f"/v1/tenants/{TENANT}/updates", bearer,
         {"Content_Type": "application/json", "Content_Length": str(1 << 30)}),
        (200, "GET", "/actuator/prometheus", None, {}),
        (200, "GET", "/openapi.yaml", None, {}),
    ]
    for status, method, target, who, headers in requests:
        for origin in (APP, STRANGE, None):
            extra = {"Origin": origin} if origin else {}
            answer = asked(server, who, method, target, **headers, **extra)
            assert answer.status == status, (method, target, answer)
            assert "Origin" in answer.headers["vary"], (method, target)
            allowed = cors_headers(answer).get("access-control-allow-origin")
            assert allowed == (APP if origin == APP else None), (method, target, origin)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_preflight_is_answered_on_every_route_with_its_methods(server, name):
    """Without a token: browsers send none with a preflight."""
    operation = OPERATIONS[name]
    headers = {"Origin": APP, "Access_Control_Request_Method": operation.method,
               "Access_Control_Request_Headers": "authorization,content-type,x-min-version"}
    answer = asked(server, None, "OPTIONS", target_of(operation), **headers)
    assert answer.status == 204
    cors = cors_headers(answer)
    assert cors["access-control-allow-origin"] == APP and "access-control-allow-credentials" not in cors
    assert cors["access-control-allow-methods"] == answer.headers["allow"]
    assert operation.method in cors["access-control-allow-methods"].split(", ")
    allowed = {header.lower() for header in cors["access-control-allow-headers"].split(", ")}
    assert {"authorization", "content-type", "x-min-version", "idempotency-key", "last-event-id", "if-none-match"} <= allowed
    assert cors["access-control-max-age"] == "90"
    assert cors_headers(asked(server, None, "OPTIONS", target_of(operation), **{**headers, "Origin": STRANGE})) == {}


def test_every_header_that_a_browser_has_to_ask_for_is_allowed():
    """The parameters of the API that are headers, but for those that no script may set or that a proxy adds."""
    described = {parameter["name"].lower() for operation in OPERATIONS.values() for parameter in operation.parameters
                 if parameter["in"] == "header"}
    known = {"authorization", "content-type", "idempotency-key", "if-none-match", "last-event-id", "x-min-version", "x-request-id",
             "x-tenant-id", "traceparent"}
    assert described <= known, described - known


def test_without_configuration_there_is_nothing_of_cors(serve, module_refdata_db, token):  # noqa: F811
    server = serve(module_refdata_db, pod("D"))
    for method, target in (("GET", item_path("D", "a")), ("OPTIONS", item_path("D", "a")), ("GET", "/nowhere")):
        answer = asked(server, token(TENANT), method, target, Origin=APP, Access_Control_Request_Method="GET")
        assert cors_headers(answer) == {} and "vary" not in answer.headers


def test_a_reload_changes_the_origins(serve, module_refdata_db, token):  # noqa: F811
    server = serve(module_refdata_db, pod("D", http={"cors": {"allowedOrigins": [APP]}}))
    bearer = token(TENANT)

    def allowed(origin):
        answer = asked(server, bearer, "GET", item_path("D", "a"), Origin=origin)
        return cors_headers(answer).get("access-control-allow-origin")

    assert (allowed(APP), allowed(STRANGE)) == (APP, None)
    server.write_config(server.config_path.read_text().replace(APP, STRANGE))
    server.sighup()
    eventually(lambda: allowed(STRANGE) == STRANGE)
    assert allowed(APP) is None
    server.write_config(server.config_path.read_text().replace(STRANGE, "*"))
    server.sighup()
    eventually(lambda: allowed(APP) == "*")


@pytest.mark.parametrize("settings, at, field", [
    ('{allowedOrigins: ["*"], allowCredentials: true}', "true", "http.cors.allowCredentials"),
    ('{allowedOrigins: ["*", "https://a.example"]}', "[", "http.cors.allowedOrigins"),
    ("{allowedOrigins: https://a.example/}", "https", "http.cors.allowedOrigins"),
    ("{allowedOrigins: https://a.example, exposeHeaders: [a b]}", "[", "http.cors.exposeHeaders"),
])
def test_a_bad_setting_is_refused_with_its_place(tmp_path, jwks_path, settings, at, field):
    config, first = tmp_path / "freshet.yaml", f"http: {{cors: {settings}}}"
    config.write_text(f"{first}\nauth: {{jwksFile: {jwks_path}}}\n"
                      "refdata: {postgres: {jdbcUrl: 'jdbc:postgresql://127.0.0.1:1/none'}}\n")
    done = run("config", "--config", config)
    assert done.returncode == 1
    assert f"{config}:1:{1 + first.index(at)}: {field}: " in done.stderr, done.stderr
