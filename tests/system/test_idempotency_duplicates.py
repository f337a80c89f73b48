"""I3, I5 on intake: duplicates at once, and processes, connections, clients and databases that die in the middle.

Whatever dies: both effect and stored answer are there, or neither, and the key is free again at once.
"""
import json
import signal
import threading
import time
from collections import Counter

import pytest

from lib.items import CONFLICT, INTAKE, PATH, PROCESSING, ROUTE, at_once, effects, fresh, item, post
from lib.postgres import freeze_cluster, signal_all
from lib.wait import eventually
from lib.wire import Client, request_bytes

TWINS = 100


@pytest.fixture(scope="module")
def pair(module_serve, module_database):
    """Two processes on one database: nothing but PostgreSQL is between them."""
    return [module_serve(module_database, args=INTAKE) for _ in range(2)]


def check_duplicates(answers, key):
    """One answer, however often; the others were told to wait. Returns (those answered, those told to wait)."""
    done = [answer for answer in answers if answer.status == 201]
    busy = [answer for answer in answers if answer.status != 201]
    assert len({answer.body for answer in done}) == 1, Counter(answer.status for answer in answers)
    assert sum("idempotency-replayed" not in answer.headers for answer in done) == 1
    for answer in busy:
        assert (answer.status, answer.json()) == (
            409, {"detail": PROCESSING, "error_code": "IDEMPOTENCY_KEY_PROCESSING", "idempotency_key": key})
    return len(done), len(busy)


