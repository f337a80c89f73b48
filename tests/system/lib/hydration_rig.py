"""Six processes on one database and the owner outside: what the tests of the protocol and of answers share."""
from types import SimpleNamespace

import pytest

from .hydration import BRIEF, HASTY, KEEN, PATIENT, ROLE, Asking, Outside, is_empty, path
from .wait import eventually

TYPE = "widget"
LAMP = {"title": "Lamp", "price": 1.5, "sizes": {"height": 3}}


@pytest.fixture(scope="module")
def rig(module_serve, module_database, token):
    """Six processes on one database, two of each kind where two matter, and the owner outside."""
    kinds = {"patient": PATIENT, "other": PATIENT, "hasty": HASTY, "brief": BRIEF, "keen": KEEN, "keen_too": KEEN}
    servers = {name: module_serve.make(module_database, {"hydration": policy}, args=ROLE) for name, policy in kinds.items()}
    servers["keen_too"].args = ["--roles", "hydration,intake"]  # an owner inside
    servers["patient"].start()
    for server in list(servers.values())[1:]:
        server.spawn()
    for server in servers.values():
        eventually(server.is_ready)
    outside = Outside(module_database)
    yield SimpleNamespace(**servers, all=list(servers.values()), outside=outside, database=module_database,
                          bearer=token("demo", subject="ann", ttl=3600), token=token)
    outside.close()


@pytest.fixture(autouse=True)
def nobody_waits(rig):
    """Whatever a test did: no waiter is left in any process (H2)."""
    yield
    is_empty(*rig.all)


@pytest.fixture
def client(rig):
    with rig.patient.client(rig.bearer) as one:
        yield one


@pytest.fixture
def other(rig):
    with rig.other.client(rig.bearer) as one:
        yield one


@pytest.fixture
def hasty(rig):
    with rig.hasty.client(rig.bearer) as one:
        yield one


def asking(rig, entity_id, server=None, subject="ann", tenant="demo", **query):
    """A request under way."""
    bearer = rig.bearer if (subject, tenant) == ("ann", "demo") else rig.token(tenant, subject=subject, ttl=3600)
    return Asking(server or rig.patient, bearer, path(TYPE, entity_id, **query))


def data_of(answer):
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json()["data"]


def run_out(rig, client, entity, **query):
    """The answer when time is up, its question asked: on a slow machine that may take a few requests."""
    def answer():
        last = client.get(path(TYPE, entity, **query))
        assert last.status != 503 or last.code == "HYDRATION_TIMEOUT", last.body
        return rig.outside.asked(entity) and last

    return eventually(answer)


def is_absent(answer):
    return (answer.status, answer.code) == (404, "ENTITY_NOT_FOUND")
