"""What clients saw, second by second: every attempt with its kind and what came of it, and the faults meanwhile.

A kind of request has recovered from a fault when it succeeds again and its last failure is past. A request that only waits
fails nothing: the longest time without a success counts as well.
"""
import collections
import http.client
import socket
import threading
import time

from lib.writers import Patient

OK = "ok"


def outcome_of(result):
    """A word for an answer's status or an exception."""
    if isinstance(result, int):
        return OK if result < 500 else str(result)
    if isinstance(result, ConnectionRefusedError):
        return "refused"
    if isinstance(result, (socket.timeout, TimeoutError)):
        return "timeout"
    return "cut" if isinstance(result, (OSError, EOFError, http.client.HTTPException)) else "other"


class Timeline:
    """Attempts [(seconds since the start, kind, outcome)] and faults [(seconds, name)]."""

    def __init__(self):
        self.began, self.lock = time.monotonic(), threading.Lock()
        self.attempts, self.faults = [], []

    def now(self):
        return time.monotonic() - self.began

    def note(self, kind, result):
        with self.lock:
            self.attempts.append((self.now(), kind, outcome_of(result)))

    def fault(self, name):
        """A moment to be marked; returns it."""
        at = self.now()
        self.faults.append((at, name))
        return at

    def kinds(self):
        return sorted({kind for _, kind, _ in self.attempts})

    def since(self, moment, kind, outcome=OK):
        """How many since a moment."""
        with self.lock:
            return sum(1 for at, what, how in reversed(self.attempts) if at >= moment and (what, how) == (kind, outcome))

    def per_second(self, wanted=lambda kind, outcome: outcome == OK, by=lambda kind, outcome: kind):
        """{name: [count of each second]}"""
        seconds = int(self.now()) + 1
        found = collections.defaultdict(lambda: [0] * seconds)
        for at, kind, outcome in self.attempts:
            if wanted(kind, outcome):
                found[by(kind, outcome)][int(at)] += 1
        return dict(found)

    def recovery(self, fault, until):
        """{kind: (seconds from the fault to the success after the last failure, longest time without a success, failures)} of those
        kinds that were sent when it came."""
        result = {}
        for kind in self.kinds():
            own = [(at, how) for at, what, how in self.attempts if what == kind and fault - 2 <= at < until]
            if not any(at < fault for at, _ in own):
                continue
            failures = [at for at, how in own if how != OK and at >= fault]
            successes = [at for at, how in own if how == OK]
            after = [at for at in successes if failures and at > failures[-1]]
            healed = after[0] - fault if after else (until - fault if failures else 0.0)
            times = [at for at in successes if at >= fault]
            before = max([at for at in successes if at < fault], default=fault)
            gaps = [two - one for one, two in zip([before, *times], [*times, until])]
            result[kind] = (healed, max(gaps), len(failures))
        return result


class Watched(Patient):
    """A patient client whose attempts are noted. `kinds`: by method."""

    def __init__(self, servers, token, first=0, *, timeline, kinds):
        super().__init__(servers, token, first)
        self.timeline, self.kinds = timeline, kinds

    def attempt(self, method, path, body, headers):
        try:
            answer = super().attempt(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.timeline.note(self.kinds[method], error)
            raise
        self.timeline.note(self.kinds[method], answer.status)
        return answer
