"""C9: spans by OTLP/HTTP, one whole trace through processes that have only PostgreSQL in common, sampling, and a collector that is
away, slow or refuses."""
import os
import time
import uuid

import pytest

from lib import items
from lib.chat import CHAT, Session
from lib.chat import FAST as CHAT_FAST
from lib.collector import Collector, context
from lib.config import base_config, merge
from lib.entitlement import GRANTS, SCOPES, body, new_key
from lib.notification import Receiver, webhook
from lib.refdata import TENANT, item_path, path, pod, refdata_db  # noqa: F401
from lib.wait import eventually, free_port
from lib.writers import commit, delta, updates_path

CALLER = "b7ad6b7169203331"
SPANS = 'freshet_trace_spans_total{result="%s"}'
DEAF = {"sweepInterval": "1h"}


def new_trace():
    return uuid.uuid4().hex


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def traced(collector, *dictionaries, cache=None, **more):
    return merge(pod(*(dictionaries or ("D",)), cache={"preload": [f"{TENANT}/D"], **(cache or {})}), collector.settings(**more))


def chain(collector, trace, *names):
    """Each of these is the parent of the next; the first one's is the caller. They do not begin before their parents."""
    def complete():
        spans = [collector.one(trace, name) for name in names]
        assert [span.parent for span in spans] == [CALLER, *(span.id for span in spans[:-1])], spans
        assert [span.start for span in spans] == sorted(span.start for span in spans), spans
        return spans
    return eventually(complete)


def is_told(client, reads):
    """Updates reach a pod by messages only: its subscription begins some time after it is ready."""
    def told():
        version = commit(client, delta("D", {"told": 1})).json()["committedVersion"]
        return any(reads.get(path("D", "/version")).json()["version"] >= version or time.sleep(0.05) for _ in range(20))
    eventually(told)


def count(server, result):
    return server.metrics()[SPANS % result]


POST = "POST /v1/tenants/{tenantId}/updates"
GET = "GET /v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}"


@pytest.mark.tsan
def test_c9_one_trace_from_post_to_swap_in_three_processes(serve, refdata_db, token, collector):  # noqa: F811
    """The pod looks at PostgreSQL once an hour: it loads because of the message."""
    settings = traced(collector, cache=DEAF)
    command, applier, reader = (serve(refdata_db, settings, args=["--roles", roles])
                                for roles in ("command", "apply", "relay,query"))
    trace, update = new_trace(), delta("D", {"a": 1})
    with command.client(token(TENANT)) as client, reader.client(token(TENANT)) as reads:
        is_told(client, reads)
        assert client.post(updates_path("WAIT_COMMIT"), update, traceparent=context(trace, CALLER)).status in (200, 202)
    post, committed, apply, relay, load = chain(collector, trace, POST, "commit update", "apply update", "publish event",
                                             "load dictionary")
    assert [span.kind for span in (post, committed, apply, relay, load)] == ["server", "internal", "consumer", "producer", "consumer"]
    assert post.instance == committed.instance and relay.instance == load.instance
    assert len({post.instance, apply.instance, load.instance}) == 3
    assert post.instance.endswith(f"/{command.process.pid}") and load.instance.endswith(f"/{reader.process.pid}")
    assert apply.resource["process.pid"] == applier.process.pid
    assert (post.resource["service.name"], bool(post.resource["service.version"])) == ("freshet", True)
    assert post.attributes["http.request.method"] == "POST" and post.attributes["http.response.status_code"] in (200, 202)
    assert post.attributes["http.route"] == POST.split()[1]
    assert post.attributes["url.path"] == updates_path().split("?")[0] and "consistencyMode" not in str(post)
    assert committed.attributes["freshet.commit.way"] == "queued"
    for span in (committed, apply, relay):
        assert span.attributes["freshet.event.id"] == update["eventId"], span
    version = apply.attributes["freshet.dict.version"]
    assert load.attributes == {"freshet.tenant.id": TENANT, "freshet.dict.code": "D", "freshet.dict.version": version,
                               "freshet.load.mode": "delta"}
    assert len(collector.of(trace)) == 5
    with reader.client(token(TENANT)) as client:
        assert client.get(item_path("D", "a"), traceparent=context(trace, CALLER)).json()["payload"] == 1
    read = eventually(lambda: collector.of(trace, GET))[0]
    assert (read.parent, read.attributes["http.response.status_code"]) == (CALLER, 200)


