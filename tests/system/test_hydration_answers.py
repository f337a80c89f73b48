"""H1, H2, H4, H6: which answers have an effect, and for whom: wrong, late, old and double ones, private ones, another tenant's.
Every scenario runs on the embedded bus, and once more on NATS (tests/engines/test_hydration.py)."""
import json

from lib.hydration import BRIEF, ROLE, Event, count, fresh, ignored, not_found, path, rows, updated, waiters
from lib.hydration_rig import (LAMP, TYPE, asking, client, data_of, hasty, is_absent, nobody_waits, other, rig,  # noqa: F401
                               run_out)
from lib.wait import eventually


# ---- answers that have no effect (H2, H4) ----

def test_h2_what_does_not_answer_the_question_completes_nobody(rig):
    entity = fresh()
    waiting = asking(rig, entity)
    question = rig.outside.question(entity)
    wrong = updated(question, {"wrong": 1})

    def but(event=wrong, **members):
        return Event(event.kind, json.dumps({**event.json(), **members}).encode(), event.headers)

    before = ignored(rig.patient, reason="mismatch")
    rig.outside.send(but(entity_type="gadget"), but(entity_id=fresh()), updated(question, {"wrong": 1}, tenant_id="elsewhere"),
                     but(not_found(question), entity_type="gadget"), not_found(question, tenant_id="elsewhere"))
    eventually(lambda: ignored(rig.patient, reason="mismatch") == before + 5)
    nobodys = fresh()
    rig.outside.change("updated", TYPE, nobodys, data={})
    assert waiters(rig.patient) == 1
    rig.outside.send(updated(question, LAMP))
    assert data_of(waiting.answer()) == LAMP
    eventually(lambda: rows(rig.database, "copies", entity, tenant_id="demo") == 1)
    assert rows(rig.database, "copies", nobodys) == 0
    assert rows(rig.database, "copies", entity, tenant_id="elsewhere") == 0


def test_h1_what_is_no_event_is_counted_and_buried(rig):
    entity = fresh()
    waiting = asking(rig, entity)
    question = rig.outside.question(entity)
    right, gone = updated(question, LAMP), not_found(question)
    bad = [Event("updated", payload, right.headers) for payload in (
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"entity_id":"%s"}' % entity.encode(),
        json.dumps({**right.json(), "data": [1]}).encode(), json.dumps({**right.json(), "data": None}).encode(),
        json.dumps({**right.json(), "entity_id": 7}).encode(), json.dumps({**right.json(), "entity_type": "no such"}).encode(),
        right.payload[:-1] + b',"data":{}}')]
    bad += [updated(question, {}, **headers) for headers in (
        {"tenant_id": None}, {"tenant_id": "a/b"}, {"version": "-1"}, {"version": "x"}, {"visibility": "everybody"},
        {"hydration_mode": "most"}, {"hydration_mode": "partial", "fields": "title"})]
    bad += [Event("not-found", json.dumps({**gone.json(), "reason": "because"}).encode(), gone.headers)]
    letters, before = len(rig.outside.letters()), ignored(*rig.all, reason="malformed")
    rig.outside.send(*bad)
    eventually(lambda: len(rig.outside.letters()) == letters + len(bad))
    assert ignored(*rig.all, reason="malformed") >= before + len(bad)
    assert waiters(rig.patient) == 1
    rig.outside.send(right)
    assert data_of(waiting.answer()) == LAMP


def test_h2_the_second_answer_changes_nothing(rig, client):
    entity = fresh()
    before = count("requests_total", rig.patient, result="updated"), ignored(rig.patient, reason="duplicate")
    waiting = asking(rig, entity)
    right = updated(rig.outside.question(entity), LAMP)
    rig.outside.send(right, right)
    assert data_of(waiting.answer()) == LAMP
    eventually(lambda: ignored(rig.patient, reason="duplicate") == before[1] + 1)
    assert count("requests_total", rig.patient, result="updated") == before[0] + 1
    assert data_of(client.get(path(TYPE, entity))) == LAMP
    assert rows(rig.database, "copies", entity) == 1


