"""A tenant that fills the queue of updates leaves places in it, and in each commit, to the others (R1, C7)."""
from blocked import TENANTS, Flood, block_writes, held, wait_sql
from lib.config import merge
from lib.refdata import make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

GREEDY, MODEST = TENANTS
FIRST = "first"  # the tenant whose update keeps the committer busy
LOCK, SLOW_LOCK = 1117, 1118
QUEUE, BYTES = 200, 60 << 10  # together more than fits into one commit (8 MiB)
SETTINGS = merge(pod("RATES"), {
    "refdata": {"updates": {"queue": QUEUE, "commitTimeout": "120s"}, "postgres": {"statementTimeout": "120s"}}})


def test_in_a_full_queue_the_tenant_with_most_updates_is_refused_and_tenants_take_turns_in_each_commit(
        serve, refdata_db, token):  # noqa: F811
    block_writes(refdata_db, "refdata.update_request", LOCK, f"new.tenant_id = '{FIRST}'")
    server = serve(refdata_db, SETTINGS, args=("--roles", "command"))
    with Flood(server, token(FIRST)) as first, Flood(server, token(GREEDY)) as greedy, Flood(server, token(MODEST)) as modest:
        with held(refdata_db, LOCK) as blocked:
            first.post(updates_path("ASYNC", FIRST), delta("RATES", {"a": 1}))
            eventually(blocked)
            for number in range(QUEUE + 1):
                greedy.post(updates_path("ASYNC", GREEDY), delta("RATES", {f"k{number}": "x" * BYTES}))
            eventually(lambda: len(greedy.answered()) == 1)  # the queue is full
            last = modest.post(updates_path("ASYNC", MODEST), delta("RATES", {"a": 1}))
            eventually(lambda: len(greedy.answered()) == 2)  # one of greedy's made room
            for connection in greedy.answered():
                answer = connection.read_response()
                assert (answer.status, answer.code, "retry-after" in answer.headers) == (503, "OVERLOADED", True)
        assert last.read_response().status == 202
        committed = lambda: refdata_db.query("select tenant_id, xmin::text::bigint from refdata.update_request"
                                             " where tenant_id <> %s", (FIRST,))
        eventually(lambda: len(committed()) == QUEUE)  # 199 of greedy's, and modest's
        commits = {tenant: sorted({commit for owner, commit in committed() if owner == tenant}) for tenant in TENANTS}
        assert commits[MODEST] == commits[GREEDY][:1] and len(commits[GREEDY]) > 1


def test_slow_sql_of_one_tenant_leaves_the_others_updates_in_commits_of_their_own(serve, refdata_db, token):  # noqa: F811
    """An update that is applied in its own commit is not queued. Those in the partition that greedy's SQL blocks are."""
    waits = wait_sql(SLOW_LOCK, ":tenantId")
    slow = {"loadSql": "select k, v from t where tenant_id = :tenantId",
            "apply": {"upsertSql": f"{waits} insert into t select :tenantId, :key, :payload from waited"
                                   " on conflict (tenant_id, k) do update set v = excluded.v"}}
    codes = [f"SLOW{number}" for number in range(8)]
    make_table(refdata_db, "t")
    server = serve(refdata_db, pod(*[{"code": code, **slow} for code in codes]))
    queued = lambda tenant: refdata_db.value("select count(*) from platform.bus_message where topic = 'refdata.commands'"
                                             " and convert_from(key, 'UTF8') like %s", (tenant + ":%",))
    with server.client(token(GREEDY)) as greedy, server.client(token(MODEST)) as modest, held(refdata_db, SLOW_LOCK) as blocked:
        for number in range(5):
            assert greedy.post(updates_path("ASYNC", GREEDY), delta(codes[0], {"a": number})).status == 202
            for code in codes[1:] if number else []:
                assert modest.post(updates_path("ASYNC", MODEST), delta(code, {"a": number})).status == 202
        eventually(blocked)
        assert queued(GREEDY) == 5
        assert queued(MODEST) < 14  # of 28