def test_c9_an_update_that_is_applied_and_published_in_its_own_commit(serve, refdata_db, token, collector):  # noqa: F811
    """All roles in one process: commit and load are left of the way, unless the update is queued for a reason of its own. Each load has
    the message that caused it."""
    server = serve(refdata_db, traced(collector))
    with server.client(token(TENANT)) as client:
        def way():
            trace, body_ = new_trace(), delta("D", {"a": 1})
            version = client.post(updates_path("WAIT_COMMIT"), body_, traceparent=context(trace, CALLER)).json().get("committedVersion")

            def complete():
                found = collector.way_to(collector.one(trace, "load dictionary"))
                assert found[0].parent == CALLER and [span.name for span in found[:2]] == [POST, "commit update"], found
                assert version in (None, found[-1].attributes["freshet.dict.version"])
                return found
            return eventually(complete)

        direct = eventually(lambda: (lambda spans: len(spans) == 3 and spans)(way()))
        assert direct[1].attributes["freshet.commit.way"] == "direct"
        version = commit(client, delta("D", {"a": 9})).json()["committedVersion"]
        trace = new_trace()
        answer = client.get(item_path("D", "a"), traceparent=context(trace, CALLER), X_Min_Version=str(version))
        assert answer.json()["payload"] == 9
    eventually(lambda: collector.of(trace, GET))
    assert len(collector.of(trace)) == 1  # a load that no traced message caused has no span


# ---- sampling ----

def test_c9_the_flag_of_a_traceparent_decides(serve, refdata_db, token, collector):  # noqa: F811
    """Not sampled: nothing is recorded, and the context is passed on as it came."""
    server = serve(refdata_db, traced(collector, samplePercent=100))
    update, not_sampled, sampled = delta("D", {"a": 1}), new_trace(), new_trace()
    with server.client(token(TENANT)) as client:
        assert client.post(updates_path("WAIT_COMMIT"), update, traceparent=context(not_sampled, CALLER, False)).status in (200, 202)
        assert client.get(item_path("D", "b"), traceparent=context(sampled, CALLER)).status == 404
    eventually(lambda: collector.of(sampled))
    passed_on = "select traceparent from refdata.outbox_event where event_id = %s"
    assert eventually(lambda: refdata_db.query(passed_on, (update["eventId"],))) == [(context(not_sampled, CALLER, False),)]
    assert not collector.of(not_sampled)


def test_c9_a_share_of_the_requests_without_a_trace_begins_one(serve, refdata_db, jwks_path, token, collector):  # noqa: F811
    """None, all, and half of them; a reload is enough."""
    settings = traced(collector)
    server = serve(refdata_db, settings)
    with server.client(token(TENANT)) as client:
        def read(times):
            before = len(collector.spans)
            for _ in range(times):
                assert client.get(item_path("D", "none")).status == 404
            trace = new_trace()  # marks the end
            client.get(item_path("D", "none"), traceparent=context(trace, CALLER))
            eventually(lambda: collector.of(trace))
            return [span for span in collector.spans[before:] if span.trace != trace and span.name == GET]

        def reload(percent):
            done = len(server.logs(event="config_reloaded"))
            changed = merge(settings, {"traces": {"samplePercent": percent}})
            server.write_config(merge(base_config(refdata_db, jwks_path), changed))
            server.sighup()
            eventually(lambda: len(server.logs(event="config_reloaded")) > done)

        assert not read(50)
        reload(100)
        spans = read(50)
        assert len(spans) == 50 and len({span.trace for span in spans}) == 50
        assert not any(span.parent for span in spans)
        server.metrics()  # as probes and scrapes, it begins none
        read(1)
        assert not [span for span in collector.spans if "actuator" in span.name]
        reload(50)
        assert 30 < len(read(200)) < 170  # 100, by ten standard deviations


HOSTILE = ["", "00", "00-" + "0" * 32 + "-" + CALLER + "-01", "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
           "ff-" + "a" * 32 + "-" + CALLER + "-01", "00-" + "A" * 32 + "-" + CALLER + "-01", "00-" + "g" * 32 + "-" + CALLER + "-01",
           "00-" + "a" * 32 + "-" + CALLER + "-01-more", "x" * 4000, "00-'; drop table x; --aaaaaaaaaaa-" + CALLER + "-01",
           "00-" + "a" * 32 + "-" + CALLER + "-01, 00-" + "b" * 32 + "-" + CALLER + "-01"]


