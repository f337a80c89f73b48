"""Messages between the engine and the database are within the memory budget (C6): a burst of large updates waits in PostgreSQL, not in the
process, however slowly they are applied, and the process gives back what it took for them.

It is the released program: the debug build's memory is mostly the sanitizers'."""
import contextlib

from flood import Resident, dictionaries, sample
from lib.config import merge
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import PATIENCE, eventually
from lib.writers import delta, updates_path

MIB = 1024 * 1024
LIMIT = 80 * MIB
TENANT = "greedy"
ITEMS, ITEM_BYTES = 100, 70_000  # 7 MiB in an update
CODES = [f"LARGE{number}" for number in range(64)]  # in all partitions
SETTINGS = merge(pod(*CODES, limits={"memory": LIMIT}, http={"limits": {"body": "8MiB"}}),
                 {"refdata": {"postgres": {"statementTimeout": "120s"}, "updates": {"commitTimeout": "120s"}}})


def post(server, bearer, code):
    body = delta(code, {f"k{number}": "x" * ITEM_BYTES for number in range(ITEMS)})
    def is_accepted():  # there may be no room for the body for a moment
        with contextlib.suppress(OSError, EOFError), server.client(bearer) as client:
            return client.post(updates_path("ASYNC", TENANT), body).status == 202
    eventually(is_accepted)


def test_a_burst_of_large_updates_is_within_the_budget_while_apply_is_slow(program, whole, serve, refdata_db, token):  # noqa: F811
    count = 200 if whole else 40
    server = serve(refdata_db, SETTINGS)
    bearer = token(TENANT, ttl=3600)
    committed = lambda: refdata_db.value("select count(*) from refdata.update_request where status = 'COMMITTED'")
    resident = Resident(server.process.pid)
    resident.start()
    try:
        with contextlib.closing(refdata_db.connect()) as blocker:
            blocker.autocommit = False
            blocker.cursor().execute("lock table refdata.dictionary_item in access exclusive mode")
            for number in range(count):
                post(server, bearer, CODES[number % len(CODES)])
            assert committed() == 0
        eventually(lambda: committed() == count, timeout=8 * PATIENCE, interval=0.2)
        allowed = 1.1 * (LIMIT + dictionaries(server))
    finally:
        resident.stop()
    assert resident.most <= allowed, f"{resident.most / MIB:.0f} MiB of {allowed / MIB:.0f}"
    eventually(lambda: (sample(server) or {}).get('freshet_memory_used_bytes{account="queues"}') == 0)
