"""`stream`: chats live. A message to its line at the client, without and with 500 readers beside it that do not read; what an idle
stream costs; one message to 10,000 readers.

Times are from just before the POST to the line at the reader, so the commit is part of them.
"""
import itertools
import json
import resource
import statistics
import subprocess
import threading
import time
import types

from . import freshet as program
from . import machine
from .freshet import TENANT
from .report import progress, table

PROJECT = "00000000-0000-4000-9000-000000000001"
USER = "3f0c2a52-6f0e-4d5e-9d0c-1f4f6f1f7a10"  # the token's subject
LOOPS = 2
SESSIONS = 100
RATE = 200
SECONDS = 15
WRITERS = 8
# One tenant's streams hold at most half of the connections, and those are bounded by the descriptors of a process.
IDLE = min(10_000, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1_000) // 2)
FAN_OUT = 10  # messages, one at a time
SETTLE_SECONDS = 3
QUIET_SECONDS = 5  # after them the threads that opened the streams have ended, which take more than the streams
IDLE_KIB = 3
IDLE_QUICK_KIB = 8  # of few streams: what a process keeps for the next requests is shared by them
SLOW = 500  # half of them take a byte a second, half nothing
SLOW_SESSIONS = 10  # few, so that a slow one soon has more before it than is kept
SLOW_ROUNDS = 3
SLOW_SECONDS = 8
SLOW_KIB = 256  # what is kept of a session, and what a reader is in the middle of
PADDING = "x" * 4000
SETTINGS = {"chat": {"agents": [{"name": "quiet", "reply": "ok"}], "default-agent": "quiet"},
            "http": {"limits": {"connections": 30_000}}}


def session(number):
    return f"00000000-0000-4000-8000-{number:012}"


def path(name, rest):
    return f"/my/projects/{PROJECT}/chat/{name}/{rest}"


def run(bench, report):
    with bench.database() as database:
        freshet = bench.freshet(database, [], SETTINGS)
        freshet.prepare()
        database.run("insert into chat.chat_sessions (tenant_id, session_id, project_id, user_id, last_at, created_at)"
                     f" select '{TENANT}', ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, '{PROJECT}', '{USER}',"
                     f" now(), now() from generate_series(0, {IDLE}) n")
        running = freshet.start("freshet", LOOPS)
        try:
            latency(bench, report, running)
            idle(bench, report, running)
            fan_out(bench, report, running)
            slow(bench, report, running)
        finally:
            bench.processes.close()


class Reader:
    """A process of many streams; `ready` once all are up to date."""

    def __init__(self, bench, running, target, count, seconds, *options):
        self.process = subprocess.Popen(
            [bench.binary("watch_reader"), "--port", str(running.port), "--path", target, "--header",
             f"Authorization: Bearer {running.freshet.token}", "--connections", str(count), "--seconds", str(seconds), *options],
            stdout=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())["ready"]
        progress(f"{self.ready:,} streams are up to date")

    def figures(self):
        return json.loads(self.process.communicate(timeout=300)[0])

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def say(running, name, padding=""):
    body = {"content": f"sentUs {time.time_ns() // 1000} {padding}"}
    answer = program.ask(running.port, program.post(path(name, "message"), running.freshet.token, body))
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {answer.body.decode(errors='replace')}")


