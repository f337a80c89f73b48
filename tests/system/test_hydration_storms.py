"""H2, H4: many requests at once, from one process's point of view: what many callers or one greedy tenant ask for neither ends
the process nor keeps the other tenants from being answered."""
import json
from contextlib import closing

import pytest

from lib.hydration import PATIENT, ROLE, Asking, Event, Outside, count, fresh, ignored, is_empty, path
from lib.wait import eventually


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, {"hydration": PATIENT}, args=ROLE)


def test_h2_private_copies_asked_for_in_two_modes_at_once_are_answered_and_the_process_lives(server, module_database, token):
    """Issue 11.1: PostgreSQL has copies that the process's memory has not, each for one caller and enough for `existence` alone.
    The answer to one lookup ends others of the same entity, more than can be visited at once."""
    entities = [fresh() for _ in range(64)]
    module_database.query("insert into hydration.copies select 'demo', 'ghost', e, 'ann', 1, 0, '{}', 'm', '{}', now(),"
                          " now() + interval '1 hour' from unnest(%s) e", (entities,))
    bearer = token("demo", subject="ann")
    asked = [Asking(server, bearer, path("ghost", entity, **query)) for entity in entities for query in ({"mode": "existence"}, {})]
    assert {one.answer().status for one in asked[::2]} == {200}
    for one in asked[1::2]:
        assert not one.is_answered()  # nobody owns a ghost
        one.leave()
    is_empty(server)


# ---- a greedy tenant (issue 11.13) ----

GREEDY = 200


@pytest.fixture(scope="module")
def owner(module_serve, module_database, server, token):
    """Of items, and slow: two answers in 200 ms. It reads questions when this returns."""
    made = module_serve.make(module_database, args=("--roles", "intake"))
    made.env["FRESHET_FAILPOINTS"] = "hydration.before_answer=sleep-200"
    made.start()
    asked, bearer = [], token("demo", subject="ann")

    def is_heard():  # its group reads what comes after its own beginning
        asked.append(Asking(server, bearer, path("item", fresh())))
        return any(one.is_answered() for one in asked)

    eventually(is_heard, interval=0.3)
    for one in asked:
        one.leave()
    return made


def test_h2_questions_that_nobody_waits_for_any_more_are_dropped_by_the_source(owner, module_database):
    """The owner would be busy for seconds with answers to callers who have gone."""
    before = ignored(owner, reason="overload")
    with closing(Outside(module_database)) as outside:
        for number in range(100):
            body = {"entity_type": "item", "entity_id": str(number), "requester_module": "outside", "hydration_mode": "full"}
            outside.send(Event("unknown", json.dumps(body).encode(),
                               {"tenant_id": "past", "correlation_id": fresh(), "wait_timeout_ms": "100"}))
        eventually(lambda: ignored(owner, reason="overload") > before + 50)


def test_h2_a_tenant_is_answered_while_another_one_has_hundreds_of_questions_waiting(owner, server, token):  # pylint: disable=unused-argument
    """Tenants take turns at the source: the one question is not behind the hundreds that came before it."""
    before, bearer = count("unknowns_total", server), token("greedy", subject="eve")
    greedy = [Asking(server, bearer, path("item", fresh())) for _ in range(GREEDY)]
    eventually(lambda: count("unknowns_total", server) >= before + GREEDY)
    done = sum(one.is_answered() for one in greedy)
    answer = Asking(server, token("modest", subject="ann"), path("item", fresh())).answer()
    done = sum(one.is_answered() for one in greedy) - done
    for one in greedy:
        one.leave()
    assert (answer.status, answer.code) == (404, "ENTITY_NOT_FOUND")
    assert done < 16
