"""Issue 15, points 1 and 3: dead letters on Kafka and NATS, read without a consumer group, requeued and discarded."""
import json
import signal
import threading

import pytest

from fleet import SMALL
from lib import on_engines
from lib.apply import delta, items_of, version_of
from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.nats import Nats
from lib.refdata import pod
from lib.wait import eventually

ALL = "ops:read ops:write ops:all-tenants"
OPS = ["--roles", "ops"]


def path(source):
    return "/v1/ops/dead-letters/" + source


def page(client, where, status=200):
    answer = client.get(where)
    assert answer.status == status, answer.body
    return answer.json()


def requeue(client, source, letters, reason="a test"):
    answer = client.post(path(source) + "/requeue", {"ids": letters, "reason": reason})
    assert answer.status == 200, answer.body
    return answer.json()["changed"]


# ---- Kafka ----

@pytest.fixture
def buried(make_fleet, kafka):  # pylint: disable=unused-argument
    """A fleet, its dead letters' source, and a command of another program for a dictionary that does not exist."""
    fleet = make_fleet(sizes=SMALL, dictionaries=["D"])
    sent = delta("LATER", {"a": 1})
    eventually(lambda: on_engines.has_topic(fleet.topic))
    on_engines.send_commands(fleet.database.name, [(b"demo:LATER", json.dumps(sent).encode())])
    eventually(lambda: len(list(on_engines.consume(fleet.topic + ".dlq"))) == 1)
    for server in fleet.of("apply"):
        server.stop()
    return fleet, fleet.topic + ".dlq"


def repaired(serve, fleet, **more):
    return serve(fleet.database, pod("D", "LATER"), args=["--roles", "apply,relay,ops"], **more)


def test_a_poison_command_on_kafka_is_requeued_and_applied_once(buried, serve, token):
    fleet, source = buried
    server = repaired(serve, fleet)
    with server.client(token("demo", sub="ann", scope=ALL)) as client:
        (listed,) = [s for s in page(client, "/v1/ops/dead-letters")["items"] if s["source"] == source]
        assert listed["engine"] == "kafka" and listed["count"] == {"count": 1, "more": False}
        (item,) = page(client, path(source))["items"]
        assert item["tenant_id"] == "demo" and item["state"] == "open" and "not a command" in item["reason"]
        whole = page(client, f"{path(source)}/{item['id']}")
        assert '"LATER"' in whole["payload"] and whole["headers"]["dlq-topic"] == fleet.topic
        assert requeue(client, source, [item["id"]], "LATER exists") == 1
        eventually(lambda: items_of(fleet.database, "LATER") == {"a": 1})
        assert requeue(client, source, [item["id"]]) == 0 and page(client, path(source))["items"] == []
        (item,) = page(client, path(source) + "?state=requeued")["items"]
        assert item["decided_by"] == "ann" and item["decided_reason"] == "LATER exists"
    assert version_of(fleet.database, "LATER") == 1
    *_, headers, _ = list(on_engines.consume(fleet.topic))[-1]
    assert not [name for name in headers if name.startswith("dlq-")]
    groups = on_engines.admin().list_consumer_groups()
    assert not [name for name, _ in groups if "dlq" in name]


def test_a_kill_between_kafka_and_the_record_repeats_the_message_and_not_its_effect(buried, serve, token):
    """At least once: the letter is still open although its message is in Kafka."""
    fleet, source = buried
    dying = serve(fleet.database, pod("D", "LATER"), args=OPS, env={"FRESHET_FAILPOINTS": "letters.after_publish=kill#1"})
    before = len(list(on_engines.consume(fleet.topic)))
    with dying.client(token("demo", scope=ALL)) as client:
        (item,) = page(client, path(source))["items"]
        with pytest.raises(Exception):
            client.post(path(source) + "/requeue", {"ids": [item["id"]], "reason": "x"})
    eventually(lambda: dying.process.poll() == -signal.SIGKILL)
    assert len(list(on_engines.consume(fleet.topic))) == before + 1
    server = repaired(serve, fleet)
    with server.client(token("demo", scope=ALL)) as client:
        eventually(lambda: items_of(fleet.database, "LATER") == {"a": 1})
        assert [i["id"] for i in page(client, path(source))["items"]] == [item["id"]]
        assert requeue(client, source, [item["id"]]) == 1
    eventually(lambda: len(list(on_engines.consume(fleet.topic))) == before + 2)
    fleet.settled()
    assert version_of(fleet.database, "LATER") == 1


def test_two_operators_requeue_a_letter_of_kafka_once(buried, serve, token):
    fleet, source = buried
    server = serve(fleet.database, pod("D", "LATER"), args=OPS)
    changed = []
    with server.client(token("demo", scope=ALL)) as client:
        (item,) = page(client, path(source))["items"]

    def one():
        with server.client(token("demo", scope=ALL)) as client:
            changed.append(requeue(client, source, [item["id"]]))
    before = len(list(on_engines.consume(fleet.topic)))
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(changed) == [0, 1] and len(list(on_engines.consume(fleet.topic))) == before + 1