def test_c9_an_invalid_traceparent_is_ignored(serve, refdata_db, token, collector):  # noqa: F811
    """Requests with one are requests without one; so are those that have two."""
    server = serve(refdata_db, traced(collector))
    with server.client(token(TENANT)) as client:
        for text in HOSTILE:
            assert client.get(item_path("D", "x"), traceparent=text).status == 404
    with server.raw() as raw:
        raw.send(f"GET {item_path('D', 'x')} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token(TENANT)}\r\n"
                 f"traceparent: {context('a' * 32)}\r\ntraceparent: {context('b' * 32)}\r\n\r\n".encode())
        assert raw.read_response().status == 404
    trace = new_trace()
    with server.client(token(TENANT)) as client:
        assert client.get(item_path("D", "x"), traceparent="cc-" + context(trace, CALLER)[3:] + "-future").status == 404
    assert eventually(lambda: collector.of(trace))[0].parent == CALLER
    assert len(collector.spans) == 1


# ---- a collector that fails ----

def burst(client, times, trace):
    for _ in range(times):
        assert client.get(item_path("D", "x"), traceparent=context(trace, CALLER)).status == 404


def test_c9_while_the_collector_is_away_spans_are_dropped_and_counted(serve, refdata_db, token, collector):  # noqa: F811
    """Requests are served as ever; the queue of a thread holds 16. The last batch is kept, and exported when the collector is back."""
    port = free_port()
    settings = merge(traced(collector, queueSize=16, batchSize=8), {"http": {"loops": 1}})
    settings["traces"]["endpoint"] = f"http://127.0.0.1:{port}/v1/traces"
    server, trace = serve(refdata_db, settings), new_trace()
    with server.client(token(TENANT)) as client:
        burst(client, 200, trace)
        assert eventually(lambda: count(server, "dropped")) >= 200 - 16 - 8
        line = eventually(lambda: server.logs(event="traces_not_exported"))[0]
        assert line["endpoint"] == settings["traces"]["endpoint"] and line["level"] == "warn"
        assert count(server, "exported") == 0
        back = Collector(port)
        try:
            eventually(lambda: server.logs(event="traces_exported_again"))
            eventually(lambda: count(server, "exported") + count(server, "dropped") == 200)
            assert len(back.of(trace)) == count(server, "exported") >= 16
        finally:
            back.close()
    assert len(server.logs(event="traces_not_exported")) == 1  # not for each try


def test_c9_what_a_collector_refuses_for_now_is_sent_again(serve, refdata_db, token, collector):  # noqa: F811
    """429 with Retry-After, then 503, then 200: one batch, three times. A second is waited for, as it asked."""
    collector.behave = lambda count: {1: (429, {"Retry-After": "1"}), 2: 503}.get(count)
    server, trace = serve(refdata_db, traced(collector)), new_trace()
    with server.client(token(TENANT)) as client:
        burst(client, 1, trace)
    eventually(lambda: collector.of(trace))
    first, second, third = collector.requests[:3]
    assert first["body"] == second["body"] == third["body"]
    assert second["at"] - first["at"] >= 1
    eventually(lambda: count(server, "exported") == 1)
    assert count(server, "failed") == 0
    assert server.metrics()['freshet_trace_exports_total{result="retried"}'] == 2


def test_c9_what_a_collector_refuses_for_good_is_counted(serve, refdata_db, token, collector):  # noqa: F811
    """A 400 is not tried again; of a batch that is taken, the collector may reject single spans."""
    rejected = (200, {}, b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}')
    collector.behave = lambda count: {1: 400, 2: rejected}.get(count)
    server, trace = serve(refdata_db, traced(collector)), new_trace()
    with server.client(token(TENANT)) as client:
        burst(client, 1, trace)
        eventually(lambda: count(server, "failed") == 1)
        burst(client, 1, trace)
        eventually(lambda: count(server, "rejected") == 1)
        burst(client, 1, trace)
        eventually(lambda: count(server, "exported") == 1)
    assert len(collector.requests) == 3


def test_c9_a_slow_collector_holds_up_no_request_and_no_stop(serve, refdata_db, token, collector):  # noqa: F811
    """It answers nothing at all; the stop waits two seconds for it, not thirty."""
    collector.behave = lambda count: "hang"
    server, trace = serve(refdata_db, traced(collector, timeout="20s")), new_trace()
    with server.client(token(TENANT)) as client:
        burst(client, 1, trace)
        eventually(lambda: collector.requests)
        burst(client, 20, trace)
    server.stop(timeout=20)


