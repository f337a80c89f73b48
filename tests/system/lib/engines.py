"""Private engines for tests: a Redis Cluster, NATS with JetStream, Kafka. Real servers on loopback, which a test may kill,
freeze, stop, start again and rob of their data.

Each ends with the run whatever happens: the kernel kills it when we die. Ports are remembered over restarts and are none
that a client is ever given, so that who was connected finds an engine again.
"""
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from .wait import eventually, free_port

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_us():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Engine:
    """One server process with a folder of its own. To be started from the main thread: it dies with the thread."""

    def __init__(self, name, folder):
        self.name, self.folder = name, Path(folder) / name
        self.data = self.folder / "data"
        self.data.mkdir(parents=True)
        self.log_path = self.folder / "log"
        self.port = free_port()
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def command(self):
        raise NotImplementedError

    def answers(self):
        raise NotImplementedError

    def spawn(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, preexec_fn=_die_with_us)

    def wait(self):
        def up():
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log()[-3000:]}"
            return self.answers()

        eventually(up)
        return self

    def start(self):
        if not self.is_running():
            self.spawn()
        return self.wait()

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """As a machine's death would."""
        if self.is_running():
            self.process.kill()
            self.process.wait()

    def stop(self):
        if self.is_running():
            self.thaw()
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def freeze(self):
        """Its connections stay, and nothing comes from them."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""


# ---- Redis ----

class RedisNode(Engine):
    """One Redis; of a cluster unless told otherwise."""

    def __init__(self, name, folder, cluster=True):
        super().__init__(name, folder)
        self.cluster, self.bus_port = cluster, free_port()

    def command(self):
        cluster = ["--cluster-enabled", "yes", "--cluster-port", str(self.bus_port), "--cluster-node-timeout", "2000"]
        return ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.data), "--save", "",
                "--appendonly", "yes", *(cluster if self.cluster else [])]

    def ask(self, *words, cluster=False):
        """redis-cli's answer as text."""
        done = subprocess.run(["redis-cli", *(["-c"] if cluster else []), "-p", str(self.port), *map(str, words)], text=True,
                              capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.removesuffix("\n")

    def answers(self):
        return self.ask("ping") == "PONG"

    def lose_data(self):
        """While it is dead: it comes back as the same node, with the same slots and nothing in them."""
        assert not self.is_running()
        shutil.rmtree(self.data / "appendonlydir")


class RedisCluster:
    """Three masters; replicate() adds a copy of one."""

    def __init__(self, folder):
        self.folder = folder
        self.nodes = [RedisNode(f"redis-{number}", folder) for number in (1, 2, 3)]

    def spawn(self):
        for node in self.nodes:
            node.spawn()

    def wait(self):
        for node in self.nodes:
            node.wait()
        if "cluster_slots_assigned:0" in self.nodes[0].ask("cluster", "info"):
            done = subprocess.run(["redis-cli", "--cluster", "create", *self.addresses, "--cluster-replicas", "0",
                                   "--cluster-yes"], text=True, capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        eventually(self.is_whole)
        return self

    def is_whole(self):
        return all("cluster_state:ok" in node.ask("cluster", "info") for node in self.nodes)

    @property
    def addresses(self):
        return [node.address for node in self.nodes]

    def ask(self, *words):
        """Asks whichever node holds it."""
        return next(node for node in self.nodes if node.is_running()).ask(*words, cluster=True)

    def master_of(self, key):
        """The node that holds a key's slot."""
        slot = int(self.nodes[0].ask("cluster", "keyslot", key))
        for line in self.nodes[0].ask("cluster", "nodes").splitlines():
            words = line.split()
            for span in words[8:]:
                first, _, last = span.partition("-")
                if "master" in words[2] and first.isdigit() and int(first) <= slot <= int(last or first):
                    return next(node for node in self.nodes if f":{node.port}@" in words[1])
        raise AssertionError(f"nobody holds slot {slot}")

    def replicate(self, master):
        """A new node that follows a master."""
        node = RedisNode(f"redis-{len(self.nodes) + 1}", self.folder).start()
        self.nodes.append(node)
        node.ask("cluster", "meet", "127.0.0.1", master.port, master.bus_port)
        own = master.ask("cluster", "myid")
        eventually(lambda: own in node.ask("cluster", "nodes"))
        assert node.ask("cluster", "replicate", own) == "OK"
        eventually(lambda: "master_link_status:up" in node.ask("info", "replication"))
        return node

    def remove(self, node):
        """Takes a copy away for good."""
        self.nodes.remove(node)
        own = node.ask("cluster", "myid")
        node.kill()
        for other in self.nodes:
            other.ask("cluster", "forget", own)

    def move_slot(self, key, source, target):
        """Hands a key's slot with all its keys to another master, as a resharding does, with time in between to meet ASK."""
        slot = source.ask("cluster", "keyslot", key)
        ids = {node: node.ask("cluster", "myid") for node in (source, target)}
        assert target.ask("cluster", "setslot", slot, "importing", ids[source]) == "OK"
        assert source.ask("cluster", "setslot", slot, "migrating", ids[target]) == "OK"
        time.sleep(0.3)
        while keys := source.ask("cluster", "getkeysinslot", slot, 10).split():
            source.ask("migrate", "127.0.0.1", target.port, "", 0, 5000, "keys", *keys)
        time.sleep(0.3)
        for node in (target, source):
            assert node.ask("cluster", "setslot", slot, "node", ids[target]) == "OK"

    def kill(self):
        for node in self.nodes:
            node.kill()

    def stop(self):
        for node in self.nodes:
            node.stop()

    def start(self):
        """All of them, those that run as they are."""
        for node in self.nodes:
            if not node.is_running():
                node.spawn()
        return self.wait()


# ---- NATS ----

class Nats(Engine):
    def __init__(self, folder):
        super().__init__("nats", folder)
        self.monitor_port = free_port()

    def command(self):
        return ["nats-server", "--addr", "127.0.0.1", "--port", str(self.port), "--http_port", str(self.monitor_port),
                "--jetstream", "--store_dir", str(self.data)]

    def lose_data(self):
        """It dies, and comes back with nothing."""
        self.kill()
        shutil.rmtree(self.data)
        self.data.mkdir()
        return self.start()

    def answers(self):
        return subprocess.run(["curl", "-fs", "-m", "2", f"http://127.0.0.1:{self.monitor_port}/healthz"],
                              capture_output=True, check=False).returncode == 0


# ---- Kafka ----

def kafka_jars():
    """The folder with Kafka's jars, or None: ./dev test fetches them where Maven Central can be reached."""
    folder = os.environ.get("FRESHET_KAFKA_JARS", "")
    return Path(folder) if folder and list(Path(folder).glob("kafka_2.13-*.jar")) else None


class Kafka(Engine):
    """One broker that is its own controller."""

    def __init__(self, folder):
        super().__init__("kafka", folder)
        self.controller_port = free_port()
        self.properties = self.folder / "server.properties"
        text = (ROOT / "tools/kafka/server.properties").read_text(encoding="utf-8")
        for name, value in {"PORT": self.port, "CONTROLLER_PORT": self.controller_port, "DATA": self.data}.items():
            text = text.replace(f"@{name}@", str(value))
        # who asks for a topic before freshet has made it would get one of another shape, which freshet refuses
        text += "auto.create.topics.enable=false\n"
        self.properties.write_text(text, encoding="utf-8")

    @staticmethod
    def java(*words):
        levels = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                  "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info"]
        return ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*", *levels, *words]

    def command(self):
        return self.java("kafka.Kafka", str(self.properties))

    def spawn(self):
        if not (self.data / "meta.properties").exists():
            subprocess.run(self.java("kafka.tools.StorageTool", "format", "-t", "freshetTestsFreshetQ",
                                     "-c", str(self.properties)), check=True, capture_output=True)
        self.log_path.write_text("")
        super().spawn()

    def answers(self):
        return "Kafka Server started" in self.log()


class Engines:
    """All three. `kafka` is None where it can't be had."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="freshet-test-engines-"))
        self.redis = RedisCluster(self.folder)
        self.nats = Nats(self.folder)
        self.kafka = Kafka(self.folder) if kafka_jars() else None

    @property
    def all(self):
        return [engine for engine in (self.redis, self.nats, self.kafka) if engine]

    def start(self):
        """Side by side."""
        for engine in self.all:
            engine.spawn()
        for engine in self.all:
            engine.wait()
        return self

    def heal(self):
        """After a test: all of them run."""
        for engine in self.all:
            engine.start()

    def destroy(self):
        for engine in [*self.redis.nodes, self.nats, *([self.kafka] if self.kafka else [])]:
            engine.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
