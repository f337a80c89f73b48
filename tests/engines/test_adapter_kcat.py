"""The adapter (R9) beside kcat, a client that knows nothing of us: whatever carries the commands, whoever is killed."""
import json
import subprocess
import uuid

import pytest

from lib import on_engines
from lib.refdata import item_path, pod
from lib.wait import eventually
from lib.writers import status_path, updates_path

TENANT = "acme"
CODE = "COUNTRY"
ID_SPACE = uuid.UUID("23e2e327-37b1-5645-a760-8dd89f2ef6ef")
CAPTURE = {
    "eventId": {"field": "/id"}, "eventIdForm": "ANY", "eventType": {"fixed": "DELTA"},
    "sourceRevision": {"field": "/source/lsn"}, "occurredAt": {"field": "/ts_ms"}, "items": {"field": ""},
    "key": {"field": "/after/code"}, "op": {"field": "/op"}, "payload": {"field": "/after"},
    "upsertWords": ["c", "r", "u"], "deleteWords": ["d"],
}
OTHERS = ("--roles", "command,apply,relay,query")


class Topic:
    """Somebody else's topic."""

    def __init__(self, kafka, name):
        self.kafka, self.name, self.is_made = kafka, name, False

    def kcat(self, *words, text=None):
        done = subprocess.run(["kcat", "-b", self.kafka.address, "-q", *words], input=text, capture_output=True, timeout=60,
                              check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def send(self, *values, key=None, headers=None, partition=0):
        """Text, or what becomes JSON; None is a tombstone. The first one makes the topic, which the adapter may have looked for
        already."""
        if not self.is_made:
            on_engines.create_topic(self.name, partitions=4)
            self.is_made = True
        words = ["-P", "-t", self.name, "-p", str(partition), "-D", "\x1e"]
        for name, text in (headers or {}).items():
            words += ["-H", f"{name}={text}"]
        if values == (None,):
            return self.kcat(*words, "-Z", "-K", "\x1f", text=f"{key}\x1f\x1e".encode())
        return self.kcat(*words, text="\x1e".join(value if isinstance(value, str) else json.dumps(value)
                                                  for value in values).encode())

    def read(self, suffix=""):
        """Every message, as kcat's JSON has it, headers as a dict."""
        text = self.kcat("-C", "-t", self.name + suffix, "-o", "beginning", "-e", "-J")
        found = sorted((json.loads(line) for line in text.splitlines()), key=lambda row: (row["partition"], row["offset"]))
        for row in found:
            pairs = row.get("headers", [])
            row["headers"] = dict(zip(pairs[::2], pairs[1::2]))
        return found


@pytest.fixture
def topic(kafka):
    return Topic(kafka, f"mdm-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def settings(topic, refdata_db):
    """settings(source…) for servers of one database."""
    def make(commands="postgres", **source):
        changes = pod(CODE)
        changes["bus"] = {"commands": commands}
        changes["refdata"]["kafka"] = {"commandsTopic": f"{refdata_db.name}.commands", "partitions": 4}
        changes["refdata"]["adapter"] = {"sources": [
            {"topic": topic.name, "group": f"{topic.name}-group", "tenant": {"fixed": TENANT}, "dictCode": {"fixed": CODE},
             **source}]}
        return changes
    return make


def delta(key, payload, **more):
    return {"eventId": str(uuid.uuid4()), "eventType": "DELTA",
            "items": [{"key": key, "op": "UPSERT", "payload": payload}], **more}


class Reader:
    def __init__(self, server, token):
        self.client = server.client(token(TENANT))

    def item(self, key):
        answer = self.client.get(item_path(CODE, key, TENANT))
        return answer.json()["payload"] if answer.status == 200 else None

    def has(self, key, payload):
        eventually(lambda: self.item(key) == payload)

    def status(self, event_id):
        answer = self.client.get(status_path(event_id, TENANT))
        return answer.json()["status"] if answer.status == 200 else None

    def version(self):
        return self.client.get(f"/v1/tenants/{TENANT}/dictionaries/{CODE}/version").json()["version"]


@pytest.mark.parametrize("commands", ["postgres", "kafka"])
def test_what_carries_the_commands_makes_no_difference(serve, refdata_db, settings, topic, token, commands):
    topic.send(first := delta("DE", {"name": "Germany"}))  # before anybody reads
    changes = settings(commands)
    serve(refdata_db, changes, args=("--roles", "adapter"))
    reader = Reader(serve(refdata_db, changes, args=OTHERS), token)
    reader.has("DE", {"name": "Germany"})
    topic.send(second := delta("FR", {"name": "France"}))
    reader.has("FR", {"name": "France"})
    assert [reader.status(sent["eventId"]) for sent in (first, second)] == ["COMMITTED"] * 2
    assert refdata_db.query("select distinct source from refdata.update_request") == [("KAFKA",)]


def test_anybody_can_make_the_id_of_a_message_that_has_none(serve, refdata_db, settings, topic, token):
    message = delta("DE", 1)
    del message["eventId"]
    topic.send(message)
    Reader(serve(refdata_db, settings()), token).has("DE", 1)
    place = topic.read()[0]
    name = f"{topic.name}/{place['partition']}/{place['offset']}/{place['ts']}"
    assert refdata_db.query("select event_id::text from refdata.update_request") == [(str(uuid.uuid5(ID_SPACE, name)),)]


def test_a_captured_change_and_a_tombstone(serve, refdata_db, settings, topic, token):
    """Payloads byte for byte as far as jsonb keeps them; a message that belongs to nobody is a dead letter."""
    server = serve(refdata_db, settings(tenant={"header": "x-tenant"}, tombstones="DELETE", mapping=CAPTURE))
    reader, headers = Reader(server, token), {"x-tenant": TENANT}
    topic.send('{"id":"evt-1","op":"c","ts_ms":1772193600123,"source":{"lsn":"7"},"after":{"code":"DE","n":1.10}}',
               headers=headers)
    reader.has("DE", {"code": "DE", "n": 1.10})
    assert '"n": 1.10' in reader.client.get(item_path(CODE, "DE", TENANT)).body.decode()
    topic.send(None, key="DE", headers=headers)
    reader.has("DE", None)
    topic.send({"op": "u", "after": {"code": "FR"}})
    topic.send({"op": "c", "after": {"code": "IT"}}, headers=headers)
    reader.has("IT", {"code": "IT"})
    letter = topic.read(".dlq")[0]
    assert letter["payload"] == '{"op": "u", "after": {"code": "FR"}}'
    assert letter["headers"]["dlq-reason"] == "BAD_REQUEST: tenantId is missing (header x-tenant)"
    assert server.metrics()[f'refdata_adapter_messages_total{{topic="{topic.name}",result="refused"}}'] == 1


def test_an_update_too_large_for_a_message_is_refused_before_it_is_accepted(serve, refdata_db, settings, topic, token):
    """R1, R9: an update that Kafka would never carry must not stay PENDING for ever."""
    changes = settings("kafka")
    changes["kafka"] = {"messageBytes": "64KiB"}
    server = serve(refdata_db, changes)
    reader, large = Reader(server, token), delta("k", "x" * 65000)
    topic.send(large, delta("last", 1))
    reader.has("last", 1)
    assert topic.read(".dlq")[0]["headers"]["dlq-reason"] == "PAYLOAD_TOO_LARGE: items: at most 64512 bytes are taken"
    answer = reader.client.post(updates_path(tenant=TENANT), {**large, "dictCode": CODE})
    assert (answer.status, answer.json()["code"], answer.json()["field"]) == (413, "PAYLOAD_TOO_LARGE", "items")
    assert refdata_db.query("select count(*) from refdata.update_request") == [(1,)]


PLACES = ["adapter.after_requests", "adapter.before_publish", "adapter.before_commit", "adapter.after_commit"]


@pytest.mark.whole
def test_an_adapter_killed_between_any_two_steps_loses_and_repeats_nothing(serve, refdata_db, settings, topic, token):
    changes = settings()
    reader = Reader(serve(refdata_db, changes, args=OTHERS), token)
    for number, place in enumerate(PLACES):
        adapter = serve.make(refdata_db, changes, args=("--roles", "adapter"), env={"FRESHET_FAILPOINTS": f"{place}=kill"})
        adapter.start(ready=False)
        topic.send(delta(f"k{number}", number), delta(f"l{number}", number))
        assert eventually(lambda a=adapter: a.process.poll()) == -9
    serve(refdata_db, changes, args=("--roles", "adapter"))
    for number in range(len(PLACES)):
        reader.has(f"l{number}", number)
    assert reader.version() == 2 * len(PLACES)


def is_up(server):
    health = server.client().get("/actuator/health").json()
    return health["roles"]["adapter"]["status"] == health["components"]["kafka:adapter"]["status"] == "UP"


@pytest.mark.whole
def test_kafka_killed_and_started_again_under_load(serve, refdata_db, settings, topic, kafka, token):
    """Two adapters share the topic; what was acknowledged to its writer has one effect."""
    changes = settings()
    adapters = [serve(refdata_db, changes, args=("--roles", "adapter")) for _ in range(2)]
    reader = Reader(serve(refdata_db, changes, args=OTHERS), token)
    sent = 0
    for _ in range(2):
        for partition in range(4):
            topic.send(*[delta(f"k{sent + i}", sent + i) for i in range(25)], partition=partition)
            sent += 25
        kafka.kill()
        kafka.start()
    topic.send(delta("last", "here"), partition=3)
    eventually(lambda: reader.version() == sent + 1)
    assert refdata_db.query("select count(*) from refdata.update_request where status = 'COMMITTED'") == [(sent + 1,)]
    for adapter in adapters:
        eventually(lambda a=adapter: is_up(a))