def test_the_command_line_reaches_kafka_without_a_server(buried, jwks_path, tmp_path):
    fleet, source = buried
    config = tmp_path / "dlq.yaml"
    config.write_text(to_yaml(merge(base_config(fleet.database, jwks_path), pod("D"))))

    def dlq(*args):
        done = run("dlq", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": fleet.database.password})
        return done.returncode, done.stdout.splitlines(), done.stderr
    status, lines, said = dlq("list", "--source", source)
    assert status == 0 and len(lines) == 1 and lines[0].startswith(f"id={source}/"), said
    letter = lines[0].split()[0][3:]
    assert '"LATER"' in "".join(dlq("show", letter)[1])
    assert dlq("discard", letter, "--note", "obsolete")[:2] == (0, [f"{source}: 1 discarded"])
    assert dlq("list", "--source", source)[1] == []
    assert fleet.database.value("select reason from platform.ops_audit") == "obsolete"


def test_a_kafka_that_does_not_answer_is_shown_and_the_rest_is_listed(buried, serve, token, kafka):
    fleet, source = buried
    server = serve(fleet.database, pod("D", "LATER"), args=OPS)
    kafka.freeze()
    try:
        with server.client(token("demo", scope=ALL)) as client:
            answer = page(client, "/v1/ops/dead-letters")
            assert [u["engine"] for u in answer["unavailable"]] == ["kafka"]
            assert "refdata.outbox_event" in [s["source"] for s in answer["items"]]
            assert page(client, path(source))["unavailable"]
    finally:
        kafka.thaw()


# ---- NATS ----

@pytest.fixture
def nats_letters(serve, refdata_db, engines):  # pylint: disable=unused-argument
    """A process with the role ops beside one that has made the streams; put(payload, **headers) leaves a dead letter."""
    names = on_engines.settings(refdata_db.name)["entitlement"]["nats"]
    server = serve(refdata_db, args=["--roles", "entitlement,ops"])
    with Nats(on_engines.engines().nats.address) as nats:
        eventually(lambda: nats.stream(names["stream"] + "_dlq"))

        def put(payload, **headers):
            return nats.publish(names["subject"] + ".dlq", payload, {
                "dlq-reason": "not an event", "dlq-topic": "entitlement.events", "dlq-partition": "0", "dlq-offset": "7",
                "dlq-group": "x", **{name.replace("_", "-") if name == "event_id" else name: value for name, value in headers.items()}})
        yield server, nats, names, put


def test_letters_of_nats_are_listed_requeued_and_recorded(nats_letters, token, refdata_db):
    server, nats, names, put = nats_letters
    source = "entitlement.events.dlq"
    for number in range(40):
        put(f"p{number}".encode(), event_id=f"e-{number}", tenant_id="demo")
    other = put(b"theirs", tenant_id="other")
    with server.client(token("demo", sub="ann", scope=ALL)) as client:
        items = page(client, path(source) + "?limit=500")["items"]
        assert [item["event_id"] for item in items] == [f"e-{number}" for number in reversed(range(40))]
        assert page(client, f"{path(source)}/0-{other}", 404) and page(client, f"{path(source)}/0-{other}?tenant=*")["payload"] == "theirs"
        (listed,) = [s for s in page(client, "/v1/ops/dead-letters?tenant=*")["items"] if s["source"] == source]
        assert listed["engine"] == "nats" and listed["count"] == {"count": 41, "more": False}
        assert requeue(client, source, [items[-1]["id"], items[-2]["id"]]) == 2
        assert requeue(client, source, [items[-1]["id"]]) == 0
        state = nats.stream(names["stream"])["state"]
        assert state["messages"] == 2
        answer = client.post(path(source) + "/discard", {"filter": {}, "reason": "old"})
        assert answer.json()["changed"] == 38
        assert page(client, path(source))["items"] == []
    consumers = nats.api(f"CONSUMER.NAMES.{names['stream']}_dlq")["consumers"] or []
    assert consumers == [], "a read left its consumer"
    assert refdata_db.value("select count(*) from platform.dead_letter_decision where engine = 'nats'") == 40


def test_a_kill_between_nats_and_the_record_leaves_an_open_letter(nats_letters, serve, token, refdata_db):
    _, nats, names, put = nats_letters
    source = "entitlement.events.dlq"
    sequence = put(b"again", event_id="e-1", tenant_id="demo")
    dying = serve(refdata_db, args=OPS, env={"FRESHET_FAILPOINTS": "letters.after_publish=kill#1"})
    with dying.client(token("demo", scope=ALL)) as client:
        with pytest.raises(Exception):
            client.post(path(source) + "/requeue", {"ids": [f"0-{sequence}"], "reason": "x"})
    eventually(lambda: dying.process.poll() == -signal.SIGKILL)
    server = serve(refdata_db, args=OPS)
    with server.client(token("demo", scope=ALL)) as client:
        assert [item["id"] for item in page(client, path(source))["items"]] == [f"0-{sequence}"]
        assert requeue(client, source, [f"0-{sequence}"]) == 1
    assert nats.stream(names["stream"])["state"]["messages"] == 2, "the server dropped it as a repetition"
