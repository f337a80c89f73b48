"""The system tests on the engines: FRESHET_TEST_ENGINES=1 (./dev test engines) puts Kafka, Redis Cluster and NATS under every
server, and what tests do to the bus by SQL is done to the engines by clients of theirs. The tests stay as they are.

Names of topics, groups and streams are made of the database's, so that tests do not meet. Where Kafka can't be had,
commands stay on PostgreSQL.
"""
import atexit
import functools
import json
import os

from .engines import Engines
from .wait import eventually

IS_ON = os.environ.get("FRESHET_TEST_ENGINES") == "1"

# Left out on the engines, each with its reason: tests about the PostgreSQL bus itself, which has nothing to do there.
ABOUT_POSTGRES = {
    "test_a_version_is_published_in_its_commit": "by Redis the relay publishes all of them",
    "test_a_version_is_not_published_before_an_earlier_one_of_its_dictionary": "so does the order rest on the relay alone",
    "test_a_topic_whose_partitions_are_gone_is_left_to_the_relay": "deletes rows of the bus's tables",
    "test_alone_in_its_partition_an_update_needs_no_bus": "an update that is applied in its own commit, past the bus in the"
                                                          " same database",
    "test_the_same_name_in_another_database_is_another_dictionary": "each database has a bus of its own there; on an engine"
                                                                    " they share a stream",
    "test_partitions_take_turns_so_a_backlog_of_one_dictionary_delays_anothers_update_by_one_batch_for_each": "the order of the"
                                                                    " bus's cursors; Kafka hands messages out as it fetches them",
    "test_whoever_waits_beside_apply_is_not_the_only_one": "holds the bus's cursor row",
    "test_an_update_whose_command_ends_every_process_has_failed": "sets how many processes ended, which the bus's tables keep",
    "test_a_statement_that_takes_too_long_is_tried_again_and_given_up_at_last": "counts and changes attempts in the bus's cursor row",
}


def left_out(items):
    """(those that run, those left out)."""
    out = [item for item in items if IS_ON and item.originalname in ABOUT_POSTGRES]
    return [item for item in items if item not in out], out


@functools.cache
def engines():
    """The run's own, started when the first server needs them."""
    made = Engines()
    atexit.register(made.destroy)
    return made.start()


def carries_commands():
    """Does Kafka?"""
    return IS_ON and engines().kafka is not None


def carries_invalidations():
    """Does Redis?"""
    return IS_ON


def settings(name):
    """What a server's configuration gets for the database of this name."""
    if not IS_ON:
        return {}
    found = {
        "bus": {"invalidations": "redis", "events": "nats", "migrate": "always"},
        "redis": {"nodes": engines().redis.addresses},
        "nats": {"servers": [f"nats://{engines().nats.address}"]},
        "entitlement": {"nats": {"subject": f"{name}.entitlement", "stream": f"{name}_entitlement"}},
        "refdata": {"redis": {"streamKey": stream(name), "pubChannel": channel(name)},
                    "consistency": {"waitCommitTimeoutMs": 1000}},  # a slow machine decides nothing
    }
    if engines().kafka:
        found["bus"]["commands"] = "kafka"
        found["kafka"] = {"brokers": [engines().kafka.address], "sessionTimeout": "2s"}
        found["refdata"]["kafka"] = {"commandsTopic": topic(name), "consumerGroup": group(name), "partitions": 4}
    return found


# ---- Kafka, by a client in another language ----

def topic(name):
    return f"{name}.commands"


def group(name):
    return f"{name}.apply"


@functools.cache
def producer():
    import kafka  # pylint: disable=import-outside-toplevel
    made = kafka.KafkaProducer(bootstrap_servers=engines().kafka.address, acks="all", api_version=(2, 5, 0),
                               retries=20, max_in_flight_requests_per_connection=1)  # a topic has no leader in its first moment
    atexit.register(made.close)
    return made


@functools.cache
def admin():
    import kafka  # pylint: disable=import-outside-toplevel
    made = kafka.KafkaAdminClient(bootstrap_servers=engines().kafka.address, api_version=(2, 5, 0))
    atexit.register(made.close)
    return made


def send_commands(name, messages):
    """(key, payload) each, acknowledged."""
    topic_is_there(topic(name))
    for sent in [producer().send(topic(name), key=key or None, value=payload) for key, payload in messages]:
        sent.get(30)


def has_topic(name):
    """False as well where the admin's connection is one to a broker that has died since: the next question makes a new one."""
    import kafka  # pylint: disable=import-outside-toplevel
    try:
        return name in admin().list_topics()
    except kafka.errors.KafkaConnectionError:
        return False


def topic_is_there(name):
    """Waits until freshet has made a topic of its own: the broker makes none by itself."""
    eventually(lambda: has_topic(name))


def create_topic(name, partitions):
    import kafka.admin  # pylint: disable=import-outside-toplevel

    def is_made():
        try:
            admin().create_topics([kafka.admin.NewTopic(name, partitions, 1)])
        except (kafka.errors.KafkaConnectionError, kafka.errors.TopicAlreadyExistsError):
            pass
        return has_topic(name)

    eventually(is_made)


