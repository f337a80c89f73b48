"""Seed 001, H1–H8: the protocol as a module outside of the program sees it, which owns the entities and answers as each test
says. Every scenario runs on the embedded bus, and once more on NATS (tests/engines/test_hydration.py)."""
import json
import resource
import signal
import uuid

import pytest

from lib import items
from lib.hydration import (OWNER, PATIENT, ROLE, Event, count, fresh, ignored, is_empty, not_found, path, rows, updated,
                           waiters)
from lib.hydration_rig import (LAMP, TYPE, asking, client, data_of, hasty, is_absent, nobody_waits, other, rig,  # noqa: F401
                               run_out)
from lib.wait import eventually
from lib.wire import RawConnection

MANY = 10000


# ---- the five scenarios of the seed (H8) ----

def test_h8_1_unknown_then_updated(rig, client, other):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
    whole = {"entity_type": TYPE, "entity_id": entity, "source_module": OWNER, "data": LAMP}
    for one in (client, other, client):
        answer = one.get(path(TYPE, entity))
        assert (answer.status, answer.json()) == (200, whole)
    question, = rig.outside.asked(entity)
    assert question.json() == {"entity_type": TYPE, "entity_id": entity, "requester_module": "hydration",
                               "hydration_mode": "full"}
    assert (question.headers["tenant_id"], question.headers["sub"]) == ("demo", "ann")
    assert uuid.UUID(question.correlation_id)


@pytest.mark.parametrize("trace", [None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
def test_c9_the_callers_trace_goes_along_or_none_does(rig, client, trace):
    """A traceparent of zeroes is none that a tracer takes."""
    entity = fresh()
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
    assert client.get(path(TYPE, entity), **({"traceparent": trace} if trace else {})).status == 200
    question, = rig.outside.asked(entity)
    assert (question.headers.get("traceparent") or "")[:35] == (trace or "")[:35]


def test_h8_2_not_found_is_remembered_by_all_processes(rig, client, other):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [not_found(question)])
    before = count("negative_hits_total", rig.patient, rig.other)
    first = client.get(path(TYPE, entity))
    assert is_absent(first) and set(first.json()) == {"code", "message"}
    eventually(lambda: rows(rig.database, "absences", entity) == 1)
    for one in (client, other, other):
        assert one.get(path(TYPE, entity)).body == first.body
    assert count("negative_hits_total", rig.patient, rig.other) == before + 3
    assert len(rig.outside.asked(entity)) == 1


def test_h8_3_timeout_fails_fast(rig, hasty):
    entity = fresh()
    before = count("timeouts_total", rig.hasty)
    answer = run_out(rig, hasty, entity)
    assert (answer.status, answer.code) == (503, "HYDRATION_TIMEOUT") and int(answer.headers["retry-after"]) > 0
    assert count("timeouts_total", rig.hasty) > before


def test_h8_4_a_storm_is_one_question(rig):
    entity = fresh()
    storm = [asking(rig, entity, server) for server in (rig.patient, rig.other) for _ in range(30)]
    eventually(lambda: waiters(rig.patient, rig.other) == 60)
    before = count("collapsed_total", rig.patient, rig.other)
    rig.outside.send(updated(rig.outside.question(entity), LAMP, hydration_mode="full"))
    assert all(data_of(one.answer()) == LAMP for one in storm)
    assert len(rig.outside.asked(entity)) == 1
    assert count("collapsed_total", rig.patient, rig.other) == before + 59


def test_h8_5_asked_again_when_the_negative_entry_is_over(rig):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [not_found(question)])
    with rig.brief.client(rig.bearer) as one:
        assert is_absent(one.get(path(TYPE, entity)))
        eventually(lambda: is_absent(one.get(path(TYPE, entity))) and len(rig.outside.asked(entity)) > 1)
        rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
        eventually(lambda: one.get(path(TYPE, entity)).status == 200)


# ---- what travels (H1) ----

ODD_IDS = ["a/b", "a%2Fb", "100%", "Bücher & Söhne?", "\U0001f600", '"\\', "'; drop table copies --", "entity.*",
           "*", ">", " ", ".."]
ODD_DATA = ['{}', '{"n":1.50,"big":12345678901234567890,"e":1E400}', '{"":{"":[]}}', '{"a\\u0062":"\\ud83d\\ude00"}',
            '{"deep":' + "[" * 20 + "]" * 20 + "}", '{"long":"' + "x" * 200000 + '"}', '{ "spaced" :\t[ ] }']