def test_c9_a_process_that_stops_exports_what_it_has(serve, refdata_db, token, collector):  # noqa: F811
    server, trace = serve(refdata_db, traced(collector, interval="60s")), new_trace()
    with server.client(token(TENANT)) as client:
        burst(client, 5, trace)
    assert not collector.requests
    server.stop()
    assert len(collector.of(trace)) == 5


def test_c9_headers_for_the_collector(serve, refdata_db, token, collector, tmp_path):  # noqa: F811
    """From the configuration, and from a file that is read each time; neither shows up in the log or in `freshet config`."""
    secrets = tmp_path / "headers"
    secrets.write_bytes(b"Authorization: Bearer first\r\n\r\nnot a header\r\n")  # as an editor on Windows ends lines
    server = serve(refdata_db, traced(collector, headers=["X-Scope: team-a"], headersFile=str(secrets)))
    with server.client(token(TENANT)) as client:
        burst(client, 1, new_trace())
        sent = eventually(lambda: collector.requests)[0]["headers"]
        assert (sent["X-Scope"], sent["Authorization"], sent["Content-Type"]) == ("team-a", "Bearer first", "application/json")
        secrets.write_text("Authorization: Bearer second\n")
        burst(client, 1, new_trace())
        eventually(lambda: collector.requests[-1]["headers"]["Authorization"] == "Bearer second")
    assert "Bearer first" not in server.log()


def test_c9_a_file_of_headers_that_becomes_a_pipe_holds_up_neither_exports_nor_the_stop(serve, refdata_db, token, collector, tmp_path):  # noqa: F811
    """Its writer is there and writes nothing: a read would wait for ever."""
    secrets = tmp_path / "headers"
    secrets.write_text("Authorization: Bearer first\n")
    server = serve(refdata_db, traced(collector, headersFile=str(secrets)))
    secrets.unlink()
    os.mkfifo(secrets)
    writer = os.open(secrets, os.O_RDWR)
    with server.client(token(TENANT)) as client:
        burst(client, 1, new_trace())
        eventually(lambda: collector.requests and "Authorization" not in collector.requests[-1]["headers"])
    server.stop()
    os.close(writer)


@pytest.mark.parametrize("wrong, place", [({"endpoint": "collector:4318"}, "traces.endpoint"), ({"headers": ["no colon"]}, "traces.headers"),
                                          ({"headersFile": "/nowhere/at/all"}, "traces.headersFile"),
                                          ({"headersFile": "/dev/zero"}, "traces.headersFile")])
def test_c9_settings_of_traces_are_checked(serve, database, collector, wrong, place):
    server = serve.make(database, merge(pod("D"), {"traces": {"endpoint": collector.url, **wrong}}))
    server.spawn()
    assert server.process.wait(60) == 1
    assert place in server.log()


# ---- the other modules ----

def test_c9_a_chat_message_and_the_call_of_its_agent(serve, database, token, collector):
    """The agent gets the span of the call as its parent, and a tracestate as it came."""
    agent = Receiver()
    try:
        agents = [{"name": "remote", "keywords": ["remote"], "url": agent.url, "timeout": "20s"}]
        settings = merge(merge(CHAT_FAST, {"chat": {"agents": agents, "default-agent": "remote"}}), collector.settings())
        server, trace = serve(database, settings, args=CHAT), new_trace()
        with Session(server, token("demo")) as chat:
            chat.say("hello", traceparent=context(trace, CALLER), tracestate="vendor=a:b,other=1")
        post, call = chain(collector, trace, "POST /my/projects/{project_id}/chat/{session_id}/message", "POST")
        assert (call.kind, call.attributes["freshet.agent"]) == ("client", "remote")
        assert call.attributes["http.response.status_code"] == 200 and call.failed  # "ok" is not a reply
        asked, = agent.calls
        assert asked["headers"]["traceparent"] == context(trace, call.id)
        assert asked["headers"]["tracestate"] == "vendor=a:b,other=1"
        published = eventually(lambda: len(collector.of(trace, "publish event")) >= 2 and collector.of(trace, "publish event"))
        assert {span.parent for span in published} == {post.id}
        line, = server.logs(event="chat_agent_failed")
        assert line["traceId"] == trace
    finally:
        agent.close()


