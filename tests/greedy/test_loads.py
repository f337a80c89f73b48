"""Slow SQL that reads one tenant's dictionaries leaves loads, reads from the primary and connections to the others (R10, R13, R14)."""
import contextlib

from blocked import TENANTS, Flood, held, wait_sql
from lib.config import merge
from lib.refdata import item_path, make_table, pod, refdata_db, set_version  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta, updates_path

LOCK, GREEDY, MODEST = 1114, *TENANTS
PARALLEL_READS = 4  # refdata.barrier.parallelReads
SLOW = {"loadSql": f"{wait_sql(LOCK, ':tenantId')} select k, v from t, waited where tenant_id = :tenantId"}


def settings(codes, connections=None):
    more = {"refdata": {"postgres": {"pool": {"maxSize": connections}}}} if connections else {}
    return merge(pod("QUICK", *[{"code": code, **SLOW} for code in codes]), more)


def use_everything(client, codes, number):
    """What a tenant does with dictionaries: first reads, updates, reads of a version that was just committed."""
    assert client.get(item_path(codes[number], "a", MODEST)).status == 404
    assert client.post(updates_path("ASYNC", MODEST), delta("QUICK", {"a": number})).status == 202
    answer = commit(client, delta("QUICK", {"a": number}), MODEST)
    assert answer.status == 200
    version = str(answer.json()["committedVersion"])
    assert client.get(item_path("QUICK", "a", MODEST), X_Min_Version=version).status == 200


def test_slow_loads_leave_places_and_connections_to_another_tenant(serve, refdata_db, token, whole):  # noqa: F811
    codes = [f"SLOW{number}" for number in range(500 if whole else 20)]
    make_table(refdata_db, "t")
    with contextlib.ExitStack() as stack:
        blocked = stack.enter_context(held(refdata_db, LOCK))
        server = serve(refdata_db, settings(codes))
        flood = stack.enter_context(Flood(server, token(GREEDY)))
        for code in codes:
            flood.get(item_path(code, "a", GREEDY))
        eventually(lambda: blocked() == 2)  # refdata.cache.parallelReloads
        with server.client(token(MODEST)) as client:
            for number in range(3):
                use_everything(client, codes, number)
        assert blocked() == 2


def test_with_few_connections_slow_loads_leave_one_to_loads_of_another_tenant_and_one_to_updates(
        serve, refdata_db, token):  # noqa: F811
    codes = [f"SLOW{number}" for number in range(4)]
    make_table(refdata_db, "t")
    with contextlib.ExitStack() as stack:
        blocked = stack.enter_context(held(refdata_db, LOCK))
        server = serve(refdata_db, settings(codes, connections=3))
        flood = stack.enter_context(Flood(server, token(GREEDY)))
        for code in codes:
            flood.get(item_path(code, "a", GREEDY))
        eventually(lambda: blocked() == 1)
        with server.client(token(MODEST)) as client:
            for number in range(3):
                use_everything(client, codes, number)
        assert blocked() == 1


def ask_primary(flood, database, codes, blocked):
    """Whether reads of versions that the pod does not have yet took all of the tenant's places. A pod that just started may look at all
    versions and have one: then the next version is asked for."""
    version = len(flood.connections) + 1
    for code in codes:
        set_version(database, code, version, GREEDY)
        flood.get(item_path(code, "a", GREEDY), X_Min_Version=str(version))
    eventually(lambda: blocked() + len(flood.answered()) >= PARALLEL_READS)
    return blocked() >= PARALLEL_READS


def test_slow_reads_from_the_primary_leave_some_to_another_tenant(serve, refdata_db, token):  # noqa: F811
    """Each of greedy's dictionaries is behind, and its keys cannot be read."""
    rows = "select k, v from t, waited where tenant_id = :tenantId"
    codes = [f"SLOW{number}" for number in range(10)]
    slow = {"loadSql": "select k, v from t where tenant_id = :tenantId",
            "loadKeysSql": f"{wait_sql(LOCK, ':tenantId')} {rows} and k = any(:keys)"}
    configuration = merge(pod(*[{"code": code, **slow} for code in codes], cache={"sweepInterval": "1h"}),
                          {"refdata": {"barrier": {"waitMs": 0, "timeout": "120s"}, "postgres": {"statementTimeout": "120s"}}})
    for tenant in TENANTS:
        make_table(refdata_db, "t", {"a": "1"}, tenant=tenant)
    server = serve(refdata_db, configuration)
    with server.client(token(GREEDY)) as greedy, server.client(token(MODEST)) as modest:
        for code in codes:
            for client, tenant in ((greedy, GREEDY), (modest, MODEST)):
                assert client.get(item_path(code, "a", tenant)).status == 200
        with Flood(server, token(GREEDY)) as flood, held(refdata_db, LOCK) as blocked:
            eventually(lambda: ask_primary(flood, refdata_db, codes, blocked))
            for code in codes:
                set_version(refdata_db, code, 1, MODEST)
                assert modest.get(item_path(code, "a", MODEST), X_Min_Version="1").status == 200
            assert blocked() >= PARALLEL_READS
