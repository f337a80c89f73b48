"""Lookups of one tenant whose SQL hangs leave places of the owner, of the loop and of the lanes of changes to others (H4, H6)."""
import contextlib

from blocked import TENANTS, Flood, held, wait_sql
from lib.config import merge
from lib.entitlement import SCOPES, new_key
from lib.hydration import PATIENT, path
from lib.refdata import make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta

LOCK, GREEDY, MODEST = 1120, *TENANTS
LOOKS = 2  # HYDRATION_PARALLEL: questions of one tenant that an owner looks up at once
LOOK_MS = 5000  # HYDRATION_OWNER_MS: after that a look ends by itself
TYPE = "dictionary_item"
SLOW = {"code": "SLOW",
        "loadSql": f"{wait_sql(LOCK, ':tenantId')} select k, v from t, waited where tenant_id = :tenantId",
        "apply": {"upsertSql": "insert into t values (:tenantId, :key, :payload)"
                               " on conflict (tenant_id, k) do update set v = excluded.v"}}


def settings(wait, connections=None):
    patient = {"statementTimeout": "120s", **({"pool": {"maxSize": connections}} if connections else {})}
    return merge(pod(SLOW), {"hydration": wait, "refdata": {"postgres": patient}, "http": {"loops": 1, "workers": 16}})


def item(key):
    return path(TYPE, f"SLOW/{key}")


def payload(client):
    """Of item a."""
    return client.get(item("a")).json()["data"]["payload"]


def test_slow_looks_of_one_tenant_leave_a_place_of_the_owner_to_another(serve, refdata_db, token):  # noqa: F811
    """A lookup that had to wait for the end of greedy's looks would time out."""
    make_table(refdata_db, "t", {number: "{}" for number in range(8 * LOOKS)}, tenant=GREEDY)
    make_table(refdata_db, "t", {"a": '{"n": 1}'}, tenant=MODEST)
    server = serve(refdata_db, settings({"wait_timeout_ms": LOOK_MS - 1000}), args=("--roles", "command,hydration"))
    with held(refdata_db, LOCK) as blocked, Flood(server, token(GREEDY)) as flood, server.client(token(MODEST)) as modest:
        for number in range(8 * LOOKS):
            flood.get(item(number))  # of rows that are there, or PostgreSQL may not wait
        eventually(lambda: blocked() == LOOKS)
        assert payload(modest) == {"n": 1}
        assert modest.get(item("b")).code == "ENTITY_NOT_FOUND"
        assert blocked() == LOOKS


def test_lookups_that_wait_for_connections_leave_a_place_of_the_loop_to_another_tenant(serve, refdata_db, token):  # noqa: F811
    """Greedy's reads of a locked table have all connections that it may have, and its lookups wait for one."""
    connections, reads, lookups = 6, 16, 8
    server = serve(refdata_db, merge(settings(PATIENT, connections), {"http": {"limits": {"requestTimeout": "120s"}}}),
                   args=("--roles", "entitlement,intake,hydration"))
    count_waiting = "select count(*) from pg_locks where relation = 'entitlement.entitlements'::regclass and not granted"
    with contextlib.closing(refdata_db.connect()) as locker, Flood(server, token(GREEDY, scope=SCOPES)) as flood, \
            server.client(token(MODEST)) as modest:
        cursor = locker.cursor()
        cursor.execute("begin")
        cursor.execute("lock table entitlement.entitlements in access exclusive mode")
        for _ in range(reads):
            flood.get(f"/v1/users/{new_key()}/entitlements")
        eventually(lambda: refdata_db.value(count_waiting) == connections - 1)
        for number in range(lookups):
            flood.get(path("item", f"none-{number}"))
        eventually(lambda: server.metrics()["hydration_waiters"] == lookups)
        for number in range(3):
            assert modest.get(path("item", f"none-{number}")).code == "ENTITY_NOT_FOUND"
        assert server.metrics()["hydration_waiters"] == lookups
        cursor.execute("rollback")
        assert {connection.read_response().status for connection in flood.connections} == {200, 404}


def test_changes_whose_look_hangs_leave_a_lane_to_another_tenant(serve, refdata_db, token):  # noqa: F811
    """The claim of greedy's row is still under way when modest's change was published: it was not waited for."""
    for tenant in TENANTS:
        make_table(refdata_db, "t", {"a": '{"n": 1}'}, tenant=tenant)
    rows = "select array_agg(id) from refdata.item_change where tenant_id = 'greedy'"
    server = serve(refdata_db, settings(PATIENT), args=("--roles", "command,apply,hydration"))
    with server.client(token(GREEDY)) as greedy, server.client(token(MODEST)) as modest:
        for client in (greedy, modest):
            assert payload(client) == {"n": 1}
        with held(refdata_db, LOCK) as blocked:
            assert commit(greedy, delta("SLOW", {"a": {"n": 2}}), GREEDY).status == 200
            eventually(lambda: blocked() == 1)
            claimed = refdata_db.value(rows)
            for number in range(2, 5):
                assert commit(modest, delta("SLOW", {"a": {"n": number}}), MODEST).status == 200
                eventually(lambda number=number: payload(modest) == {"n": number})
            assert (blocked(), refdata_db.value(rows)) == (1, claimed)
        eventually(lambda: payload(greedy) == {"n": 2})
