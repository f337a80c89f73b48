"""N3, O1: deliveries by webhook to a receiver that is slow, down, failing, refusing or dropping: retries, backoff, dead
letters, and always one key."""
import json
import os
import re
import signal

import pytest

from lib.freshet import run
from lib.notification import (ROLE, Receiver, dead_deliveries, event, is_signed, message, publish, rows, statuses,
                              webhook)
from lib.refdata import module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually, free_port

SECRET = "between-us"
SIGNED = {"webhook": {"secret-from-env": "HOOK_SECRET"}, "max-attempt": 4}


@pytest.fixture(scope="module")
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def kind_again(receiver):
    yield
    receiver.behave = lambda call: None


@pytest.fixture(scope="module")
def db(module_refdata_db):  # noqa: F811
    return module_refdata_db


@pytest.fixture(scope="module")
def server(module_serve, db, receiver):
    return module_serve(db, webhook(receiver, **SIGNED), args=ROLE, env={"HOOK_SECRET": SECRET})


def of_user(user, what):
    """Behaves like that with this user's, and well with everybody else's."""
    return lambda call: what(call) if json.loads(call["body"])["user_id"] == user else None


def test_n3_a_delivery_is_whole_and_signed(server, db, receiver):
    one = event("whole")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    publish(db, message(one, traceparent=trace))
    eventually(lambda: statuses(db, "whole") == ["SENT"])
    call, = receiver.of("whole")
    notification_id = db.value("select notification_id::text from notification.notifications where user_id = 'whole'")
    assert call["key"] == notification_id and call["headers"]["Content-Type"] == "application/json"
    assert json.loads(call["body"]) == {"notification_id": notification_id, **one}
    assert is_signed(call, SECRET) and not is_signed({**call, "body": call["body"] + b" "}, SECRET)
    assert call["headers"]["traceparent"] == trace  # as it came: no span is recorded that could be the parent (test_traces.py)
    sent, = db.query("select sent_at is not null, locked_by, lease_until, claim_id, next_retry_at from"
                     " notification.notifications where user_id = 'whole'")
    assert sent == (True, None, None, None, None)
    line, = server.logs(event="notification_sent", notificationId=notification_id)
    assert line["eventId"] == one["event_id"] and SECRET not in server.log() and "p_1" not in json.dumps(line)


PASSING = [500, 503, 429, 408, 425, 302, "drop", "hang"]


def test_n3_what_may_pass_is_tried_again_under_one_key(server, db, receiver):
    """5xx, 408, 425, 429, a redirect, a connection dropped behind its 200, no answer in time: twice each, then well."""
    def behave(call):
        user = json.loads(call["body"])["user_id"]
        what = {f"again-{each}": each for each in PASSING}.get(user)
        return what if len(receiver.of(user)) < 3 else None
    receiver.release.clear()
    receiver.behave = behave
    publish(db, *[event(f"again-{what}") for what in PASSING])
    for user in [f"again-{what}" for what in PASSING]:
        eventually(lambda user=user: statuses(db, user) == ["SENT"])
        calls = receiver.of(user)
        assert len(calls) == 3, user
        assert len({call["key"] for call in calls}) == 1 and len({call["body"] for call in calls}) == 1
        assert rows(db, user)[0][2:] == (2, None)  # failures are counted, the last error is forgotten
    receiver.release.set()


def test_n3_what_fails_for_good_is_a_dead_letter_once(server, db, receiver):
    receiver.behave = of_user("doomed", lambda call: 500)
    publish(db, event("doomed"))
    eventually(lambda: statuses(db, "doomed") == ["FAILED"])
    row, = eventually(lambda: dead_deliveries(db, "doomed"))
    assert rows(db, "doomed")[0][2:] == (4, "the receiver answered HTTP 500")
    assert len(receiver.of("doomed")) == 4
    assert row["status"] == "DEAD" and row["attempt_count"] == 4 and row["last_error"] == "the receiver answered HTTP 500"
    assert row["payload_json"]["user_id"] == "doomed" and row["event_id"] == rows(db, "doomed")[0][0]
    # the second registration of the same one is swallowed
    db.query("update notification.notifications set status = 'PENDING', next_retry_at = now() + interval '1 day'"
             " where user_id = 'doomed'; update notification.notifications set status = 'FAILED', last_error = 'again'"
             " where user_id = 'doomed'")
    assert dead_deliveries(db, "doomed") == [row]
    assert server.logs(event="outbox_event_dead_lettered", eventId=row["event_id"])


def test_n3_a_refusal_is_final_at_once(server, db, receiver):
    """Any other 4xx; and nobody beside it waits."""
    refusals = {f"refused-{status}": status for status in (400, 401, 404, 410, 422)}
    receiver.behave = lambda call: refusals.get(json.loads(call["body"])["user_id"])
    publish(db, *[event(user) for user in refusals], event("beside-refused"))
    for user, status in refusals.items():
        eventually(lambda user=user: statuses(db, user) == ["FAILED"])
        assert len(receiver.of(user)) == 1
        assert [row["last_error"] for row in dead_deliveries(db, user)] == [f"the receiver refuses it: HTTP {status}"]
    eventually(lambda: statuses(db, "beside-refused") == ["SENT"])


def test_n3_a_slow_one_holds_up_no_other(server, db, receiver):
    receiver.release.clear()
    receiver.behave = of_user("slow", lambda call: "hang")
    publish(db, *[event("slow") for _ in range(3)], *[event("quick") for _ in range(40)])
    eventually(lambda: len(receiver.of("quick")) == 40)
    receiver.behave = lambda call: None
    receiver.release.set()
    eventually(lambda: statuses(db, "quick") == ["SENT"] * 40 and statuses(db, "slow") == ["SENT"] * 3)


