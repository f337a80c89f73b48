"""Hydration while NATS is gone (H3, H5): who asks is told so, and is answered when it is back."""
import pytest

from lib import items
from lib.hydration import HASTY, Asking, fresh, is_empty, path, rows
from lib.wait import eventually


@pytest.fixture(name="pair")
def make_pair(serve, database, token):
    """Who asks, and the owner of items."""
    asker = serve(database, {"hydration": {**HASTY, "wait_timeout_ms": 1000}}, args=("--roles", "hydration"))
    owner = serve(database, args=("--roles", "intake"))
    return asker, owner, token("demo", subject="ann", ttl=3600)


def made(owner, bearer):
    """A new item's sku."""
    sku = fresh("SKU")
    with owner.client(bearer) as client:
        assert items.post(client, items.item(sku)).status == 201
    return sku


@pytest.mark.parametrize("breaks", ["kill", pytest.param("freeze", marks=pytest.mark.whole)])
def test_h3_without_nats_it_is_503_and_then_as_before(engines, pair, database, breaks):
    """Nobody is left waiting; whoever asks anew, for the same or for another, is answered when NATS is back."""
    asker, owner, bearer = pair
    known, absent = made(owner, bearer), fresh("SKU")

    def status(sku):
        return Asking(asker, bearer, path("item", sku)).answer().status

    eventually(lambda: status(known) == 200 and rows(database, "copies", known) == 1)
    getattr(engines.nats, breaks)()
    try:
        answer = Asking(asker, bearer, path("item", absent)).answer()
        assert answer.status == 503 and answer.headers["retry-after"], answer
        assert status(known) == 200  # without asking anybody
        is_empty(asker)
    finally:
        if breaks == "freeze":
            engines.nats.thaw()
    engines.nats.start()
    eventually(lambda: status(absent) == 404)
    new = made(owner, bearer)
    eventually(lambda: status(new) == 200)
    is_empty(asker)
