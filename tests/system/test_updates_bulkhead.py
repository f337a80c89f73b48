"""What apply does with one dictionary's slow SQL leaves threads and connections for everybody else (R10)."""
import contextlib

from lib import on_engines
from lib.config import merge
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
SETTINGS = merge(pod("QUICK", *[{"code": code, **SLOW} for code in CODES], bus={"postgres": {"handlers": HANDLERS}}),
                 {"refdata": {"kafka": {"handlers": HANDLERS}}})


@contextlib.contextmanager
def locked(database):
    with contextlib.closing(database.connect()) as connection:
        connection.cursor().execute("select pg_advisory_lock(%s)", (LOCK,))
        yield


def busy_partitions(database):
    return database.value("select count(distinct partition) from platform.bus_message where topic = 'refdata.commands'")


def test_slow_sql_in_every_partition_leaves_another_dictionarys_posts_their_threads_and_connections(
        serve, refdata_db, token):  # noqa: F811
    make_table(refdata_db, "t")
    bearer = token(TENANT)
    waiting = lambda: refdata_db.value("select count(*) from pg_locks where locktype = 'advisory' and objid = %s"
                                       " and not granted", (LOCK,))
    with serve(refdata_db, SETTINGS, args=("--roles", "command")).client(bearer) as client:
        for code in CODES:
            assert client.post(updates_path("ASYNC"), delta(code, {"a": 1})).status == 202
    assert on_engines.carries_commands() or busy_partitions(refdata_db) > 12
    with locked(refdata_db):
        client = serve(refdata_db, SETTINGS, args=("--roles", "command,apply")).client(bearer)
        eventually(lambda: waiting() >= HANDLERS)
        for number in range(5):
            assert client.post(updates_path("ASYNC"), delta("QUICK", {"a": number})).status == 202
        assert waiting() == HANDLERS


def test_partitions_take_turns_so_a_backlog_of_one_dictionary_delays_anothers_update_by_one_batch_for_each(
        serve, refdata_db, token):  # noqa: F811
    """One handler, one update per batch: the last one accepted is decided when every partition has had its turn, which
    one that is claimed again meanwhile may have twice."""
    partitions, bearer = 16, token(TENANT)
    settings = merge(pod("RATES", "UNITS", "LATE", bus={"postgres": {"handlers": 1, "partitions": partitions}}),
                     {"refdata": {"updates": {"batch": 1}}})
    updates = [delta(code, {"a": number}) for number in range(2 * partitions) for code in ("RATES", "UNITS")]
    updates.append(delta("LATE", {"a": 1}))
    with serve(refdata_db, settings, args=("--roles", "command")).client(bearer) as client:
        for update in updates:
            assert client.post(updates_path("ASYNC"), update).status == 202
    assert busy_partitions(refdata_db) == 3
    serve(refdata_db, settings, args=("--roles", "apply"))
    decided = lambda: [code for (code,) in refdata_db.query("select dict_code from refdata.update_request"
                                                            " where status = 'COMMITTED' order by updated_at")]
    eventually(lambda: len(decided()) == len(updates))
    assert decided().index("LATE") < 2 * partitions  # before either backlog is done
