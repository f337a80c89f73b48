"""Processes and processors: start and end servers, pin them, read their memory.

Everything started here is ended by `Processes.close()`, by its own process id.
"""
import os
import signal
import socket
import subprocess
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with {process.returncode} before it listened")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args[0]} does not listen on port {port}")


def cpus():
    return sorted(os.sched_getaffinity(0))


def split_cpus(server_cpus):
    """(server's, generator's) processors; None for both when there are too few to keep them apart."""
    every = cpus()
    if len(every) <= server_cpus:
        return None, None
    return every[:server_cpus], every[server_cpus:]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listing:
        return [int(word) for word in listing.read().split()]


def status_kib(pid, field):
    """A field such as RssAnon of /proc/PID/status, in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise KeyError(field)


def cpu_seconds(pid):
    """User and system time of a process so far, by the kernel's clock of it (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


class Processes:
    """The servers of one benchmark."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, name, command, port=None, on_cpus=None, env=None):
        """Starts `command`, its output in NAME.log, and waits until it listens on `port`."""
        log = open(os.path.join(self.folder, name + ".log"), "wb")
        pin = (lambda: os.sched_setaffinity(0, on_cpus)) if on_cpus else None
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   preexec_fn=pin, env=env)
        log.close()
        self.running.append(process)
        if port is not None:
            wait_for_port(port, process)
        return process

    def stop(self, process):
        self.running.remove(process)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self):
        for process in list(reversed(self.running)):
            self.stop(process)