@pytest.mark.parametrize("entity", ODD_IDS)
def test_h1_any_text_is_an_id(rig, client, entity):
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
    assert data_of(client.get(path(TYPE, entity))) == LAMP
    assert client.get(path(TYPE, entity)).json()["entity_id"] == entity


def test_h1_data_is_the_owners_to_the_byte(rig, client, other):
    for text in ODD_DATA:
        entity = fresh()

        def way(question, text=text):
            right = updated(question, {}, hydration_mode="full")
            return [Event("updated", right.payload.replace(b'"data": {}', b'"data": ' + text.encode()), right.headers)]

        rig.outside.owns(entity, way)
        for one in (client, other):
            assert one.get(path(TYPE, entity)).body.endswith(b',"data":' + text.encode() + b"}"), text
        eventually(lambda: rig.database.query("select data from hydration.copies where entity_id = %s",
                                              (entity,)) == [(text,)])  # pylint: disable=cell-var-from-loop


def test_h6_a_consumer_outside_is_answered_each_time_the_same(rig):
    """With nothing but the bus: items of intake, that are there or not; what is no question is nobody's."""
    sku, absent = fresh("SKU"), fresh("SKU")
    with rig.keen_too.client(rig.bearer) as client:
        assert items.post(client, items.item(sku, title="Lamp")).status == 201

    def ask(entity, correlation_id, **payload):
        body = {"entity_type": "item", "entity_id": entity, "requester_module": "outside", "hydration_mode": "full", **payload}
        rig.outside.send(Event("unknown", json.dumps(body).encode(), {"correlation_id": correlation_id, "tenant_id": "demo",
                                                                      "sub": "ann"}))

    def answers(correlation_id, number=1):
        return eventually(lambda: (found := [event for event in list(rig.outside.events) if event.kind != "unknown"
                                             and event.correlation_id == correlation_id]) and len(found) >= number and found)

    for name in ("one", "one", "two"):
        ask(sku, name)
    first, second, third = *answers("one", 2), answers("two")[0]
    assert first.kind == "updated" and first.json()["data"]["sku"] == sku
    assert first.json() == second.json() == third.json()
    assert first.headers == second.headers and int(first.headers["version"]) >= 1
    assert set(first.json()) == {"entity_type", "entity_id", "source_module", "data"}
    ask(sku, "some", hydration_mode="partial", fields=["title", "none"])
    assert answers("some")[0].json()["data"] == {"title": "Lamp"}
    ask(sku, "there", hydration_mode="existence")
    assert answers("there")[0].json()["data"] == {}
    ask(absent, "gone")
    gone = answers("gone")[0]
    assert (gone.kind, gone.json()) == ("not-found", {"entity_type": "item", "entity_id": absent, "source_module": "intake",
                                                      "reason": "deleted_or_never_existed"})
    before = ignored(rig.keen_too, reason="malformed")
    ask(sku, "bad", hydration_mode="some")
    ask(sku, "bad", fields="title")
    ask(7, "bad")
    eventually(lambda: ignored(rig.keen_too, reason="malformed") == before + 3)
    ask(sku, "last")
    assert answers("last")
    assert not [event for event in rig.outside.events if event.kind != "unknown" and event.correlation_id == "bad"]


# ---- how much of it (H2) ----

def test_h2_modes_are_asked_for_and_cut(rig, client):
    entity, only = fresh(), fresh()
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
    rig.outside.owns(only, lambda question: [updated(question, {})])
    answer = client.get(path(TYPE, entity, mode="partial", fields="title,price"))
    assert data_of(answer) == {"title": "Lamp", "price": 1.5}
    assert rig.outside.asked(entity)[0].json()["fields"] == ["price", "title"]
    assert data_of(client.get(path(TYPE, entity, mode="partial", fields="price"))) == {"price": 1.5}
    assert data_of(client.get(path(TYPE, entity, mode="existence"))) == {}
    assert data_of(client.get(path(TYPE, only, mode="existence"))) == {}
    assert rig.outside.asked(only)[0].json()["hydration_mode"] == "existence"
    assert (len(rig.outside.asked(entity)), len(rig.outside.asked(only))) == (1, 1)


