"""Requests whose SQL is slow leave threads, connections and places in their queue to other tenants (C7, C11)."""
import contextlib

from blocked import TENANTS, Flood, block_writes, held
from lib import chat, items
from lib.entitlement import GRANTS, SCOPES, body, grant, listed, new_key, revoke
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually

GREEDY, MODEST = TENANTS
LOCK, SLOW_LOCK, QUEUE = 1115, 1116, 16
REQUESTS = QUEUE  # none is refused, also while other work of the process has the threads
GRANT_TABLE = "entitlement.entitlements"
ROLES = ("--roles", "entitlement,intake,chat,notification")


def settings(workers, connections):
    patient = {"pool": {"maxSize": connections}, "statementTimeout": "120s"}
    return {"http": {"workers": workers, "workerQueue": QUEUE, "limits": {"requestTimeout": "120s"}},
            "refdata": {"postgres": patient}}


def use_everything(server, bearer):
    """Every kind of request whose handler runs SQL."""
    user, sku = new_key(), new_key()
    with server.client(bearer) as client, chat.Session(server, bearer) as session:
        assert grant(client, user).status == 200
        assert revoke(client, user).status == 200
        assert listed(client, user).status == 200
        assert items.post(client, items.item(sku), new_key()).status == 201
        assert session.post().status == 200
        assert session.page().status == 200


def test_blocked_grants_leave_threads_and_connections_to_every_request_of_another_tenant(
        serve, refdata_db, token, whole):  # noqa: F811
    block_writes(refdata_db, GRANT_TABLE, LOCK)
    for workers, connections in ((1, 2), (4, 4), (16, 12)) if whole else ((4, 4),):
        server = serve(refdata_db, settings(workers, connections), args=ROLES)
        with Flood(server, token(GREEDY, scope=SCOPES)) as flood:
            with held(refdata_db, LOCK) as blocked:
                for _ in range(REQUESTS):
                    flood.post(GRANTS, body(new_key()), Idempotency_Key=new_key())
                eventually(blocked)
                for _ in range(3):
                    use_everything(server, token(MODEST, scope=SCOPES))
                assert 1 <= blocked() < connections
            assert [connection.read_response().status for connection in flood.connections] == [200] * REQUESTS


def test_in_a_full_queue_the_tenant_with_most_requests_is_refused(serve, refdata_db, token):  # noqa: F811
    """One thread and the queue are greedy's, the other thread is modest's: its next request takes a place from greedy."""
    user = f"u_{new_key()}"
    block_writes(refdata_db, GRANT_TABLE, LOCK)
    block_writes(refdata_db, GRANT_TABLE, SLOW_LOCK, f"new.user_id = '{user}'")
    server = serve(refdata_db, settings(1, 4), args=ROLES)
    with Flood(server, token(GREEDY, scope=SCOPES)) as greedy, Flood(server, token(MODEST, scope=SCOPES)) as modest, \
            held(refdata_db, LOCK) as blocked:
        for _ in range(1 + QUEUE + 1):
            greedy.post(GRANTS, body(new_key()), Idempotency_Key=new_key())
        refused = lambda: len(greedy.answered())
        eventually(lambda: refused() == 1 and blocked() == 1)
        with held(refdata_db, SLOW_LOCK) as slow:
            first = modest.post(GRANTS, body(user), Idempotency_Key=new_key())
            eventually(lambda: slow() == 1)
            second = modest.post(GRANTS, body(f"{user}_2"), Idempotency_Key=new_key())
            eventually(lambda: refused() == 2)
        assert [first.read_response().status, second.read_response().status] == [200, 200]
        for connection in greedy.answered():
            answer = connection.read_response()
            assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert blocked() == 1