@pytest.mark.tsan
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hundred_duplicates_have_one_effect(pair, token, module_database, processes):
    """Seed scenario 4: 201 once, then replays with the same bytes, 409 to who comes in between."""
    servers = pair[:processes]
    body, key = item(), fresh("race-key")
    answers = at_once([server.port for server in servers], token("demo"), body, key, TWINS)
    check_duplicates(answers, key)
    assert effects(module_database, body["sku"]) == (1, 1, 1)
    after = at_once([server.port for server in servers], token("demo"), body, key, TWINS)
    assert {(answer.status, answer.body, answer.headers.get("idempotency-replayed")) for answer in after} == {
        (201, next(answer.body for answer in answers if answer.status == 201), "true")}
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_many_keys_at_once_do_not_meet(pair, token, module_database):
    """Duplicates of 20 requests, mixed: each key has its own one effect."""
    bodies = {fresh("key"): item() for _ in range(20)}
    found, lock = {}, threading.Lock()

    def storm(key):
        answers = at_once([server.port for server in pair], token("demo"), bodies[key], key, 5)
        with lock:
            found[key] = answers
    threads = [threading.Thread(target=storm, args=(key,)) for key in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, answers in found.items():
        check_duplicates(answers, key)
        assert effects(module_database, bodies[key]["sku"]) == (1, 1, 1)


class Held:
    """Is about to create these items, and does not decide: a POST of one stands in the middle of its transaction meanwhile."""

    def __init__(self, database, *bodies):
        self.database, self.bodies = database, bodies
        self.connection = self.xid = None

    def __enter__(self):
        self.connection = self.database.connect()
        self.connection.autocommit = False
        with self.connection.cursor() as cursor:
            for body in self.bodies:
                cursor.execute("insert into intake.items values (gen_random_uuid(), 'demo', %s, 'held', '', '', now())",
                               (body["sku"],))
            cursor.execute("select txid_current()::text")
            self.xid = cursor.fetchone()[0]
        return self

    def wait(self, count=1):
        """Until so many stand there."""
        eventually(lambda: len(self.waiting()) >= count)

    def waiting(self):
        """Process ids of the backends that do."""
        return [pid for pid, in self.database.query(
            "select pid from pg_locks where not granted and locktype = 'transactionid' and transactionid = %s::text::xid",
            (self.xid,))]

    def release(self):
        """By a rollback."""
        if self.connection:
            self.connection.close()
            self.connection = None

    def __exit__(self, *_):
        self.release()


class Pending(threading.Thread):
    """A POST under way; its answer, or what became of its connection."""

    def __init__(self, port, bearer, body, key):
        super().__init__()
        self.port, self.bearer, self.body, self.key = port, bearer, body, key
        self.answer = self.error = None
        self.start()

    def run(self):
        try:
            with Client(self.port, self.bearer) as client:
                self.answer = post(client, self.body, self.key)
        except OSError as error:
            self.error = error


def test_a_duplicate_of_one_in_process_is_told_so_at_once(pair, token, module_database):
    """I3, here and in the other process; another body is told the same, since nobody knows yet what there will be."""
    body, key = item(), fresh("key")
    before = [server.metrics().get(f"idempotency_processing_collision_total{ROUTE}", 0) for server in pair]
    with Held(module_database, body) as held:
        first = Pending(pair[0].port, token("demo"), body, key)
        held.wait()
        for server in pair:
            with Client(server.port, token("demo")) as client:
                for sent in (body, item()):
                    answer = post(client, sent, key)
                    assert (answer.status, answer.json()) == (
                        409, {"detail": PROCESSING, "error_code": "IDEMPOTENCY_KEY_PROCESSING", "idempotency_key": key})
        held.release()
        first.join()
    assert first.answer.status == 201
    for server, then in zip(pair, before):
        assert server.metrics()[f"idempotency_processing_collision_total{ROUTE}"] == then + 2
        with Client(server.port, token("demo")) as client:
            assert post(client, body, key).body == first.answer.body
            assert post(client, item(), key).json()["detail"] == CONFLICT
    assert effects(module_database, body["sku"]) == (1, 1, 1)


# ---- whoever dies (I5) ----

PLACES = [("intake.before_commit", 0), ("idempotency.before_begin", 0), ("idempotency.before_effect", 0),
          ("idempotency.before_commit", 0), ("idempotency.after_commit", 1), ("intake.after_commit", 1)]


@pytest.mark.parametrize("place, done", PLACES)
def test_the_first_dies_and_its_duplicates_find_all_or_nothing(pair, serve, module_database, token, place, done):
    """Ten duplicates on the one that dies, and then at once on another process."""
    body, key = item(), fresh("key")
    armed = serve(module_database, args=INTAKE, env={"FRESHET_FAILPOINTS": f"{place}=kill#1"})
    duplicates = [Pending(armed.port, token("demo"), body, key) for _ in range(10)]
    for duplicate in duplicates:
        duplicate.join()
    assert armed.process.wait() == -signal.SIGKILL
    assert all(duplicate.error or duplicate.answer.status == 409 for duplicate in duplicates)
    assert effects(module_database, body["sku"]) == (done, done, done)
    with Client(pair[0].port, token("demo")) as client:
        answer = eventually(lambda: (found := post(client, body, key)).status != 409 and found, timeout=5)
        assert (answer.status, answer.headers.get("idempotency-replayed")) == (201, "true" if done else None)
        assert post(client, body, key).body == answer.body
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_a_process_killed_while_postgres_works_for_it(pair, serve, module_database, token):
    """What was sent whole may still commit; then it is there whole."""
    body, key = item(), fresh("key")
    doomed = serve(module_database, args=INTAKE)
    with Held(module_database, body) as held:
        first = Pending(doomed.port, token("demo"), body, key)
        held.wait()
        doomed.kill()
        first.join()
        with Client(pair[0].port, token("demo")) as client:
            assert post(client, body, key).status == 409
        held.release()
    with Client(pair[0].port, token("demo")) as client:
        answer = eventually(lambda: (found := post(client, body, key)).status != 409 and found)
        assert answer.status == 201
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_a_backend_that_is_killed_is_tried_again_behind_the_same_key(pair, module_database, token):
    """The connection breaks in the middle of the transaction: the request ends as if nothing had been."""
    body, key = item(), fresh("key")
    with Held(module_database, body) as held:
        first = Pending(pair[0].port, token("demo"), body, key)
        held.wait()
        for pid in held.waiting():
            module_database.query("select pg_terminate_backend(%s)", (pid,))
        held.release()
        first.join()
    assert first.answer and first.answer.status in (201, 503), first.error
    with Client(pair[1].port, token("demo")) as client:
        again = eventually(lambda: (found := post(client, body, key)).status != 409 and found)
    assert again.status == 201
    assert first.answer.status == 503 or first.answer.body == again.body
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_a_client_that_hangs_up_changes_nothing_for_the_next(pair, module_database, token):
    """Gone before the body was whole: nothing happened. Gone while it was worked on: it happens, once."""
    body, key = item(), fresh("key")
    data = request_bytes("POST", PATH, {"Authorization": f"Bearer {token('demo')}", "Content-Type": "application/json",
                                        "Idempotency-Key": key}, json.dumps(body).encode())
    with pair[0].raw() as connection:
        connection.send(data[:-5])
    with Held(module_database, body) as held:
        with pair[0].raw() as connection:
            connection.send(data)
            held.wait()
        with Client(pair[0].port, token("demo")) as client:
            assert post(client, body, key).json()["error_code"] == "IDEMPOTENCY_KEY_PROCESSING"
            held.release()
            answer = eventually(lambda: (found := post(client, body, key)).status != 409 and found)
            assert (answer.status, answer.headers.get("idempotency-replayed")) == (201, "true")
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_a_stop_in_the_middle_finishes_what_is_under_way(pair, serve, module_database, token):
    """C7: SIGTERM while PostgreSQL works for it."""
    body, key = item(), fresh("key")
    server = serve(module_database, args=INTAKE)
    with Held(module_database, body) as held:
        first = Pending(server.port, token("demo"), body, key)
        held.wait()
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not server.is_ready())
        held.release()
        first.join()
    assert first.answer and first.answer.status == 201, first.error
    assert server.process.wait(20) == 0
    with Client(pair[0].port, token("demo")) as client:
        assert post(client, body, key).body == first.answer.body
    assert effects(module_database, body["sku"]) == (1, 1, 1)


