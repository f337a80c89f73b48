"""Slow SQL that reads dictionaries leaves connections of their database to those who accept updates (R10)."""
from concurrent.futures import ThreadPoolExecutor

from blocked import held, wait_sql
from lib.config import merge
from lib.refdata import TENANT, item_path, make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

LOCK, CONNECTIONS = 1114, 3
SLOW = {"loadSql": f"{wait_sql(LOCK)} select k, v from t, waited where tenant_id = :tenantId"}
CODES = [f"SLOW{number}" for number in range(CONNECTIONS)]
SETTINGS = merge(pod("QUICK", *[{"code": code, **SLOW} for code in CODES], cache={"parallelReloads": CONNECTIONS}),
                 {"refdata": {"postgres": {"pool": {"maxSize": CONNECTIONS}}}})


def test_slow_loads_of_as_many_dictionaries_as_there_are_connections_leave_one_to_accept_updates(
        serve, refdata_db, token):  # noqa: F811
    make_table(refdata_db, "t")
    bearer = token(TENANT)
    with ThreadPoolExecutor() as threads:
        with held(refdata_db, LOCK) as blocked:
            server = serve(refdata_db, SETTINGS)
            reads = [threads.submit(server.client(bearer).get, item_path(code, "a")) for code in CODES]
            eventually(lambda: blocked() >= CONNECTIONS - 1)
            for number in range(5):
                assert server.client(bearer).post(updates_path("ASYNC"), delta("QUICK", {"a": number})).status == 202
            assert blocked() == CONNECTIONS - 1
        assert [read.result().status for read in reads] == [404] * len(CODES)  # unlocked: what waited is loaded
