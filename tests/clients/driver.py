"""A client in a process of its own, which a test tells what to do: a JSON line a command, a JSON line an answer."""
import itertools
import json
import os
import queue
import subprocess
import threading

from lib.wait import PATIENCE


class Refusal(Exception):
    """What the client raised: its class, and the members that a program looks at."""

    def __init__(self, error):
        super().__init__(str(error))
        self.name, self.code, self.status = error["name"], error.get("code"), error.get("status")
        self.more = error


class Driver:
    def __init__(self, command, env, log, url, tenant="demo", **options):
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors)
        self.numbers = itertools.count(1)
        self.lock = threading.Lock()
        self.waiting = {}
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.log = log
        self("open", url=url, tenant=tenant, **options)

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            with self.lock:
                waiting = self.waiting.pop(answer["id"])
            waiting.put(answer)

    def begin(self, command, **args):
        """The command is under way; the result's call waits for it."""
        answers = queue.Queue()
        with self.lock:
            number = next(self.numbers)
            self.waiting[number] = answers
            self.process.stdin.write(json.dumps({"id": number, "do": command, "args": args}).encode() + b"\n")
            self.process.stdin.flush()

        def finish(timeout=PATIENCE):
            try:
                answer = answers.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"{command} {args}: no answer\n{self.log.read_text()}") from None
            if "error" in answer:
                raise Refusal(answer["error"])
            return answer["ok"]
        return finish

    def __call__(self, command, **args):
        return self.begin(command, **args)()

    def stop(self):
        """A client that was closed leaves nothing behind: its process ends by itself."""
        try:
            self("end")
            self.process.stdin.close()
            assert self.process.wait(PATIENCE) == 0, self.log.read_text()
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        assert "Traceback" not in self.log.read_text() and "Unhandled" not in self.log.read_text(), self.log.read_text()
