"""`stream`: chats live. A message to its line at the client; what an idle stream costs; one message to 10,000 readers.

Times are from just before the POST to the line at the reader, so the commit is part of them.
"""
import json
import subprocess
import threading
import time

from . import freshet as program
from . import machine
from .freshet import TENANT
from .report import progress, table

PROJECT = "00000000-0000-4000-9000-000000000001"
USER = "3f0c2a52-6f0e-4d5e-9d0c-1f4f6f1f7a10"  # the token's subject
SESSIONS = 100
RATE = 200
SECONDS = 15
WRITERS = 8
IDLE = 10_000
FAN_OUT = 10  # messages, one at a time
SETTLE_SECONDS = 3
SETTINGS = {"chat": {"agents": [{"name": "quiet", "reply": "ok"}], "default-agent": "quiet"},
            "http": {"limits": {"connections": 20_000}}}


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
        running = freshet.start("freshet", 2)
        try:
            latency(bench, report, running)
            idle(bench, report, running)
            fan_out(bench, report, running)
        finally:
            bench.processes.close()


class Reader:
    """A process of many streams; `ready` once all are up to date."""

    def __init__(self, bench, running, target, count, seconds):
        self.process = subprocess.Popen(
            [bench.binary("watch_reader"), "--port", str(running.port), "--path", target, "--header",
             f"Authorization: Bearer {running.freshet.token}", "--connections", str(count), "--seconds", str(seconds)],
            stdout=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())["ready"]
        progress(f"{self.ready:,} streams are up to date")

    def figures(self):
        return json.loads(self.process.communicate(timeout=300)[0])

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def say(running, name):
    body = {"content": f"sentUs {time.time_ns() // 1000}"}
    answer = program.ask(running.port, program.post(path(name, "message"), running.freshet.token, body))
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {answer.body.decode(errors='replace')}")


def say_many(running, seconds):
    """RATE messages a second over all sessions; how many there were."""
    started, numbers, lock = time.monotonic(), iter(range(RATE * seconds)), threading.Lock()

    def write():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, started + number / RATE - time.monotonic()))
            say(running, session(number % SESSIONS))
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


def idle(bench, report, running):
    """Memory of streams that wait, each of a session of its own."""
    count = 1000 if bench.quick else IDLE
    before = machine.status_kib(running.pid, "RssAnon")
    reader = Reader(bench, running, path("00000000-0000-4000-8000-############", "stream"), count, 1)
    try:
        each = (machine.status_kib(running.pid, "RssAnon") - before) / count
        reader.figures()
    finally:
        reader.close()
    report.add("idle", {"streams": count, "kibEach": each})
    table(f"{count:,} idle streams, each of a session of its own", ["KiB each"], [[f"{each:.1f}"]])
    report.verdict("an idle stream, KiB", each, 8)


def fan_out(bench, report, running):
    """One message at a time to all readers of one session."""
    count = 1000 if bench.quick else IDLE
    reader = Reader(bench, running, path(session(IDLE), "stream"), count, FAN_OUT + SETTLE_SECONDS)
    try:
        for _ in range(FAN_OUT):
            say(running, session(IDLE))
            time.sleep(1)
        figures = reader.figures()
    finally:
        reader.close()
    report.add("fanOut", figures)
    table(f"one message to {count:,} readers", ["messages", "fewest at one", "to the first half, ms", "to the last, ms", "cut off"],
          [[FAN_OUT, figures["perConnectionMin"], f"{figures['p50Ms']:.1f}", f"{figures['maxMs']:.1f}", figures["closed"]]])
    report.verdict("messages missed by the reader that got fewest", FAN_OUT - figures["perConnectionMin"], 0)
    report.verdict(f"a message to the last of {count:,} readers, ms", figures["maxMs"], 200)
