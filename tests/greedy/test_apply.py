"""Slow SQL of one tenant, or of one dictionary, leaves handlers of the role apply to the updates of others, and order is kept (R10)."""
from blocked import TENANTS, held, wait_sql
from lib.config import merge
from lib.refdata import make_table, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.writers import delta, updates_path

GREEDY, MODEST = TENANTS
LOCK, HANDLERS, PARTITIONS = 1119, 2, 16
CODES = [f"D{number}" for number in range(64)]
SETTINGS = {"bus": {"postgres": {"handlers": HANDLERS, "partitions": PARTITIONS}}, 
            "refdata": {"postgres": {"statementTimeout": "120s"}, "kafka": {"handlers": HANDLERS}}}


def partition_of(tenant, code):
    """As Kafka's clients choose it: murmur2 of the key."""
    data, mask = f"{tenant}:{code}".encode(), 0xffffffff
    value = 0x9747b28c ^ len(data)
    for at in range(0, len(data) - 3, 4):
        part = int.from_bytes(data[at:at + 4], "little") * 0x5bd1e995 & mask
        value = (value * 0x5bd1e995 ^ (part ^ part >> 24) * 0x5bd1e995) & mask
    rest = data[len(data) & ~3:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * 0x5bd1e995 & mask
    value = (value ^ value >> 13) * 0x5bd1e995 & mask
    return ((value ^ value >> 15) & 0x7fffffff) % PARTITIONS


def find(pairs, partition):
    """The first of these pairs that is in a partition for which this holds."""
    return next(pair for pair in pairs if partition(partition_of(*pair)))


def spread(pairs, count):
    """So many of them, each in a partition of its own."""
    by_partition = {}
    for pair in pairs:
        by_partition.setdefault(partition_of(*pair), pair)
    assert len(by_partition) > count
    return list(by_partition.values())[:count]


def slow(tenant):
    """Dictionaries whose updates wait for the lock, where `tenant` in SQL is greedy's."""
    waits = wait_sql(LOCK, tenant)
    return [{"code": code, "loadSql": "select k, v from t where tenant_id = :tenantId",
             "apply": {"upsertSql": f"{waits} insert into t select :tenantId, :key, :payload from waited"
                                    " on conflict (tenant_id, k) do update set v = excluded.v"}} for code in CODES]


class Updates:
    """Queued by a process that does not apply them; then one that does is started."""

    def __init__(self, serve, database, token, dictionaries):
        make_table(database, "t")
        self.serve, self.database, self.token = serve, database, token
        self.settings = merge(pod(*dictionaries), SETTINGS)
        self.accepting = serve(database, self.settings, args=("--roles", "command"))

    def queue(self, tenant, code, *values):
        with self.accepting.client(self.token(tenant)) as client:
            for value in values:
                assert client.post(updates_path("ASYNC", tenant), delta(code, {"k": value})).status == 202

    def apply(self):
        return self.serve(self.database, self.settings, args=("--roles", "apply"))

    def given_up(self):
        """Handlers whose time was up: the others' updates must not need that."""
        return self.database.value("select count(*) from platform.bus_cursor where attempts > 0")

    def committed(self, tenant, code):
        return self.database.value("select count(*) from refdata.update_request where tenant_id = %s and dict_code = %s"
                                   " and status = 'COMMITTED'", (tenant, code))


def test_slow_updates_of_one_tenant_leave_handlers_to_another(serve, refdata_db, token):  # noqa: F811
    updates = Updates(serve, refdata_db, token, slow(":tenantId"))
    blocked_pairs = spread([(GREEDY, code) for code in CODES], 2 * HANDLERS)
    taken = {partition_of(*pair) for pair in blocked_pairs}
    other = find([(MODEST, code) for code in CODES], lambda partition: partition not in taken)
    for pair in blocked_pairs:
        updates.queue(*pair, 1, 2)
    updates.queue(*other, *range(5))
    with held(refdata_db, LOCK) as blocked:
        updates.apply()
        eventually(lambda: updates.committed(*other) == 5)
        eventually(lambda: blocked() == HANDLERS)
        updates.queue(*other, 5)  # while they are blocked
        eventually(lambda: updates.committed(*other) == 6)
        assert (blocked(), updates.given_up()) == (HANDLERS, 0)
    for pair in blocked_pairs:
        eventually(lambda pair=pair: updates.committed(*pair) == 2)
    assert refdata_db.query("select distinct v::text from t where tenant_id = %s", (GREEDY,)) == [("2",)]


def test_slow_updates_of_one_dictionary_leave_handlers_to_another(serve, refdata_db, token):  # noqa: F811
    code, *others = CODES
    first, *rest = slow(f"'{GREEDY}'")
    updates = Updates(serve, refdata_db, token, [first, *[{**each, "apply": slow(":tenantId")[0]["apply"]} for each in rest]])
    blocked_pairs = spread([(f"t{number}", code) for number in range(64)], 2 * HANDLERS)
    taken = {partition_of(*pair) for pair in blocked_pairs}
    other = find([(MODEST, each) for each in others], lambda partition: partition not in taken)
    for pair in blocked_pairs:
        updates.queue(*pair, 1)
    updates.queue(*other, 1)
    with held(refdata_db, LOCK) as blocked:
        updates.apply()
        eventually(lambda: blocked() == HANDLERS)
        updates.queue(*other, 2)
        eventually(lambda: updates.committed(*other) == 2)
        assert (blocked(), updates.given_up()) == (HANDLERS, 0)
    for pair in blocked_pairs:
        eventually(lambda pair=pair: updates.committed(*pair) == 1)


def test_a_batch_ends_before_an_update_that_would_block_its_handler(serve, refdata_db, token):  # noqa: F811
    """In one partition modest's update is before greedy's, and another one of modest's after it: that one waits for its turn."""
    updates = Updates(serve, refdata_db, token, slow(":tenantId"))
    blocked_pairs = spread([(GREEDY, code) for code in CODES], HANDLERS + 1)
    *held_pairs, mixed = blocked_pairs
    same = [(MODEST, code) for code in CODES if partition_of(MODEST, code) == partition_of(*mixed)]
    for pair in held_pairs:
        updates.queue(*pair, 1)
    with held(refdata_db, LOCK) as blocked:
        updates.apply()
        eventually(lambda: blocked() == HANDLERS)
        updates.queue(*same[0], 1)
        updates.queue(*mixed, 1)
        updates.queue(*same[-1], 2)
        eventually(lambda: updates.committed(*same[0]) >= 1)
        assert (blocked(), updates.given_up()) == (HANDLERS, 0)
    for pair, count in (mixed, 1), (same[-1], 1 + (same[0] == same[-1])):
        eventually(lambda pair=pair, count=count: updates.committed(*pair) == count)
