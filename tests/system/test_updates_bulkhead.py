"""What apply does with one dictionary's slow SQL leaves threads and connections for everybody else (R10)."""
import contextlib

from lib.refdata import TENANT, make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

LOCK, HANDLERS = 1113, 2
SLOW = {
    "loadSql": "select k, v from t where tenant_id = :tenantId",
    "apply": {"upsertSql": f"with waited as materialized (select pg_advisory_xact_lock({LOCK}))"
                           " insert into t select :tenantId, :key, :payload from waited"
                           " on conflict (tenant_id, k) do update set v = excluded.v"},
}
CODES = [f"SLOW{number}" for number in range(48)]  # in more partitions than there are threads
SETTINGS = pod("QUICK", *[{"code": code, **SLOW} for code in CODES], bus={"postgres": {"handlers": HANDLERS}})


@contextlib.contextmanager
def locked(database):
    with contextlib.closing(database.connect()) as connection:
        connection.cursor().execute("select pg_advisory_lock(%s)", (LOCK,))
        yield


def test_slow_sql_in_every_partition_leaves_another_dictionarys_posts_their_threads_and_connections(
        serve, refdata_db, token):  # noqa: F811
    make_table(refdata_db, "t")
    bearer = token(TENANT)
    waiting = lambda: refdata_db.value("select count(*) from pg_locks where locktype = 'advisory' and objid = %s"
                                       " and not granted", (LOCK,))
    with serve(refdata_db, SETTINGS, args=("--roles", "command")).client(bearer) as client:
        for code in CODES:
            assert client.post(updates_path("ASYNC"), delta(code, {"a": 1})).status == 202
    assert refdata_db.value("select count(distinct partition) from platform.bus_message where topic = 'refdata.commands'") > 12
    with locked(refdata_db):
        client = serve(refdata_db, SETTINGS, args=("--roles", "command,apply")).client(bearer)
        eventually(lambda: waiting() >= HANDLERS)
        for number in range(5):
            assert client.post(updates_path("ASYNC"), delta("QUICK", {"a": number})).status == 202
        assert waiting() == HANDLERS
