"""When is an operation over, all that it started included? When every thread of every process that takes part sleeps, and went
on sleeping for a while: none of them ran, and none waits for a processor. A loaded machine makes that come later, not wrong: a
thread that has work and no processor is not asleep.

Work that waits for a clock is not seen. The settings of the counted servers have no short clocks in an operation's way.
"""
import os
import time
from pathlib import Path

STILL_SECONDS = 0.02
PATIENCE_SECONDS = 60


def threads_of(pid):
    """(sleeps, switches) of each thread; a thread that is gone is left out."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for name in names:
        try:
            with open(f"/proc/{pid}/task/{name}/status", "rb") as status:
                text = status.read()
        except OSError:
            continue
        state = text[text.index(b"State:\t") + 7:][:1]
        voluntary = text.index(b"\nvoluntary_ctxt_switches:\t")
        yield state == b"S", (pid, name, text[voluntary:])


def snapshot(pids):
    """All switches so far, or None when a thread does not sleep."""
    seen = set()
    for pid in pids:
        for sleeps, switches in threads_of(pid):
            if not sleeps:
                return None
            seen.add(switches)
    return seen


def backends(server, name):
    """PostgreSQL's processes for a database, by their titles."""
    postmaster = (server.data / "postmaster.pid").read_text().split()[0]
    for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if f" {name} ".encode() in title:
            yield int(pid)


def wait(pids_now, still_seconds=STILL_SECONDS):
    """Waits until all of pids_now() are quiet. With 0 seconds they may still wait for something that is under way."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    last, since = None, time.monotonic()
    while True:
        now = snapshot(pids_now())
        if now is None or now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since >= still_seconds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"still at work after {PATIENCE_SECONDS} s")
        time.sleep(min(0.002, still_seconds))
