"""A tenant that fills the queue of updates leaves places in it, and in each commit, to the others (R1, C7)."""
from blocked import TENANTS, Flood, block_writes, held
from lib.config import merge
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

GREEDY, MODEST = TENANTS
FIRST = "first"  # the tenant whose update keeps the committer busy
LOCK, QUEUE, BYTES = 1117, 200, 60 << 10  # together more than fits into one commit (8 MiB)
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
