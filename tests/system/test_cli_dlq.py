"""N2: `freshet dlq` on messages nobody could handle and on deliveries nobody took: looked at, sent again, given up, audited."""
import base64
import json
import os
import pwd

import pytest

from lib.config import base_config, to_yaml
from lib.freshet import run
from lib.notification import (ROLE, Receiver, audit, break_sku, dead_deliveries, encode, event, letters, mend_sku, publish,
                              rows, statuses, webhook)
from lib.refdata import module_refdata_db  # noqa: F401
from lib.wait import eventually


@pytest.fixture(scope="module")
def db(module_refdata_db):  # noqa: F811
    return module_refdata_db


@pytest.fixture(scope="module")
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(module_serve, db, receiver):
    changes = webhook(receiver, **{"max-attempt": 2})
    changes["notification"]["nats"] = {"max-deliver": 2}
    return module_serve(db, changes, args=ROLE)


@pytest.fixture
def dlq(db, jwks_path, tmp_path):
    """dlq(*args): exit status, lines of standard output, standard error."""
    config = tmp_path / "dlq.yaml"
    config.write_text(to_yaml(base_config(db, jwks_path)))

    def call(*args):
        done = run("dlq", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": db.password})
        return done.returncode, done.stdout.splitlines(), done.stderr
    return call


def bury(db, reason_sku, user):
    """A message that the database refuses, as a dead letter."""
    break_sku(db, reason_sku)
    publish(db, event(user, reason_sku))
    letter = eventually(lambda: [row for row in letters(db, status="DEAD") if reason_sku in row["reason"]])[0]
    mend_sku(db, reason_sku)
    return letter


def test_n2_a_message_is_requeued_to_its_topic_and_handled_once(server, db, dlq):
    letter = bury(db, "mended", "back")
    status, lines, _ = dlq("requeue", str(letter["dlq_id"]), "--note", "trigger dropped")
    assert status == 0 and lines == ["1 messages and 0 deliveries: sent again"]
    eventually(lambda: statuses(db, "back") == ["SENT"])
    after, = eventually(lambda: [row for row in letters(db, status="REQUEUED") if row["dlq_id"] == letter["dlq_id"]])
    entry = audit(db)[-1]
    assert (entry["action"], entry["dlq_id"], entry["note"], entry["reason"], entry["tenant_id"]) == (
        "requeue", letter["dlq_id"], "trigger dropped", letter["reason"], "demo")
    assert entry["actor"].split("@")[0] == pwd.getpwuid(os.getuid()).pw_name
    sent = db.query("select headers, payload from platform.bus_message where topic = 'entitlement.events'"
                    " order by created_at desc limit 1")[0]
    headers = dict(zip(sent[0][::2], sent[0][1::2]))
    assert headers["event-id"] == f"{letter['event_id']}-requeue-{entry['audit_id']}"
    assert bytes(sent[1]).hex() == letter["payload"] and headers["tenant_id"] == "demo"
    assert after["requeued_at"] and after["requeue_id"] == entry["audit_id"]
    # it is decided: not once more
    status, _, said = dlq("requeue", str(letter["dlq_id"]))
    assert status == 1 and "requeued or discarded before" in said
    assert len(rows(db, "back")) == 1


def test_n2_requeued_and_dead_again_is_a_letter_of_its_own(server, db, dlq):
    publish(db, (b"k", {"event-id": "nonsense"}, b"\xff\xff"))
    first = eventually(lambda: letters(db, event_id="nonsense"))[0]
    assert dlq("requeue", str(first["dlq_id"]))[0] == 0
    second = eventually(lambda: [row for row in letters(db, status="DEAD") if (row["event_id"] or "").startswith("nonsense-")])[0]
    assert second["dlq_id"] != first["dlq_id"] and second["payload"] == first["payload"] == "ffff"
    assert dlq("requeue", str(second["dlq_id"]))[0] == 0
    third = eventually(lambda: [row for row in letters(db, status="DEAD") if (row["event_id"] or "").startswith("nonsense-")])[0]
    assert third["event_id"] == f"nonsense-requeue-{audit(db)[-1]['audit_id']}"
    status, lines, _ = dlq("discard", "--reason", "not an event", "--kind", "terminated")
    assert status == 0 and lines == ["1 messages and 0 deliveries: discarded"]
    assert letters(db, status="DEAD", kind="terminated") == [] and audit(db)[-1]["action"] == "discard"


def test_n2_n3_a_delivery_is_requeued_from_the_start_and_discarded(server, db, dlq, receiver):
    receiver.behave = lambda call: 500 if b"unlucky" in call["body"] else None
    publish(db, event("unlucky-1"), event("unlucky-2"), event("unlucky-3"))
    for number in (1, 2, 3):
        eventually(lambda number=number: statuses(db, f"unlucky-{number}") == ["FAILED"])
    ids = [dead_deliveries(db, f"unlucky-{number}")[0]["notification_id"] for number in (1, 2, 3)]
    db.query("delete from notification.notifications where user_id = 'unlucky-2'")  # retention was there
    receiver.behave = lambda call: None
    assert dlq("requeue", ids[0], ids[1])[:2] == (0, ["0 messages and 2 deliveries: sent again"])
    for number in (1, 2):
        eventually(lambda number=number: statuses(db, f"unlucky-{number}") == ["SENT"])
        assert rows(db, f"unlucky-{number}")[0][2:] == (0, None)
        assert {call["key"] for call in receiver.of(f"unlucky-{number}")} == {ids[number - 1]}
        assert dead_deliveries(db, f"unlucky-{number}")[0]["status"] == "REQUEUED"
    assert dlq("discard", "--kind", "delivery", "--tenant", "demo")[:2] == (0, ["0 messages and 1 deliveries: discarded"])
    assert dead_deliveries(db, "unlucky-3")[0]["status"] == "DISCARDED" and statuses(db, "unlucky-3") == ["FAILED"]
    assert {entry["notification_id"] for entry in audit(db)[-3:]} == set(ids)


def test_n3_requeued_and_failed_again_is_dead_again(server, db, dlq, receiver):
    receiver.behave = lambda call: 404 if b"hopeless" in call["body"] else None
    publish(db, event("hopeless"))
    first = eventually(lambda: dead_deliveries(db, "hopeless"))[0]
    assert dlq("requeue", first["notification_id"])[0] == 0
    eventually(lambda: len(receiver.of("hopeless")) == 2 and dead_deliveries(db, "hopeless")[0]["status"] == "DEAD")
    assert statuses(db, "hopeless") == ["FAILED"] and len(dead_deliveries(db, "hopeless")) == 1
    receiver.behave = lambda call: None
    assert dlq("discard", first["notification_id"])[0] == 0


def test_n2_list_and_show(server, db, dlq):
    letter = bury(db, "listed", "looked-at")
    publish(db, (b"\x00k", {"event-id": "other"}, encode(**event("x", version=0))))
    poison = eventually(lambda: letters(db, event_id="other"))[0]
    status, lines, _ = dlq("list")
    assert status == 0 and [f"id={row['dlq_id']} " in line for row, line in zip((letter, poison), lines)] == [True, True]
    assert "kind=max_deliver status=DEAD tenant=demo" in lines[0] and "no room for listed" in lines[0]
    assert len(dlq("list", "--kind", "terminated")[1]) == 1 and len(dlq("list", "--reason", "no room")[1]) == 1
    assert dlq("list", "--tenant", "nobody")[1] == [] and dlq("list", "--kind", "delivery")[1] == []
    status, lines, said = dlq("list", "--status", "any", "--limit", "1")
    assert status == 0 and len(lines) == 1 and "--limit shows more" in said
    assert len(dlq("list", "--status", "discarded")[1]) >= 1
    status, lines, _ = dlq("show", str(letter["dlq_id"]))
    shown = dict(line.split(": ", 1) for line in lines)
    assert status == 0 and bytes.fromhex(letter["payload"]) == base64.b64decode(shown["payload_base64"])
    assert json.loads(shown["headers"])["event-id"] == letter["event_id"] and shown["stream_seq"] == str(letter["stream_seq"])
    assert dlq("show", "999999")[0] == 1 and "no dead letter" in dlq("show", "999999")[2]
    assert dlq("show", "00000000-0000-4000-8000-000000000000")[0] == 1
    assert dlq("requeue", "--all")[:2] == (0, ["2 messages and 0 deliveries: sent again"])
    eventually(lambda: statuses(db, "looked-at") == ["SENT"])


def test_n2_control_characters_of_senders_do_not_reach_the_terminal(server, db, dlq):
    publish(db, (b"k", {"event-id": "painted"}, b"\xff"))
    letter = str(eventually(lambda: letters(db, event_id="painted"))[0]["dlq_id"])
    db.query("update notification.notification_nats_dlq set reason = %s where dlq_id = %s",
             ("a\x1b[2J\x7f\u009b3Jж\u202e\tb\u0085", letter))
    line, = [line for line in dlq("list")[1] if line.startswith(f"id={letter} ")]
    assert line.endswith("reason=a?[2J??3Jж? b?")
    assert "reason: a?[2J??3Jж? b?" in dlq("show", letter)[1]
    assert dlq("discard", letter)[0] == 0


def test_a_wrong_call_changes_nothing(server, db, dlq):
    before = (letters(db, status="DEAD"), audit(db))
    for args in ((), ("mend",), ("requeue",), ("discard", "x"), ("requeue", "--all", "7"), ("list", "--status", "odd"),
                 ("list", "--limit", "0"), ("list", "--kind", "odd"), ("show",), ("show", "1", "2"), ("requeue", "-1"),
                 ("requeue", "0")):
        status, _, said = dlq(*args)
        assert status == 2 and said, args
    assert (letters(db, status="DEAD"), audit(db)) == before
    assert dlq("requeue", "424242")[0] == 1
    assert "list|show|requeue|discard" in dlq("--help")[1][0]


def test_before_the_schema_is_there_it_says_what_to_do(postgres, jwks_path, tmp_path):
    empty = postgres.create_database()
    config = tmp_path / "empty.yaml"
    config.write_text(to_yaml(base_config(empty, jwks_path)))
    done = run("dlq", "list", "--config", config, env={"FRESHET_TEST_PG_PASSWORD": empty.password})
    assert done.returncode == 1 and "freshet migrate" in done.stderr
    empty.drop()


