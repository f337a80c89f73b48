"""Waiting for a commit and for its decision (R1, C7): no thread, no connection, no poll; whoever decides in another process
tells by a notice; and what happens when PostgreSQL is not there. The tests stand in for apply, by SQL."""
import contextlib
import itertools
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from lib.apply import committed_commands
from lib.refdata import TENANT, own_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes
from lib.writers import delta, status_path, updates_path

CHANNEL = "freshet_refdata_decided"


def command_pod(serve, database, **updates):
    changes = pod("B")
    changes["refdata"]["updates"] = updates
    changes["refdata"]["postgres"] = {"statementTimeout": "1m"}  # locks are held for as long as the test likes
    return serve(database, changes, args=("--roles", "command"))


def threads_of(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def backends(database):
    return database.query("select count(*) from pg_stat_activity where datname = current_database()")[0][0]


@contextlib.contextmanager
def no_commits(database):
    """Inserts into update_request wait; reads do not."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("lock table refdata.update_request in share row exclusive mode")
        yield
        connection.rollback()


def post_later(server, token, body, mode="WAIT_COMMIT", timeout_ms=1000):
    """A request that is on its way; its answer is read by read_response()."""
    connection = RawConnection(server.port)
    server.clients.append(connection)
    text = json.dumps(body).encode()
    connection.send(request_bytes("POST", updates_path(mode, TENANT, timeout_ms), {
        "Authorization": f"Bearer {token(TENANT)}", "Content-Type": "application/json"}, text))
    return connection


def is_accepted(database, event_id):
    return database.query("select 1 from refdata.update_request where event_id = %s", (event_id,))


def decide(database, event_id, status, version=None, code=None, message=None):
    database.query("update refdata.update_request set status = %s, committed_version = %s, error_code = %s,"
                   " error_message = %s where event_id = %s", (status, version, code, message, event_id))


def tell(database, event_id, rest):
    database.query("select pg_notify(%s, %s)", (CHANNEL, f"{TENANT}/{event_id}/{rest}"))


# ---- decided elsewhere ----

def one_answer(server, database, token, act):
    body = delta("B", {"a": 1})
    waiting = post_later(server, token, body)
    eventually(lambda: is_accepted(database, body["eventId"]))
    act(body["eventId"])
    return body["eventId"], waiting.read_response()


def answer_of(server, database, token, act):
    """Of an update that act() decides inside its wait; on a busy machine a wait may be over before that."""
    def decided():
        event, answer = one_answer(server, database, token, act)
        return answer.status != 202 and (event, answer)
    return eventually(decided)


@pytest.fixture
def server(serve, refdata_db):  # noqa: F811
    server = command_pod(serve, refdata_db)
    eventually(lambda: refdata_db.query("select 1 from pg_stat_activity where datname = current_database()"
                                        " and query ilike %s", (f"%listen%{CHANNEL}%",)))
    return server


@pytest.mark.tsan
def test_a_notice_releases_the_waiter_with_the_version(server, refdata_db, token):  # noqa: F811
    event, answer = answer_of(server, refdata_db, token, lambda event: tell(refdata_db, event, "COMMITTED/17"))
    assert (answer.status, answer.json()) == (200, {"eventId": event, "status": "COMMITTED", "committedVersion": 17})


@pytest.mark.parametrize("rest, status, code", [
    ("FAILED/0/STALE_SOURCE_REVISION/a later one", 409, "STALE_SOURCE_REVISION"),
    ("FAILED/0/UPDATE_REFUSED/a/b: no", 422, "UPDATE_REFUSED"),
    ("FAILED/0/SOMETHING_NEW/", 422, "SOMETHING_NEW"),
])
def test_a_failure_inside_the_wait_is_the_answer(server, refdata_db, token, rest, status, code):  # noqa: F811
    event, answer = answer_of(server, refdata_db, token, lambda event: tell(refdata_db, event, rest))
    body = answer.json()
    assert (answer.status, body["code"], body["eventId"]) == (status, code, event)
    assert body["message"] == rest.split("/", 3)[3]


def test_a_notice_that_says_nothing_makes_it_read_the_rows(server, refdata_db, token):  # noqa: F811
    def act(event):
        decide(refdata_db, event, "COMMITTED", 5)
        refdata_db.query("select pg_notify(%s, '')", (CHANNEL,))
    _, answer = answer_of(server, refdata_db, token, act)
    assert (answer.status, answer.json()["committedVersion"]) == (200, 5)


def test_r1_an_event_first_sent_async_is_answered_when_another_process_commits_it(server, refdata_db, token):  # noqa: F811
    """Issue 11.9: the process that decides it does not know that a client waits, and sends no notice."""
    def answered():
        body = delta("B", {"a": 1})
        assert server.client(token(TENANT)).post(updates_path(), body).status == 202
        before = commits_of(server)
        waiting = post_later(server, token, body)
        eventually(lambda: commits_of(server) > before)
        decide(refdata_db, body["eventId"], "COMMITTED", 5)
        return waiting.read_response()
    answers = (answered() for _ in range(5))  # on a slow machine a wait may be over before the decision
    assert next(answer for answer in answers if answer.status == 200).json()["committedVersion"] == 5


def test_another_tenants_notice_releases_nobody(server, refdata_db, token):  # noqa: F811
    _, answer = one_answer(server, refdata_db, token, lambda event: refdata_db.query(
        "select pg_notify(%s, %s)", (CHANNEL, f"other/{event}/COMMITTED/1")))
    assert (answer.status, answer.json()["status"]) == (202, "PENDING")


def test_what_was_decided_while_nobody_listened_is_read_from_the_rows(server, refdata_db, token):  # noqa: F811
    def act(event):
        decide(refdata_db, event, "COMMITTED", 5)
        # one connection listens for the whole process, and its last query may name other channels
        refdata_db.query("select pg_terminate_backend(pid) from pg_stat_activity where query like 'LISTEN %%'"
                         " and datname = current_database() and pid <> pg_backend_pid()", ())
    assert answer_of(server, refdata_db, token, act)[1].status == 200


def commits_of(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("refdata_commit_batch_size_count"))


def test_whoever_waits_beside_apply_is_not_the_only_one(serve, server, refdata_db, token):  # noqa: F811
    """R1: one update, sent to two processes. The one that decides it tells the other as well as its own client."""
    changes = pod("B")
    changes["bus"] = {"postgres": {"pollInterval": "20ms"}}
    other = serve(refdata_db, changes)
    for _ in range(10):
        body = delta("B", {"a": 1})
        with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
            connection.autocommit = False
            cursor.execute("select from platform.bus_cursor where topic = 'refdata.commands' for update")
            here = post_later(server, token, body)
            eventually(lambda: is_accepted(refdata_db, body["eventId"]))
            before = commits_of(other)
            there = post_later(other, token, body)
            eventually(lambda: commits_of(other) > before)
            connection.rollback()
        first, second = here.read_response(), there.read_response()
        if first.status == second.status == 200:  # else it was not decided in time: a slow machine
            break
    assert first.status == 200 and first.json() == second.json()


def test_a_decided_update_sent_again_is_answered_from_its_row(server, refdata_db, token):  # noqa: F811
    client = server.client(token(TENANT))
    done, failed = delta("B", {"a": 1}), delta("B", {"a": 2})
    for body in (done, failed):
        assert client.post(updates_path(), body).status == 202
    decide(refdata_db, done["eventId"], "COMMITTED", 9)
    decide(refdata_db, failed["eventId"], "FAILED", None, "STALE_SOURCE_REVISION", "too late")
    for mode in ("ASYNC", "WAIT_COMMIT"):
        answer = client.post(updates_path(mode), done)
        assert (answer.status, answer.json()["committedVersion"]) == (200, 9)
        answer = client.post(updates_path(mode), failed)
        assert (answer.status, answer.code, answer.json()["message"]) == (409, "STALE_SOURCE_REVISION", "too late")
    status = client.get(status_path(failed["eventId"])).json()
    assert (status["status"], status["errorCode"], status["errorMessage"]) == ("FAILED", "STALE_SOURCE_REVISION", "too late")
    assert client.get(status_path(done["eventId"])).json()["committedVersion"] == 9


# ---- many, and some that leave ----

def test_thousands_wait_without_a_thread_or_a_connection(serve, refdata_db, token):  # noqa: F811
    server = command_pod(serve, refdata_db, commitTimeout="1m")
    client = server.client(token(TENANT))
    assert client.post(updates_path(), delta("B", {})).status == 202
    before = threads_of(server), backends(refdata_db)
    bodies = [delta("B", {"a": i}) for i in range(2500)]
    with no_commits(refdata_db):
        waiting = [post_later(server, token, body) for body in bodies]
        assert client.get(status_path(str(uuid.uuid4()))).status == 404  # others are served meanwhile
        eventually(lambda: refdata_db.query("select 1 from pg_locks where not granted"))
        assert threads_of(server) < before[0] + 40  # a few more threads of the pools, however many wait
        # the lock's own, this question's, the status route's: a handful, however many wait
        assert backends(refdata_db) <= before[1] + 6
        for connection in waiting[::5]:  # some clients go away
            connection.close()
    for i, connection in enumerate(waiting):
        if i % 5:
            assert connection.read_response().status == 202
    eventually(lambda: refdata_db.query("select count(*) from refdata.update_request")[0][0] == 2501)
    assert client.post(updates_path(), delta("B", {})).status == 202


@pytest.mark.tsan
def test_a_client_may_leave_at_any_moment(server, refdata_db, token):  # noqa: F811
    def one(i):
        connection = post_later(server, token, delta("B", {"a": i}), "WAIT_COMMIT" if i % 2 else "ASYNC")
        if i % 3 == 0:
            eventually(lambda: refdata_db.query("select count(*) from refdata.update_request")[0][0] > 0)
        connection.close()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(100)))
    assert server.client(token(TENANT)).post(updates_path(), delta("B", {})).status == 202


def test_c7_past_the_bytes_that_may_wait_it_is_503_at_once(serve, refdata_db, token):  # noqa: F811
    """Issue 11.12: sixty bodies of 8 MB took 1.2 GiB. One that comes alone is taken, however large."""
    server = command_pod(serve, refdata_db, commitTimeout="1m", queueBytes="256KiB")
    client = server.client(token(TENANT))
    large = {f"k{i}": "x" * 1000 for i in range(300)}
    with no_commits(refdata_db):
        alone = post_later(server, token, delta("B", large), "ASYNC")
        eventually(lambda: refdata_db.query("select 1 from pg_locks where not granted"))
        answer = client.post(updates_path(), delta("B", {"a": 1}))
        assert (answer.status, answer.code) == (503, "OVERLOADED") and answer.headers["retry-after"]
    assert alone.read_response().status == 202
    assert client.post(updates_path(), delta("B", {"a": 1})).status == 202  # what was refused takes nothing
    with ThreadPoolExecutor(8) as pool:
        with no_commits(refdata_db):  # four fit
            several = [post_later(server, token, delta("B", {"a": "x" * 60000}), "ASYNC") for _ in range(8)]
            answers = [pool.submit(one.read_response) for one in several]
            eventually(lambda: sum(answer.done() for answer in answers) == 4)
        assert sorted(answer.result().status for answer in answers) == [202] * 4 + [503] * 4


def test_past_the_queues_bound_it_is_503_at_once(serve, refdata_db, token):  # noqa: F811
    server = command_pod(serve, refdata_db, queue=3, commitTimeout="1m")

    def send(_):
        return server.client(token(TENANT)).post(updates_path("ASYNC"), delta("B", {}))
    with ThreadPoolExecutor(11) as pool:
        with no_commits(refdata_db):
            first = pool.submit(send, 0)
            eventually(lambda: refdata_db.query("select 1 from pg_locks where not granted"))
            others = [pool.submit(send, i) for i in range(10)]
            refused = [done.result() for done in itertools.islice(as_completed(others), 7)]
            assert {(answer.status, answer.code) for answer in refused} == {(503, "OVERLOADED")}
            assert all("retry-after" in answer.headers for answer in refused)
        answers = [first.result(), *(other.result() for other in others)]
    assert sorted(answer.status for answer in answers) == [202] * 4 + [503] * 7


def test_a_commit_that_takes_too_long_is_503_and_safe_to_send_again(serve, refdata_db, token):  # noqa: F811
    server = command_pod(serve, refdata_db, commitTimeout="300ms")
    client = server.client(token(TENANT))
    body = delta("B", {"a": 1})
    with no_commits(refdata_db):
        answer = client.post(updates_path(), body)
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")
        assert "retry-after" in answer.headers
    assert eventually(lambda: client.post(updates_path(), body).status == 202)
    assert committed_commands(refdata_db) == 1


def test_a_stop_answers_those_who_wait(serve, refdata_db, token):  # noqa: F811
    server = command_pod(serve, refdata_db)
    body = delta("B", {"a": 1})
    waiting = post_later(server, token, body)
    eventually(lambda: is_accepted(refdata_db, body["eventId"]))
    server.clients.remove(waiting)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert waiting.read_response().status == 202
    stopping.join()


# ---- PostgreSQL goes away ----

def test_without_postgresql_nothing_is_accepted_and_it_recovers(serve, own_postgres, own_refdata_db, token):  # noqa: F811
    server = command_pod(serve, own_refdata_db, commitTimeout="2s")
    client = server.client(token(TENANT))
    assert client.post(updates_path(), delta("B", {})).status == 202
    own_postgres.stop("immediate")
    refused = [delta("B", {"a": i}) for i in range(5)]
    for mode, body in zip(["ASYNC", "WAIT_COMMIT"] * 3, refused):
        answer = client.post(updates_path(mode), body)
        assert (answer.status, answer.code) == (503, "UNAVAILABLE") and "retry-after" in answer.headers
    assert client.get(status_path(refused[0]["eventId"])).status == 503
    own_postgres.start()
    fresh = delta("B", {"a": "back"})
    eventually(lambda: client.post(updates_path(), fresh).status == 202)
    for body in refused:
        assert client.get(status_path(body["eventId"])).status == 404
    assert client.post(updates_path(), refused[0]).status == 202


def test_a_commit_whose_answer_was_lost_is_found_out(serve, refdata_db, token):  # noqa: F811
    """The connection dies inside COMMIT, twice. Whatever became of the tries, the update is there once."""
    refdata_db.query("create sequence deaths; create function die() returns trigger language plpgsql as $$ begin"
                     " if nextval('deaths') <= 2 then perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1);"
                     " end if; return null; end $$; create constraint trigger die after insert on refdata.update_request"
                     " deferrable initially deferred for each row execute function die()")
    server = command_pod(serve, refdata_db)
    body = delta("B", {"a": 1})
    answer = server.client(token(TENANT)).post(updates_path(), body, Idempotency_Key="once")
    assert (answer.status, answer.json()["eventId"]) == (202, body["eventId"])
    assert "idempotency-replayed" not in answer.headers
    assert committed_commands(refdata_db) == 1


def test_one_update_the_database_refuses_does_not_spoil_the_others(serve, refdata_db, token):  # noqa: F811
    refdata_db.query("create function refuse() returns trigger language plpgsql as $$ begin"
                     " if new.snapshot_id is null and new.dict_code = 'BAD' then raise exception 'no'; end if; return new;"
                     " end $$; create trigger refuse before insert on refdata.update_request"
                     " for each row execute function refuse()")
    server = serve(refdata_db, pod("B", "BAD"), args=("--roles", "command"))

    def send(i):
        bad = i % 5 == 0
        return bad, server.client(token(TENANT)).post(updates_path(), delta("BAD" if bad else "B", {})).status
    with ThreadPoolExecutor(16) as pool:
        for bad, status in pool.map(send, range(100)):
            assert status == (503 if bad else 202)
    assert committed_commands(refdata_db) == 80
