"""H8 on NATS: every scenario of the embedded bus once more, with nothing outside but a plain NATS client."""
from test_hydration_answers import *  # noqa: F401,F403 pylint: disable=wildcard-import,unused-wildcard-import
from test_hydration_protocol import *  # noqa: F401,F403 pylint: disable=wildcard-import,unused-wildcard-import


# ---- only on NATS: the embedded bus has no headers that are not text ----

# pylint: disable=undefined-variable
@pytest.mark.parametrize("odd", [  # noqa: F405
    {"visibility": "caller\udcff"}, {"\udcffisibility": "caller"}, {f"x-{number}": "1" for number in range(40)}])
def test_h4_an_answer_with_a_header_that_cannot_be_read_is_buried_and_answers_nobody(rig, odd):
    """Issue 11.25: stripped of `visibility` a private answer would be everybody's."""
    entity = fresh()  # noqa: F405
    waiting = asking(rig, entity, subject="eve")  # noqa: F405
    question = rig.outside.question(entity)
    letters = len(rig.outside.letters())
    rig.outside.send(updated(question, {"secret": 1}, hydration_mode="full", **odd))  # noqa: F405
    eventually(lambda: len(rig.outside.letters()) == letters + 1)  # noqa: F405
    assert not waiting.is_answered() and rows(rig.database, "copies", entity) == 0  # noqa: F405
    rig.outside.send(updated(question, LAMP))  # noqa: F405
    assert data_of(waiting.answer()) == LAMP  # noqa: F405


def test_h4_a_question_with_a_header_that_cannot_be_read_is_counted_and_not_answered(rig):
    """Without `sub` or `tenant_id` it would be another question."""
    def ask(correlation_id, **headers):
        body = {"entity_type": "item", "entity_id": "SKU", "requester_module": "outside", "hydration_mode": "full"}
        rig.outside.send(Event("unknown", json.dumps(body).encode(),  # noqa: F405
                               {"correlation_id": correlation_id, "tenant_id": "demo", **headers}))
    bad, good = fresh(), fresh()  # noqa: F405
    before = ignored(rig.keen_too, reason="malformed")  # noqa: F405
    ask(bad, sub="ann\udcff")
    ask(good, sub="ann")
    eventually(lambda: [event for event in list(rig.outside.events)  # noqa: F405
                        if event.kind == "not-found" and event.correlation_id == good])
    assert ignored(rig.keen_too, reason="malformed") == before + 1  # noqa: F405
    assert not [event for event in rig.outside.events if event.kind != "unknown" and event.correlation_id == bad]
