"""The engines of a benchmark: those that the system tests start, private and in a folder of their own, which end with us."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "system"))

from lib.engines import (Engines, Kafka as KafkaBroker, Nats as NatsServer, RedisNode,  # noqa: E402 pylint: disable=wrong-import-position,import-error
                         kafka_jars)

from . import machine  # noqa: E402 pylint: disable=wrong-import-position


class Fleet:
    """Kafka where it can be had, a Redis Cluster of three masters, NATS; and what a configuration says of them."""

    def __enter__(self):
        self.engines = Engines()
        try:
            self.engines.start()
        except BaseException:
            self.engines.destroy()
            raise
        return self

    def __exit__(self, *_):
        self.engines.destroy()

    @property
    def has_kafka(self):
        return self.engines.kafka is not None

    def settings(self):
        found = {"bus": {"invalidations": "redis", "events": "nats"},
                 "redis": {"nodes": self.engines.redis.addresses},
                 "nats": {"servers": [f"nats://{self.engines.nats.address}"]}}
        if self.has_kafka:
            found["bus"]["commands"] = "kafka"
            found["kafka"] = {"brokers": [self.engines.kafka.address]}
        return found

    def pids(self):
        """By what they are."""
        found = {"redis": [node.process.pid for node in self.engines.redis.nodes],
                 "nats": [self.engines.nats.process.pid]}
        if self.has_kafka:
            found["kafka"] = [self.engines.kafka.process.pid]
        return found


class Kafka:
    """One broker alone, for the commands."""

    def __enter__(self):
        if not kafka_jars():
            raise RuntimeError("Kafka can't be had here")
        self.folder = tempfile.TemporaryDirectory(prefix="freshet-bench-kafka-", ignore_cleanup_errors=True)
        self.broker = KafkaBroker(self.folder.name)
        self.broker.start()
        return self

    def __exit__(self, *_):
        self.broker.kill()
        self.folder.cleanup()

    def settings(self):
        return {"bus": {"commands": "kafka"}, "kafka": {"brokers": [self.broker.address]}}


class Redis:
    """One Redis that is no cluster; it writes its data down every second, as those of `./dev stack` do."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="freshet-bench-redis-", ignore_cleanup_errors=True)
        self.node = RedisNode("redis", self.folder.name, cluster=False)
        self.node.start()
        return self

    def __exit__(self, *_):
        self.node.kill()
        self.folder.cleanup()

    @property
    def address(self):
        return self.node.address

    def settings(self):
        return {"bus": {"invalidations": "redis"}, "redis": {"mode": "single", "nodes": [self.address]}}

    def reset_commands(self):
        self.node.ask("config", "resetstat")

    def commands(self):
        """{name: (calls, microseconds)} since the reset."""
        found = {}
        for line in self.node.ask("info", "commandstats").splitlines():
            name, _, fields = line.strip().partition(":")
            if name.startswith("cmdstat_"):
                values = dict(field.split("=") for field in fields.split(","))
                found[name.removeprefix("cmdstat_").replace("|", " ")] = (int(values["calls"]), int(values["usec"]))
        return found

    def cpu_seconds(self):
        return machine.cpu_seconds(self.node.process.pid)


class Nats:
    """NATS alone, with JetStream, for the modules' events."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="freshet-bench-nats-", ignore_cleanup_errors=True)
        self.server = NatsServer(self.folder.name)
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.folder.cleanup()

    def settings(self):
        return {"bus": {"events": "nats"}, "nats": {"servers": [f"nats://{self.server.address}"]},
                "entitlement": {"nats": {"subject": "bench.entitlement", "stream": "bench_entitlement"}},
                "notification": {"nats": {"stream": "bench_entitlement"}}}