def test_h2_a_late_answer_reaches_nobody(rig, hasty):
    entity = fresh()
    assert run_out(rig, hasty, entity).status == 503
    before = ignored(rig.hasty, reason="late")
    rig.outside.send(not_found(rig.outside.question(entity)))
    eventually(lambda: ignored(rig.hasty, reason="late") == before + 1)


def test_h4_older_answers_are_ignored(rig, client, other):
    entity, marker = fresh(), fresh()
    for one in (entity, marker):
        rig.outside.owns(one, lambda question: [updated(question, LAMP, version=5)])
        assert data_of(client.get(path(TYPE, one))) == LAMP
    question, = rig.outside.asked(entity)
    before = [ignored(server, reason="stale") for server in (rig.patient, rig.other)]
    rig.outside.send(updated(question, {"title": "old"}, version=4), not_found(question, version=4), not_found(question),
                     not_found(question, version=5))  # of the same version something is more than nothing
    rig.outside.change("updated", TYPE, marker, headers={"version": "6", "hydration_mode": "full"}, data={"title": "new"})
    for server, count_before in zip((rig.patient, rig.other), before):
        eventually(lambda: ignored(server, reason="stale") >= count_before + 4)  # pylint: disable=cell-var-from-loop
    eventually(lambda: rows(rig.database, "copies", marker, version=6) == 1)
    for one in (client, other):
        assert data_of(one.get(path(TYPE, entity))) == LAMP
        assert data_of(one.get(path(TYPE, marker))) == {"title": "new"}
    assert rows(rig.database, "copies", entity, version=5) == 1 and rows(rig.database, "absences", entity) == 0
    assert len(rig.outside.asked(entity)) == 1


def test_h4_a_late_not_found_never_hides_a_fresh_entity(rig, client, other):
    """It was not there when the owner looked, and was made before the answer came."""
    entity = fresh()
    waiting = asking(rig, entity)
    question = rig.outside.question(entity)
    rig.outside.change("updated", TYPE, entity, headers={"version": "1", "hydration_mode": "full"}, data=LAMP)
    assert data_of(waiting.answer()) == LAMP
    before = ignored(rig.patient, reason="stale")
    rig.outside.send(not_found(question))
    eventually(lambda: ignored(rig.patient, reason="stale") > before)
    for one in (client, other):
        assert data_of(one.get(path(TYPE, entity))) == LAMP
    assert rows(rig.database, "absences", entity) == 0


def test_h4_an_entity_that_its_owner_has_lost_is_not_found_once_its_copy_has_expired(rig, serve, module_database):
    """As after a failover that lost its commit: the owner knows neither the entity nor its version. It was ignored for a minute."""
    entity, too = fresh(), serve(module_database, {"hydration": BRIEF}, args=ROLE)
    rig.outside.owns(entity, lambda question: [updated(question, LAMP, version=5)])
    with rig.brief.client(rig.bearer) as one, too.client(rig.bearer) as another:
        assert data_of(one.get(path(TYPE, entity))) == LAMP
        assert data_of(another.get(path(TYPE, entity))) == LAMP
        rig.outside.owns(entity, lambda question: [not_found(question)])
        before = len(rig.outside.asked(entity))
        for asked, client_ in enumerate((one, another), 1):
            assert is_absent(eventually(lambda c=client_: (answer := c.get(path(TYPE, entity))).status != 200 and answer))
            assert len(rig.outside.asked(entity)) <= before + asked


def test_h4_an_end_without_versions_is_remembered_once_the_copy_has_aged(rig):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [updated(question, LAMP, version=None)])
    with rig.brief.client(rig.bearer) as one:
        assert data_of(one.get(path(TYPE, entity))) == LAMP
        eventually(lambda: rows(rig.database, "copies", entity) == 1)
        rig.outside.owns(entity, lambda question: [not_found(question, version=None)])
        eventually(lambda: is_absent(one.get(path(TYPE, entity))) and rows(rig.database, "absences", entity) == 1)


