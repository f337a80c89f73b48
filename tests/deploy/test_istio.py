"""P2: the mesh's resources: strict mTLS, every route of the program reaches the role that serves it, and only what is safe is repeated."""
import re

import pytest

pytestmark = pytest.mark.whole
STREAMS = ("/watch", "/stream", "/all")


@pytest.fixture(scope="module")
def routes(root):
    """(method, an example of the path, role) of every route that needs a token; HTTP.md is compared with the program elsewhere."""
    rows = re.findall(r"^\| `([A-Z]+) (/\S+)` \| (\w+) \| [^|]+ \|", (root / "docs/HTTP.md").read_text(encoding="utf-8"), re.M)
    found = [(method, re.sub(r"\{\w+\}", "x1", path), role) for method, path, role in rows if role != "all"]
    assert len(found) > 12
    return found


def first_match(service, method, path):
    """As Envoy: the first route whose expressions match the whole of method and path."""
    for route in service["spec"]["http"]:
        if "match" not in route or any(re.fullmatch(each["method"]["regex"], method) and re.fullmatch(each["uri"]["regex"], path)
                                       for each in route["match"]):
            return route
    return None


@pytest.mark.parametrize("more", [(), ("--set", "mode=all"),
                                  ("--set", "roles.query.runs={query,command}", "--set", "roles.command.enabled=false")])
def test_every_route_reaches_the_role_that_serves_it(chart, routes, more):
    """C1: a process answers 404 for the routes of other roles."""
    service, = chart.of_kind("production", "VirtualService", *more).values()
    runs = {}
    for name, each in chart.of_kind("production", "Deployment", *more).items():
        words = [word for word in each["spec"]["template"]["spec"]["containers"][0]["args"] if word.startswith("--roles=")]
        runs[f"{name}.shop.svc.cluster.local"] = words[0][len("--roles="):].split(",") if words else None
    for method, path, role in routes:
        if path.startswith("/debug/"):
            continue
        route = first_match(service, method, path)
        host = route["route"][0]["destination"]["host"]
        assert "match" in route, f"{method} {path} has no route of its own"
        assert runs[host] is None or role in runs[host], f"{method} {path} goes to {host}"


def test_only_what_is_safe_is_repeated(chart, routes):
    """A POST whose answer was lost may have been done. Grants and revokes have a required Idempotency-Key."""
    service, = chart.of_kind("production", "VirtualService").values()
    unsent = {"connect-failure", "refused-stream"}
    for method, path, _ in routes:
        retries = first_match(service, method, path)["retries"]
        conditions = set(retries.get("retryOn", "").split(",")) - {""}
        assert not conditions & {"5xx", "gateway-error", "retriable-4xx", "retriable-status-codes"}, path
        if method == "POST" and not path.startswith("/v1/entitlements/"):
            assert conditions == unsent and retries["attempts"] == 1, path
        elif path.endswith(STREAMS):
            assert retries == {"attempts": 0}, path


def test_streams_have_no_time_limit_and_everything_else_has(chart, routes):
    """The limit of a write is longer than the program's own, so that a client gets the program's answer."""
    service, = chart.of_kind("production", "VirtualService").values()
    for method, path, _ in routes:
        limit = first_match(service, method, path)["timeout"]
        is_stream = path.endswith(STREAMS)
        assert limit == ("0s" if is_stream else "12s" if method == "POST" else "5s"), path


def test_mtls_is_strict_for_clients(chart):
    policy, = chart.of_kind("production", "PeerAuthentication").values()
    assert policy["spec"]["mtls"] == {"mode": "STRICT"}
    assert policy["spec"]["portLevelMtls"] == {"9090": {"mode": "PERMISSIVE"}}


def test_a_request_needs_a_token_of_the_issuer(chart):
    """C5: the mesh refuses what the program would refuse too; health and metrics are open on the admin port only."""
    policy, = chart.of_kind("production", "AuthorizationPolicy").values()
    assert policy["spec"]["action"] == "ALLOW"
    for rule in policy["spec"]["rules"]:
        operation, = [each["operation"] for each in rule["to"]]
        if "from" in rule:
            assert rule["from"] == [{"source": {"requestPrincipals": ["https://issuer.example.com/*"]}}]
        elif operation["ports"] == ["9090"]:
            assert operation["paths"] == ["/actuator/*"]
        else:
            assert operation["paths"] == ["/openapi.yaml", "/console", "/console/*"]
    token, = chart.of_kind("production", "RequestAuthentication").values()
    rule, = token["spec"]["jwtRules"]
    assert rule["issuer"] == "https://issuer.example.com" and rule["audiences"] == ["freshet"] and rule["forwardOriginalToken"]


def test_every_service_has_a_circuit_breaker(chart):
    """P2, seed 000 §12.8."""
    rules = chart.of_kind("production", "DestinationRule")
    assert set(rules) == set(chart.of_kind("production", "Deployment"))
    for each in rules.values():
        policy = each["spec"]["trafficPolicy"]
        assert policy["tls"] == {"mode": "ISTIO_MUTUAL"}
        assert policy["outlierDetection"]["maxEjectionPercent"] <= 34, "a third of the pods at most"
        assert policy["connectionPool"]["http"]["http1MaxPendingRequests"] > 0


def test_ambient_mode_needs_no_proxy_that_reads_http(chart):
    documents = chart.documents("2m-reads")
    assert {"PeerAuthentication", "AuthorizationPolicy"} <= {each["kind"] for each in documents}
    assert not {"VirtualService", "DestinationRule", "RequestAuthentication"} & {each["kind"] for each in documents}
    policy, = chart.of_kind("2m-reads", "AuthorizationPolicy").values()
    for rule in policy["spec"]["rules"]:
        for operation in (each["operation"] for each in rule["to"]):
            assert set(operation) == {"ports"}, "only a waypoint could check more"
    for template in (each["spec"]["template"] for each in chart.of_kind("2m-reads", "Deployment").values()):
        assert template["metadata"]["labels"]["istio.io/dataplane-mode"] == "ambient"