def say_many(running, seconds, sessions=range(SESSIONS), padding=""):
    """RATE messages a second over these sessions; how many there were."""
    started, numbers, lock = time.monotonic(), iter(range(RATE * seconds)), threading.Lock()

    def write():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, started + number / RATE - time.monotonic()))
            say(running, session(sessions[number % len(sessions)]), padding)
    writers = [threading.Thread(target=write) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return RATE * seconds


def latency(bench, report, running):
    seconds = 5 if bench.quick else SECONDS
    say_many(running, 2)  # connections and plans
    reader = Reader(bench, running, path("00000000-0000-4000-8000-############", "stream"), SESSIONS, seconds + SETTLE_SECONDS)
    try:
        sent = say_many(running, seconds)
        figures = reader.figures()
    finally:
        reader.close()
    report.add("latency", {**figures, "sent": sent})
    table(f"{SESSIONS} streams, {RATE} messages a second", ["sent", "came", "p50 ms", "p99 ms", "max ms", "cut off"],
          [[sent, figures["changes"], *(f"{figures[name]:.1f}" for name in ("p50Ms", "p99Ms", "maxMs")), figures["closed"]]])
    report.verdict("messages that did not come", sent - figures["changes"], 0)
    report.verdict("a message to its line, p99 ms", figures["p99Ms"], 30)


def among(bench, running, seconds, paces, first):
    """Figures of SESSIONS readers of new sessions, beside SLOW ones at these paces, and the KiB that one of those cost."""
    target, which = path("00000000-0000-4000-8000-############", "stream"), ("--first", str(first), "--numbers", str(SLOW_SESSIONS))
    before, readers = machine.status_kib(running.pid, "RssAnon"), []
    try:
        for pace in paces:
            readers.append(Reader(bench, running, target, SLOW // len(paces), 600, *which, "--pace", str(pace)))
        readers.append(Reader(bench, running, target, SESSIONS, seconds + SETTLE_SECONDS, *which))
        sent = say_many(running, seconds, range(first, first + SLOW_SESSIONS), PADDING)
        each = (machine.status_kib(running.pid, "RssAnon") - before) / SLOW
        figures = readers[-1].figures()
        return {**figures, "lost": sent - figures["changes"], "kibEach": each}
    finally:
        for reader in readers:
            reader.close()


def slow(bench, report, running):
    """Readers who read, in turn without and with SLOW beside them who do not."""
    seconds = 4 if bench.quick else SLOW_SECONDS
    rounds, sessions = [], itertools.count(SESSIONS, SLOW_SESSIONS)
    for number in range(1 if bench.quick else SLOW_ROUNDS):
        order = [(), (1, 0)] if number % 2 == 0 else [(1, 0), ()]
        rounds.append({bool(paces): among(bench, running, seconds, paces, next(sessions)) for paces in order})
    cuts = running.metrics().get('chat_stream_cuts_total{format="ndjson"}', 0)
    report.add("slow", {"rounds": [{"without": one[False], "with": one[True]} for one in rounds], "cuts": cuts})
    table(f"{SESSIONS} streams, {RATE} messages of 4 KB a second, {SLOW} who do not read beside them",
          ["round", "p50 ms", "with", "p99 ms", "with", "KiB each"],
          [[number, *(f"{one[which][name]:.1f}" for name in ("p50Ms", "p99Ms") for which in (False, True)),
            f"{one[True]['kibEach']:.0f}"] for number, one in enumerate(rounds, 1)])
    alone = statistics.median(one[False]["p99Ms"] for one in rounds)
    report.verdict("messages beside them that did not come", sum(one[which]["lost"] for one in rounds for which in one), 0)
    report.verdict("readers beside them that were cut off", sum(one[True]["closed"] for one in rounds), 0)
    report.verdict(f"p99 beside {SLOW} who do not read, × (2 × p99 without + 5 ms)",
                   statistics.median(one[True]["p99Ms"] for one in rounds) / (2 * alone + 5), 1.0)
    report.verdict("one who does not read, KiB", max(one[True]["kibEach"] for one in rounds), SLOW_KIB)
    report.verdict_at_least("of them cut off", cuts, SLOW if not bench.quick else 0)


def idle(bench, report, running):
    """Memory of streams that wait, each of a session of its own."""
    count = 1000 if bench.quick else IDLE
    before = machine.status_kib(running.pid, "RssAnon")
    reader = Reader(bench, running, path("00000000-0000-4000-8000-############", "stream"), count, QUIET_SECONDS + 1)
    try:
        time.sleep(QUIET_SECONDS)
        each = (machine.status_kib(running.pid, "RssAnon") - before) / count
        reader.figures()
    finally:
        reader.close()
    report.add("idle", {"streams": count, "kibEach": each})
    table(f"{count:,} idle streams, each of a session of its own", ["KiB each"], [[f"{each:.1f}"]])
    report.verdict("an idle stream, KiB", each, IDLE_QUICK_KIB if bench.quick else IDLE_KIB)


def bare_fan_out(bench, running, count):
    """The same lines from a program that does nothing else, with as many threads as there are loops."""
    command = [bench.binary("sender"), str(count), str(LOOPS), str(FAN_OUT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        try:
            place = types.SimpleNamespace(port=int(sender.stdout.readline()), freshet=running.freshet)
            reader = Reader(bench, place, "/", count, FAN_OUT + SETTLE_SECONDS)
            try:
                return reader.figures()
            finally:
                reader.close()
        finally:
            sender.kill()


def fan_out(bench, report, running):
    """One message at a time to all readers of one session."""
    count = 1000 if bench.quick else IDLE
    bare = bare_fan_out(bench, running, count)
    reader = Reader(bench, running, path(session(IDLE), "stream"), count, FAN_OUT + SETTLE_SECONDS)
    try:
        for _ in range(FAN_OUT):
            say(running, session(IDLE))
            time.sleep(1)
        figures = reader.figures()
    finally:
        reader.close()
    report.add("fanOut", {**figures, "bare": bare})
    table(f"one message to {count:,} readers", ["", "messages", "fewest at one", "to the first half, ms", "to the last, ms", "cut off"],
          [[name, FAN_OUT, each["perConnectionMin"], f"{each['p50Ms']:.1f}", f"{each['maxMs']:.1f}", each["closed"]]
           for name, each in (("freshet", figures), ("a program that only sends", bare))])
    print(f"× a program that only sends: {figures['p50Ms'] / bare['p50Ms']:.2f} to the first half, "
          f"{figures['maxMs'] / bare['maxMs']:.2f} to the last")
    report.verdict("messages missed by the reader that got fewest", FAN_OUT - figures["perConnectionMin"], 0)
    report.verdict(f"a message to the last of {count:,} readers, ms", figures["maxMs"], 200)