@pytest.mark.tsan
def test_c9_a_grant_from_its_post_to_the_webhook(serve, refdata_db, token, collector):  # noqa: F811
    """POST → outbox → notification in another process → delivery."""
    receiver = Receiver()
    try:
        shop = serve(refdata_db, collector.settings(), args=["--roles", "entitlement"])
        inbox = serve(refdata_db, merge(webhook(receiver), collector.settings()), args=["--roles", "notification"])
        trace = new_trace()
        with shop.client(token("demo", subject="shop", scope=SCOPES)) as client:
            assert client.post(GRANTS, body("traced"), Idempotency_Key=new_key(),
                               traceparent=context(trace, CALLER)).status in (200, 201)
        post, publish, accept, call = chain(collector, trace, "POST /v1/entitlements/grants", "publish event",
                                            "accept event", "POST")
        assert [span.kind for span in (post, publish, accept, call)] == ["server", "producer", "consumer", "client"]
        assert publish.instance == post.instance != accept.instance == call.instance
        assert call.attributes["http.response.status_code"] == 200
        delivered, = receiver.of("traced")
        assert delivered["headers"]["traceparent"] == context(trace, call.id)
        assert "/hook" not in str(call)  # its path may hold a secret
        line, = inbox.logs(event="notification_sent")
        assert line["traceId"] == trace
    finally:
        receiver.close()


def test_c9_a_lookup_and_the_answer_of_its_owner(serve, refdata_db, token, collector):  # noqa: F811
    """H6: the owner runs in another process. What is in memory afterwards is not looked up, and has no span."""
    patient = {"hydration": {"wait_timeout_ms": 20000}}
    owner = serve(refdata_db, collector.settings(), args=["--roles", "intake"])
    asker = serve(refdata_db, merge(patient, collector.settings()), args=["--roles", "hydration"])
    made, traces = items.item(), [new_trace(), new_trace()]
    with owner.client(token("demo")) as client:
        assert items.post(client, made, new_key()).status == 201
    with asker.client(token("demo", subject="alice")) as client:
        for trace in traces:
            assert client.get(f"/v1/hydration/item/{made['sku']}", traceparent=context(trace, CALLER)).status == 200
    route = "GET /v1/hydration/{entity_type}/{entity_id}"
    request, lookup, answer = chain(collector, traces[0], route, "look up entity", "answer lookup")
    assert request.instance == lookup.instance != answer.instance
    assert lookup.attributes["freshet.hydration.way"] == "asking" and lookup.attributes["freshet.hydration.result"] == "updated"
    assert lookup.attributes["freshet.entity.id"] == made["sku"]
    eventually(lambda: collector.of(traces[1], route))
    assert len(collector.of(traces[1])) == 1


# ---- ids and the access log ----

def test_c9_the_access_log_has_a_line_for_each_request(serve, refdata_db, jwks_path, token):  # noqa: F811
    """With ids, without tokens and queries; a reload turns it off. There is no collector: the trace is the client's alone."""
    settings = merge(pod("D"), {"log": {"access": "all"}})
    server, trace, bearer = serve(refdata_db, settings), new_trace(), token(TENANT)
    with server.client(bearer) as client:
        update = delta("D", {"a": "x" * 100})
        answer = client.post(updates_path("WAIT_COMMIT"), update, traceparent=context(trace, CALLER), X_Request_Id="order-1")
        assert answer.headers["x-request-id"] == "order-1"
        line, = server.logs(event="http_request", requestId="order-1")
        assert (line["method"], line["route"], line["status"], line["tenantId"]) == ("POST", POST.split()[1], answer.status, TENANT)
        assert (line["traceId"], line["bytes"]) == (trace, len(answer.body)) and line["durationMs"] > 0
        assert line["path"] == updates_path().split("?")[0]
        assert client.get("/v1/none?token=secret", X_Request_Id="order-2").status == 404
        line, = server.logs(event="http_request", requestId="order-2")
        assert (line["route"], line["path"], line["status"]) == ("unmatched", "/v1/none", 404)
        server.write_config(merge(base_config(refdata_db, jwks_path), merge(settings, {"log": {"access": "errors"}})))
        server.sighup()
        eventually(lambda: server.logs(event="config_reloaded"))
        assert client.get(item_path("D", "a"), X_Request_Id="order-3").status == 200
        assert client.get(item_path("D", "b"), X_Request_Id="order-4").status == 404
        assert not server.logs(event="http_request", requestId="order-3")
        assert server.logs(event="http_request", requestId="order-4")
    assert bearer not in server.log() and "secret" not in server.log()
