"""Waiting for something to become true, with so much patience that a slow machine never decides a test."""
import os
import random
import socket
import time
from pathlib import Path

PATIENCE = float(os.environ.get("FRESHET_TEST_PATIENCE", "60"))  # less, for whoever waits for a failure


def eventually(condition, timeout=PATIENCE, interval=None):
    """Calls condition until it returns something true, and returns that. Without an interval it is called less and less often, up to ten
    times a second: whatever is waited for needs the processor as well.

    AssertionError counts as "not yet", so that a condition may be written with asserts. When time is up the last
    one is raised as it is; a condition that was only ever false raises AssertionError naming it.
    """
    deadline = time.monotonic() + timeout
    pause = interval or 0.01
    while True:
        try:
            last, answer = None, condition()
            if answer:
                return answer
        except AssertionError as error:
            last, answer = error, None
        if time.monotonic() >= deadline:
            if last is not None:
                raise last
            name = getattr(condition, "__name__", condition)
            raise AssertionError(f"{name} was still {answer!r} after {timeout} s")
        time.sleep(pause)
        if interval is None:
            pause = min(1.3 * pause, 0.1)


_given_out = set()


def free_port():
    """Outside of the range that clients get theirs from, so that it is free again for a server that comes back. No port twice:
    whoever was given it may not have taken it yet."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    outside = [*range(10240, max(first, 10240)), *range(max(last + 1, 10240), 65536)]
    for port in random.SystemRandom().sample(outside, min(200, len(outside))):
        if port in _given_out:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_out.add(port)
        return port
    raise RuntimeError("no port is free")
