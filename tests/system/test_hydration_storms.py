"""H2, H4: many requests at once, from one process's point of view: what many callers or one greedy tenant ask for neither ends
the process nor keeps the other tenants from being answered."""
import pytest

from lib.hydration import PATIENT, ROLE, Asking, fresh, is_empty, path


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