def test_n3_a_call_that_outlives_its_batch_is_retried_and_fails_as_others_do(serve, refdata_db, receiver):  # noqa: F811
    """It lasts longer than the second after which a batch goes on without it."""
    receiver.release.clear()
    receiver.behave = of_user("u_hangs", lambda call: "hang")
    serve(refdata_db, webhook(receiver, webhook={"timeout": "1500ms"}, **{"max-attempt": 2}), args=ROLE)
    publish(refdata_db, event(user="u_hangs"), event(user="u_quick", sku="item2"))
    eventually(lambda: dead_deliveries(refdata_db, "u_hangs"))
    found = refdata_db.query("select status, attempt_count, claim_count, last_error, lease_until, claim_id"
                             " from notification.notifications where user_id = 'u_hangs'")
    assert found == [("FAILED", 2, 2, "no answer in time", None, None)]
    eventually(lambda: refdata_db.value("select status from notification.notifications where user_id = 'u_quick'") == "SENT")
    assert len(receiver.of("u_quick")) == 1


def test_n3_a_receiver_that_is_down_gets_everything_when_it_is_back(serve, refdata_db):  # noqa: F811
    port = free_port()
    serve(refdata_db, webhook(f"http://127.0.0.1:{port}/hook", **{"max-attempt": 1000}), args=ROLE)
    publish(refdata_db, *[event("later") for _ in range(5)])
    eventually(lambda: all(row[1] == "PENDING" and row[2] > 2 for row in rows(refdata_db, "later"))
               and len(rows(refdata_db, "later")) == 5)
    back = Receiver(port)
    try:
        eventually(lambda: statuses(refdata_db, "later") == ["SENT"] * 5)
        assert len(back.of("later")) == 5
    finally:
        back.close()


def end_leases(database):
    """As if so much time had passed."""
    database.query("update notification.notifications set lease_until = now() where lease_until is not null")


def test_o1_a_deliverer_that_slept_past_its_lease_changes_nothing(serve, refdata_db, receiver):  # noqa: F811
    """SIGSTOP after the claim, taken over by another process, continued: one row, one key, the taker's verdict."""
    sleeper = serve(refdata_db, webhook(receiver), args=ROLE, env={"HOSTNAME": "sleeper",
                    "FRESHET_FAILPOINTS": "delivery.after_send=stop#1"})
    publish(refdata_db, event("zombie"))
    eventually(lambda: open(f"/proc/{sleeper.process.pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[0] == "T")
    assert statuses(refdata_db, "zombie") == ["PROCESSING"]
    end_leases(refdata_db)
    serve(refdata_db, webhook(receiver), args=ROLE, env={"HOSTNAME": "taker"})
    eventually(lambda: statuses(refdata_db, "zombie") == ["SENT"])
    look = ("select status, sent_at, attempt_count, claim_count, locked_by, xmin::text from notification.notifications"
            " where user_id = 'zombie'")
    before = refdata_db.query(look)
    os.kill(sleeper.process.pid, signal.SIGCONT)
    eventually(lambda: sleeper.logs(event="outbox_claim_lost"))
    assert refdata_db.query(look) == before
    assert len({call["key"] for call in receiver.of("zombie")}) == 1 and len(receiver.of("zombie")) == 2


@pytest.mark.parametrize("place", ["notification.before_commit", "notification.after_commit", "delivery.after_claim",
                                   "delivery.after_send"])
def test_n1_n3_killed_between_two_steps_nothing_is_lost_and_nothing_is_there_twice(serve, refdata_db, receiver, place):  # noqa: F811
    user = f"killed-{place}"
    dying = serve.make(refdata_db, webhook(receiver), args=ROLE, env={"FRESHET_FAILPOINTS": f"{place}=kill#1"})
    dying.start()
    publish(refdata_db, *[event(user) for _ in range(5)])
    eventually(lambda: dying.process.poll() is not None)
    end_leases(refdata_db)
    serve(refdata_db, webhook(receiver), args=ROLE)
    eventually(lambda: statuses(refdata_db, user) == ["SENT"] * 5)
    assert len({call["key"] for call in receiver.of(user)}) == 5


def test_n3_settings_of_the_webhook_are_checked(serve, refdata_db):  # noqa: F811
    for wrong, field in (({"webhook": {"url": ""}}, "webhook.url"), ({"webhook": {"url": "ftp://x/"}}, "webhook.url"),
                         ({"webhook": {"url": "http://a b/"}}, "webhook.url"),
                         ({"webhook": {"secret-from-env": "NOT_THERE_AT_ALL"}}, "secret-from-env")):
        server = serve.make(refdata_db, webhook("http://127.0.0.1:1/", **wrong))
        done = run("config", "--config", server.config_path, env=server.env)
        assert done.returncode == 1 and f"notification.delivery.{field}" in done.stderr.replace("webhook.secret", "secret"), done.stderr
        assert re.search(r"\.yaml:\d+:\d+: ", done.stderr), done.stderr
        serve.started.remove(server)


def test_c7_a_stop_waits_for_no_receiver(serve, refdata_db, receiver):  # noqa: F811
    """What is under way is given back, uncounted, at once."""
    receiver.release.clear()
    receiver.behave = of_user("stopped", lambda call: "hang")
    pod = serve(refdata_db, webhook(receiver, webhook={"timeout": "60s"}), args=ROLE)
    publish(refdata_db, event("stopped"))
    eventually(lambda: receiver.of("stopped"))
    pod.stop(timeout=20)
    assert refdata_db.query("select status, attempt_count, claim_count, lease_until from notification.notifications"
                            " where user_id = 'stopped'") == [("PENDING", 0, 0, None)]
    receiver.release.set()