def test_h2_a_partial_answer_never_stands_in_for_full(rig, client):
    entity = fresh()
    partial = asking(rig, entity, mode="partial", fields="title")
    first = rig.outside.question(entity)
    full = asking(rig, entity, rig.other)
    second = rig.outside.question(entity, 2)
    assert second.json()["hydration_mode"] == "full" and second.correlation_id != first.correlation_id
    rig.outside.send(updated(first, {"title": "Lamp"}))
    assert data_of(partial.answer()) == {"title": "Lamp"}
    eventually(lambda: rows(rig.database, "copies", entity, mode=1) == 1)
    assert waiters(rig.other) == 1
    rig.outside.send(updated(second, LAMP))
    assert data_of(full.answer()) == LAMP
    assert data_of(client.get(path(TYPE, entity, mode="partial", fields="sizes"))) == {"sizes": {"height": 3}}
    assert len(rig.outside.asked(entity)) == 2


def test_h2_who_needs_less_joins_who_asked_for_all(rig):
    entity = fresh()
    full = asking(rig, entity)
    question = rig.outside.question(entity)
    less = [asking(rig, entity, server, **query) for server in (rig.patient, rig.other)
            for query in ({"mode": "existence"}, {"mode": "partial", "fields": "price,none"})]
    eventually(lambda: waiters(rig.patient, rig.other) == 5)
    rig.outside.send(updated(question, LAMP))
    assert [data_of(one.answer()) for one in [full, *less]] == [LAMP, {}, {"price": 1.5}, {}, {"price": 1.5}]
    assert len(rig.outside.asked(entity)) == 1


# ---- owners that are down, slow or flap (H3) ----

def test_h3_at_most_so_many_questions_in_a_window_over_all_processes(rig):
    """1 + max_retries; the retries are the first caller's, and more callers are no reason for more."""
    entity = fresh()
    silent = [asking(rig, entity, server) for server in (rig.keen, rig.keen_too) for _ in range(5)]
    eventually(lambda: waiters(rig.keen, rig.keen_too) == 10)
    third = rig.outside.question(entity, 3)
    silent += [asking(rig, entity, server) for server in (rig.keen, rig.keen_too) for _ in range(5)]
    eventually(lambda: waiters(rig.keen, rig.keen_too) == 20)
    marker = asking(rig, fresh(), rig.keen)  # asked and retried behind all of this
    rig.outside.question(entity_id(marker), 3)
    assert len(rig.outside.asked(entity)) == 3
    assert len({question.correlation_id for question in rig.outside.asked(entity)}) == 1
    marker.leave()
    rig.outside.send(not_found(third))
    assert all(is_absent(one.answer()) for one in silent)
    assert len(rig.outside.asked(entity)) == 3


def entity_id(request):
    return request.target.rsplit("/", 1)[1]


def test_h3_an_owner_that_answers_every_second_time(rig):
    flapping = {fresh(): 0 for _ in range(6)}

    def way(question):
        name = question.json()["entity_id"]
        flapping[name] += 1
        return [] if flapping[name] % 2 else [updated(question, LAMP)]

    for entity in flapping:
        rig.outside.owns(entity, way)
    requests = [asking(rig, entity, rig.keen) for entity in flapping]
    assert all(data_of(one.answer()) == LAMP for one in requests)
    assert all(len(rig.outside.asked(entity)) >= 2 for entity in flapping)


def test_h3_an_owner_that_was_down_is_asked_again_behind_the_window(rig, hasty):
    entity = fresh()
    assert run_out(rig, hasty, entity).status == 503
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])
    eventually(lambda: hasty.get(path(TYPE, entity)).status == 200)
    assert len(rig.outside.asked(entity)) >= 2


# ---- when time is up (H5) ----

def test_h5_defer_goes_on_in_the_background(rig, hasty):
    entity = fresh()
    answer = run_out(rig, hasty, entity, failure_mode="defer")
    assert (answer.status, answer.json()) == (202, {"status": "PENDING"})
    assert waiters(rig.hasty) >= 1
    rig.outside.owns(entity, lambda question: [updated(question, LAMP)])  # it is asked for once more, by nobody's request
    is_empty(rig.hasty)
    assert len(rig.outside.asked(entity)) >= 2
    eventually(lambda: hasty.get(path(TYPE, entity, failure_mode="defer")).status == 200)


