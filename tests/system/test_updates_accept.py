"""refdata.accept_updates(): new, known or in conflict, for keys, chunks and events of a batch (R1, R9, I1 to I6)."""
import threading
import uuid

import pytest
from lib.refdata import module_refdata_db  # noqa: F401  pylint: disable=unused-import

SQL = ("select place - 1, verdict, key_is_known, chunk_is_new, event, status from refdata.accept_updates('REST', %s::text[],"
       " %s::uuid[], %s::text[], %s::text[], %s::text[], %s::uuid[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[],"
       " %s::bigint[], 3600000, %s) order by 1")


class Update(dict):
    """The arguments of one update; what is not given is null."""
    def __init__(self, content="c", event=None, tenant="demo", **more):
        super().__init__(tenant=tenant, event=event or str(uuid.uuid4()), dict="D", content=content, who="me", **more)


@pytest.fixture(name="connect")
def fixture_connect(module_refdata_db):  # noqa: F811
    opened = []

    def connect():
        opened.append(module_refdata_db.connect())
        opened[-1].autocommit = False
        return opened[-1]
    yield connect
    for connection in opened:
        connection.close()


def accept(connection, *updates, all_new=False):
    def column(name, is_array=True):
        return [update.get(name) for update in updates] if is_array else None
    has_keys = any(update.get("key") for update in updates)
    has_chunks = any(update.get("chunk") for update in updates)
    with connection.cursor() as cursor:
        cursor.execute(SQL, [column(name) for name in ("tenant", "event", "dict", "content", "who")]
                       + [column(name, has_chunks) for name in ("snapshot", "index", "chunk")]
                       + [column(name, has_keys) for name in ("who", "key", "body", "lock")] + [all_new])
        return [(place, verdict) + tuple(rest) for place, verdict, *rest in cursor.fetchall()]


def verdicts(connection, *updates):
    return {row[0]: row[1] for row in accept(connection, *updates)}


def keyed(key, body="body", event=None, tenant="demo"):
    return Update(event=event, tenant=tenant, key=key, body=body, lock=hash(key) % 2**31)


def chunk(index, content="chunk", event=None, snapshot=None):
    return Update(content="snapshot", event=event, snapshot=snapshot, index=index, chunk=content)


def test_new_updates_have_no_row_in_the_answer_and_are_known_afterwards(connect):
    connection, updates = connect(), [Update(), Update("other")]
    assert not accept(connection, *updates)
    assert verdicts(connection, *updates) == {0: "KNOWN", 1: "KNOWN"}
    assert verdicts(connection, Update("another", event=updates[0]["event"]), Update()) == {0: "EVENT_ID_CONFLICT"}
    assert not accept(connection, Update(event=updates[0]["event"], tenant="another"))


def test_of_several_updates_of_one_event_in_a_batch_the_first_is_new(connect):
    connection, first = connect(), Update()
    same, other = Update(event=first["event"]), Update("other", event=first["event"])
    assert verdicts(connection, first, same, other) == {1: "KNOWN", 2: "EVENT_ID_CONFLICT"}


def test_a_wrong_guess_that_all_are_new_fails_and_writes_nothing(connect, module_refdata_db):  # noqa: F811
    connection, known, new = connect(), Update(), Update()
    accept(connection, known)
    connection.commit()
    with pytest.raises(Exception, match="not new"):
        accept(connection, new, known, all_new=True)
    connection.rollback()
    assert not module_refdata_db.query("select 1 from refdata.update_request where event_id = %s", (new["event"],))
    assert not accept(connection, new, all_new=True)


def test_a_key_stands_for_the_event_that_used_it_first(connect):
    connection, first = connect(), keyed("k-1")
    assert not accept(connection, first, Update())
    assert accept(connection, Update(), keyed("k-1")) == [(1, "KNOWN", True, False, first["event"], "PENDING")]
    assert verdicts(connection, keyed("k-1", body="other")) == {0: "IDEMPOTENCY_KEY_CONFLICT"}
    assert not accept(connection, keyed("k-1", tenant="another"))


def test_a_key_whose_update_is_no_longer_kept_is_refused_or_new_again(connect):
    connection, first = connect(), keyed("k-2")
    accept(connection, first)
    with connection.cursor() as cursor:
        cursor.execute("delete from refdata.update_request where event_id = %s", (first["event"],))
    assert verdicts(connection, keyed("k-2")) == {0: "UNKNOWN_UPDATE"}
    assert accept(connection, keyed("k-2", event=first["event"]))[0][:3] == (0, "NEW", True)


def test_a_key_that_another_transaction_uses_is_not_waited_for(connect):
    one, two = connect(), connect()
    accept(one, keyed("k-3"))
    assert verdicts(two, keyed("k-3")) == {0: "IDEMPOTENCY_KEY_PROCESSING"}
    one.commit()
    assert verdicts(two, keyed("k-3")) == {0: "KNOWN"}


def test_chunks_of_one_event_are_new_one_by_one(connect):
    connection, event, snapshot = connect(), str(uuid.uuid4()), str(uuid.uuid4())
    row = accept(connection, chunk(2, "b", event, snapshot), chunk(1, "a", event, snapshot))
    assert [(place, verdict, is_new) for place, verdict, _, is_new, *_ in row] == [(1, "KNOWN", True)]
    row = accept(connection, chunk(1, "a", event, snapshot), chunk(2, "X", event, snapshot))
    assert [(verdict, is_new) for _, verdict, _, is_new, *_ in row] == [("KNOWN", False), ("CHUNK_CONFLICT", False)]


def test_a_refused_update_tells_that_its_chunk_was_written(connect):
    connection, known = connect(), Update()
    accept(connection, known)
    row = accept(connection, chunk(1, event=known["event"], snapshot=str(uuid.uuid4())))
    assert row[0][:4] == (0, "EVENT_ID_CONFLICT", False, True)


@pytest.mark.parametrize("ends, expected", [("commit", {0: "KNOWN", 1: "KNOWN"}), ("rollback", {})])
def test_batches_with_the_same_events_wait_for_each_other_in_any_order(connect, module_refdata_db, ends, expected):  # noqa: F811
    """The second one waits for the first one's end, sees what it came to, and neither deadlocks."""
    one, two, updates, seen = connect(), connect(), [Update(), Update()], {}
    assert not accept(one, *updates)
    waiting = threading.Thread(target=lambda: seen.update(found=verdicts(two, *reversed(updates))))
    waiting.start()
    while not module_refdata_db.query("select 1 from pg_stat_activity where wait_event_type = 'Lock'"
                                      " and datname = current_database()"):
        assert waiting.is_alive()
    getattr(one, ends)()
    waiting.join(20)
    assert seen["found"] == expected