def forget_offsets(group_name, topic_name):
    """A group without members begins at the beginning again."""
    _move(group_name, topic_name, lambda consumer, places: dict.fromkeys(places, 0))


def skip(group_name, topic_name):
    """A group without members has nothing left to read."""
    _move(group_name, topic_name, lambda consumer, places: consumer.end_offsets(places))


def _move(group_name, topic_name, where):
    import kafka  # pylint: disable=import-outside-toplevel
    consumer = kafka.KafkaConsumer(bootstrap_servers=engines().kafka.address, api_version=(2, 5, 0), group_id=group_name,
                                   enable_auto_commit=False)
    try:
        places = [kafka.TopicPartition(topic_name, p) for p in consumer.partitions_for_topic(topic_name)]
        consumer.assign(places)
        consumer.commit({place: kafka.OffsetAndMetadata(offset, "") for place, offset in where(consumer, places).items()})
    finally:
        consumer.close()


def consume(topic_name):
    """Every message of a topic: [(partition, offset, key, headers, value)]."""
    import kafka  # pylint: disable=import-outside-toplevel
    consumer = kafka.KafkaConsumer(bootstrap_servers=engines().kafka.address, api_version=(2, 5, 0))
    try:
        partitions = [kafka.TopicPartition(topic_name, p) for p in sorted(consumer.partitions_for_topic(topic_name) or ())]
        consumer.assign(partitions)
        last = consumer.end_offsets(partitions) if partitions else {}
        consumer.seek_to_beginning()
        found = []
        while any(consumer.position(p) < end for p, end in last.items()):
            for records in consumer.poll(200).values():
                found += [(r.partition, r.offset, r.key, dict(r.headers), r.value) for r in records]
        return sorted(found)
    finally:
        consumer.close()


def ends(topic_name):
    import kafka  # pylint: disable=import-outside-toplevel
    consumer = kafka.KafkaConsumer(bootstrap_servers=engines().kafka.address, api_version=(2, 5, 0))
    try:
        partitions = consumer.partitions_for_topic(topic_name) or ()
        return {p.partition: end for p, end in
                consumer.end_offsets([kafka.TopicPartition(topic_name, p) for p in partitions]).items()}
    finally:
        consumer.close()


def group_offsets(group_name, topic_name):
    """{partition: offset} as the group has committed them; none while there is no coordinator yet."""
    import kafka  # pylint: disable=import-outside-toplevel
    try:
        committed = admin().list_consumer_group_offsets(group_name)
    except kafka.errors.KafkaError:
        return {}
    return {place.partition: found.offset for place, found in committed.items()
            if place.topic == topic_name and found.offset >= 0}


def is_handled(name):
    """Has the group of those who apply committed everything there is?"""
    committed = group_offsets(group(name), topic(name))
    return bool(committed) and all(committed.get(p, 0) >= end for p, end in ends(topic(name)).items())


_forgotten = {}  # of each database's dead letters


def dead_letters(name):
    """Headers of each since they were forgotten."""
    found = consume(f"{topic(name)}.dlq")
    return [{key: value.decode() for key, value in headers.items()}
            for _, _, _, headers, _ in found if headers not in _forgotten.get(name, [])]


def forget_dead_letters(name):
    _forgotten[name] = [headers for _, _, _, headers, _ in consume(f"{topic(name)}.dlq")]


def has_group(name):
    return bool(group_offsets(group(name), topic(name)))


def eventually_reads(group_name, topic_name):
    """Waits until the group has a place in every partition."""
    eventually(lambda: len(group_offsets(group_name, topic_name)) == len(ends(topic_name)))


# ---- Redis ----

def stream(name):
    return f"{name}:inv:stream"


def channel(name):
    return f"{name}:inv:pub"


@functools.cache
def redis():
    import redis as client  # pylint: disable=import-outside-toplevel
    host, port = engines().redis.addresses[0].split(":")
    return client.RedisCluster(host=host, port=int(port))


def tell(name, payloads):
    """XADD, then PUBLISH, as the relay does."""
    for payload in payloads:
        redis().xadd(stream(name), {"event": payload})
        redis().publish(channel(name), payload)


def pod_groups(stream_key):
    """Those of pods: each has one. Beside them is that of the role command, which tells of changed items."""
    return [group for group in redis().xinfo_groups(stream_key) if not group["name"].startswith(b"entity-")]


def listens(name):
    """Does some pod?"""
    return redis().exists(stream(name)) and bool(pod_groups(stream(name)))


def told(name):
    """[(key, headers, body)] of the stream, in its order."""
    found = []
    for _, fields in redis().xrange(stream(name)):
        fields = {key.decode(): value for key, value in fields.items()}
        event, key = json.loads(fields.pop("event")), fields.pop("key", b"").decode()
        found.append((key, {name: value.decode() for name, value in fields.items()}, event))
    return found