def test_h5_degrade_tells_what_is_known(rig, hasty):
    entity, nothing = fresh(), fresh()
    answer = hasty.get(path(TYPE, nothing, failure_mode="degrade"))
    assert (answer.status, answer.json()) == (200, {"entity_type": TYPE, "entity_id": nothing, "source_module": None,
                                                    "data": {}, "degraded": True})
    rig.outside.owns(entity, lambda question: [updated(question, {"title": "Lamp"})]
                     if question.json()["hydration_mode"] == "partial" else [])
    eventually(lambda: hasty.get(path(TYPE, entity, mode="partial", fields="title")).status == 200
               and rows(rig.database, "copies", entity) == 1)  # it is kept only within the window
    whole = {"entity_type": TYPE, "entity_id": entity, "source_module": OWNER, "data": {"title": "Lamp"}, "degraded": True}
    eventually(lambda: hasty.get(path(TYPE, entity, failure_mode="degrade")).json() == whole)


def test_h5_what_was_found_out_is_not_degraded(rig, client):
    there, gone = fresh(), fresh()
    rig.outside.owns(there, lambda question: [updated(question, LAMP)])
    rig.outside.owns(gone, lambda question: [not_found(question)])
    for mode in ("degrade", "defer"):
        answer = client.get(path(TYPE, there, failure_mode=mode))
        assert data_of(answer) == LAMP and "degraded" not in answer.json()
        assert is_absent(client.get(path(TYPE, gone, failure_mode=mode)))


# ---- who waits (H2) ----

def test_h2_who_goes_away_leaves_nothing_behind(rig):
    entity = fresh()
    leaving, staying = asking(rig, entity), asking(rig, entity)
    question = rig.outside.question(entity)
    eventually(lambda: waiters(rig.patient) == 2)
    leaving.leave()
    eventually(lambda: waiters(rig.patient) == 1)
    rig.outside.send(updated(question, LAMP))
    assert data_of(staying.answer()) == LAMP


def test_h2_ten_thousand_wait_for_one_answer(rig):
    """From two processes, for one id that is not there: one entity/unknown, everybody is answered, nobody is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    entity = fresh()
    request = (f"GET {path(TYPE, entity)} HTTP/1.1\r\nHost: freshet\r\nAuthorization: Bearer {rig.bearer}\r\n\r\n").encode()
    crowd = []
    try:
        for number in range(MANY):
            crowd.append(RawConnection((rig.patient, rig.other)[number % 2].port, timeout=90))
            crowd[-1].send(request)
        eventually(lambda: waiters(rig.patient, rig.other) == MANY, interval=0.2)
        question = rig.outside.question(entity)
        rig.outside.send(not_found(question))
        answers = {(one.read_response().status) for one in crowd}
    finally:
        for one in crowd:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answers == {404}
    assert len(rig.outside.asked(entity)) == 1
    is_empty(rig.patient, rig.other)


def test_h2_who_waits_when_the_process_ends_is_answered(rig, serve, module_database):
    entity = fresh()
    server = serve(module_database, {"hydration": PATIENT}, args=ROLE)
    waiting = asking(rig, entity, server)
    question = rig.outside.question(entity)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: not server.is_ready())
    rig.outside.send(updated(question, LAMP))
    assert data_of(waiting.answer()) == LAMP
    server.stop()


# ---- what is said about it (H7) ----

def test_h7_a_line_for_each_question(rig):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [not_found(question)])
    assert is_absent(asking(rig, entity).answer())
    line, = eventually(lambda: rig.patient.logs(event="hydration", entity_id=entity))
    assert {name: line[name] for name in ("entity_type", "hydration_mode", "requester_module", "source_module",
                                          "wait_timeout_ms", "negative_cache_hit", "result", "correlation_id")} == {
        "entity_type": TYPE, "hydration_mode": "full", "requester_module": "hydration", "source_module": OWNER,
        "wait_timeout_ms": 60000, "negative_cache_hit": False, "result": "not-found",
        "correlation_id": rig.outside.asked(entity)[0].correlation_id}
    for name in ("requests_total", "hits_total", "negative_hits_total", "collapsed_total", "timeouts_total",
                 "seconds_count", "unknowns_total"):
        assert count(name, rig.patient) >= 0