def test_a_full_queue_is_503_and_leaves_the_keys_free(serve, module_database, token):
    """C7: one worker stands, sixteen wait, the rest is refused at once; every key works afterwards."""
    server = serve(module_database, {"http": {"workers": 1, "workerQueue": 16}}, args=INTAKE)
    bodies = {fresh("key"): item() for _ in range(30)}
    with Held(module_database, *bodies.values()) as held:
        pending = [Pending(server.port, token("demo"), body, key) for key, body in bodies.items()]
        held.wait()
        eventually(lambda: sum(one.answer is not None for one in pending) >= 30 - 17)
        held.release()
        for one in pending:
            one.join()
    statuses = Counter(one.answer.status for one in pending)
    assert set(statuses) == {201, 503} and statuses[503] >= 1, statuses
    for one in pending:
        if one.answer.status == 503:
            assert one.answer.json()["error_code"] in ("OVERLOADED", "UNAVAILABLE") and "retry-after" in one.answer.headers
    with Client(server.port, token("demo")) as client:
        for key, body in bodies.items():
            assert post(client, body, key).status == 201
            assert effects(module_database, body["sku"]) == (1, 1, 1)


# ---- the database ----

def test_a_database_that_is_down_or_frozen_is_503_and_the_key_is_free_after(own_postgres, serve, token):
    """I5, C7: never a 201 without a commit; whatever was answered, the same key ends in one effect."""
    database = own_postgres.create_database()
    server = serve(database, {"http": {"limits": {"requestTimeout": "1s"}}}, args=INTAKE)
    with Client(server.port, token("demo")) as client:
        assert post(client, item()).status == 201  # a connection is there
        bodies = {fresh("key"): item() for _ in range(3)}
        own_postgres.stop("immediate")
        for key, body in bodies.items():
            answer = post(client, body, key)
            assert (answer.status, answer.json()["error_code"]) == (503, "UNAVAILABLE")
            assert "retry-after" in answer.headers
        assert client.get(f"{PATH}/x").status == 503
        eventually(lambda: client.get("/actuator/health").json()["roles"]["intake"]["status"] == "DOWN")
        own_postgres.start()
        for key, body in bodies.items():
            eventually(lambda: post(client, body, key).status == 201)  # pylint: disable=cell-var-from-loop
            assert effects(database, body["sku"]) == (1, 1, 1)
        eventually(lambda: client.get("/actuator/health").json()["roles"]["intake"]["status"] == "UP")

        body, key = item(), fresh("key")
        frozen = freeze_cluster(own_postgres)
        try:
            began = time.monotonic()
            answer = post(client, body, key)
            assert (answer.status, answer.json()["error_code"]) == (503, "UNAVAILABLE")
            assert time.monotonic() - began < 12
        finally:
            signal_all(frozen, signal.SIGCONT)
        made = eventually(lambda: (found := post(client, body, key)).status == 201 and found)
        assert post(client, body, key).body == made.body
        assert effects(database, body["sku"]) == (1, 1, 1)
    server.stop()