def test_h4_a_change_clears_the_negative_entry_and_an_end_the_copy(rig, client, other):
    entity = fresh()
    rig.outside.owns(entity, lambda question: [not_found(question)])
    assert is_absent(client.get(path(TYPE, entity)))
    rig.outside.change("updated", TYPE, entity, headers={"version": "1", "hydration_mode": "full"}, data=LAMP)
    for one in (client, other):
        eventually(lambda: one.get(path(TYPE, entity)).status == 200)  # pylint: disable=cell-var-from-loop
    rig.outside.change("not-found", TYPE, entity, headers={"version": "2"}, reason="deleted_or_never_existed")
    for one in (client, other):
        eventually(lambda: is_absent(one.get(path(TYPE, entity))))  # pylint: disable=cell-var-from-loop
    assert len(rig.outside.asked(entity)) == 1


# ---- whose it is (H4, H6) ----

def test_h4_inaccessible_is_for_one_caller(rig):
    """The owner knows who may see it. Everybody asks once, nobody for somebody else, and hidden looks like absent."""
    entity, absent = fresh(), fresh()

    def way(question):
        if question.headers["sub"] == "ann":
            return [updated(question, LAMP, visibility="caller", sub="ann")]
        return [not_found(question, "inaccessible", version=1, sub=question.headers["sub"])]

    rig.outside.owns(entity, way)
    rig.outside.owns(absent, lambda question: [not_found(question)])
    for server in (rig.patient, rig.other, rig.patient):
        hidden, whole, again = (asking(rig, entity, server, subject=subject).answer() for subject in ("eve", "ann", "eve"))
        assert is_absent(hidden) and is_absent(again) and data_of(whole) == LAMP
        assert asking(rig, absent, server).answer().body == hidden.body
    assert sorted(question.headers["sub"] for question in rig.outside.asked(entity)) == ["ann", "eve"]


def test_h4_callers_that_share_a_question_do_not_share_its_answer(rig):
    entity = fresh()
    eve = asking(rig, entity, subject="eve")
    first = rig.outside.question(entity)
    ann = [asking(rig, entity, server) for server in (rig.patient, rig.other)]
    eventually(lambda: waiters(rig.patient, rig.other) == 3)
    rig.outside.send(not_found(first, "inaccessible", version=1))  # does not say whom it is for: the one it was asked for
    assert is_absent(eve.answer())
    second = rig.outside.question(entity, 2)
    assert second.headers["sub"] == "ann" and waiters(rig.patient, rig.other) == 2
    rig.outside.send(updated(second, LAMP, visibility="caller", sub="ann"))
    assert all(data_of(one.answer()) == LAMP for one in ann)


def test_h6_tenants_know_nothing_of_each_other(rig, client):
    """Neither of an entity, nor of its absence, whatever an answer's headers say."""
    there, gone = fresh(), fresh()
    rig.outside.owns(there, lambda question: [updated(question, LAMP)])
    rig.outside.owns(gone, lambda question: [not_found(question)])
    assert data_of(client.get(path(TYPE, there))) == LAMP and is_absent(client.get(path(TYPE, gone)))
    for entity in (there, gone):
        rig.outside.owns(entity, lambda question: [])
        waiting = [asking(rig, entity, server, tenant="rival") for server in (rig.patient, rig.other)]
        question = rig.outside.question(entity, 2)
        assert question.headers["tenant_id"] == "rival"
        eventually(lambda: waiters(rig.patient, rig.other) == 2)
        before = ignored(*rig.all, reason="mismatch")
        rig.outside.send(updated(question, {"forged": 1}, tenant_id="demo"), not_found(question, tenant_id="demo"))
        eventually(lambda: ignored(*rig.all, reason="mismatch") == before + 2)  # pylint: disable=cell-var-from-loop
        assert waiters(rig.patient, rig.other) == 2
        # under a false correlation id it is still the rival's: it answers them and nobody else
        rig.outside.send(updated(question, {"rival": 1}, correlation_id=rig.outside.asked(entity)[0].correlation_id,
                                 hydration_mode="full"))
        rig.outside.send(updated(question, {"rival": 1}))
        assert all(data_of(one.answer()) == {"rival": 1} for one in waiting)
        eventually(lambda: rows(rig.database, "copies", entity, tenant_id="rival") == 1)  # pylint: disable=cell-var-from-loop
