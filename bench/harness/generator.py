"""Runs `load` against a target and reads its line of JSON; interleaves several targets in rounds."""
import dataclasses
import json
import os
import statistics
import subprocess


@dataclasses.dataclass
class Target:
    """A server as the generator sees it. `name` is the column in the tables and in the JSON."""

    name: str
    port: int
    pids: list
    requests: str
    protocol: str = "http"
    accept: str = "200"
    link: str = "plain"  # or tls (kept open), full, resumed: a handshake for each request


def write_requests(path, requests):
    """Many raw requests, as the netstrings that `load` cycles through."""
    with open(path, "wb") as out:
        for request in requests:
            out.write(b"%d:%s," % (len(request), request))
    return path


def measure(binary, target, depth, seconds, on_cpus=None, spin=False):
    """One run. A failed answer fails the benchmark: a fast error is no speed."""
    pin = (lambda: os.sched_setaffinity(0, on_cpus)) if on_cpus else None
    command = [binary, "--connect", f"127.0.0.1:{target.port}", "--requests", target.requests,
               "--protocol", target.protocol, "--accept", target.accept, "--link", target.link,
               "--pipeline", str(depth), "--seconds", str(seconds), "--server-pid", ",".join(map(str, target.pids))]
    if spin:  # on a processor of its own it need never sleep, and no server pays for waking it
        command.append("--spin")
    result = subprocess.run(command, preexec_fn=pin, stdout=subprocess.PIPE, check=True)
    figures = json.loads(result.stdout)
    if figures["errors"] or not figures["requests"]:
        raise RuntimeError(f"{target.name}: {figures['errors']} errors, the first a "
                           f"{figures['first_bad_status']}, in {figures['requests']} answers")
    if not figures["server_cpu_us_per_request"]:
        raise RuntimeError(f"{target.name}: the server had no processor time; something else has the machine")
    return figures


def generate(binary, port, requests, *options, pids=()):
    """One run of `load` with its own words for options; the figures, whatever was answered but errors."""
    return generate_at(binary, [port], requests, *options, pids=pids)[0]


def generate_at(binary, ports, requests, *options, pids=()):
    """The same against several servers at once: the figures of each. They end with us, however that is."""
    options = [*map(str, options), *(["--server-pid", ",".join(map(str, pids))] if pids else [])]
    runs = []
    try:
        for port in ports:
            runs.append(subprocess.Popen([binary, "--connect", f"127.0.0.1:{port}", "--requests", requests, *options],
                                         stdout=subprocess.PIPE))
        return [_figures(run) for run in runs]
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
                run.wait()


def _figures(run):
    out, _ = run.communicate()
    if run.returncode:
        raise RuntimeError(f"load ended with {run.returncode}")
    figures = json.loads(out)
    if figures["errors"] or not figures["requests"]:
        raise RuntimeError(f"{figures['errors']} errors, the first a {figures['first_bad_status']}, "
                           f"in {figures['requests']} answers")
    return figures


class Rounds:
    """Targets measured in turn, several rounds, so that a slow moment of the machine meets all of them.

    A ratio is the median of the per-round ratios, not the ratio of medians: both sides of each were
    measured within seconds of one another.
    """

    def __init__(self, binary, rounds, seconds):
        self.binary = binary
        self.rounds = rounds
        self.seconds = seconds

    def run(self, targets, depth, on_cpus=None, report=None, spin=False):
        figures = {target.name: [] for target in targets}
        for number in range(self.rounds):
            # Every other round runs backwards, so that no target always follows the same one.
            for target in targets if number % 2 == 0 else list(reversed(targets)):
                figures[target.name].append(measure(self.binary, target, depth, self.seconds, on_cpus, spin))
            if report:
                report(f"round {number + 1} of {self.rounds}")
        return Figures(figures)


class Figures:
    """What some rounds measured, by target."""

    def __init__(self, by_target):
        self.by_target = by_target

    def median(self, name, field="server_cpu_us_per_request"):
        return statistics.median(run[field] for run in self.by_target[name])

    def ratios(self, name, to, field="server_cpu_us_per_request"):
        return [one[field] / other[field] for one, other in zip(self.by_target[name], self.by_target[to])]

    def ratio(self, name, to):
        return statistics.median(self.ratios(name, to))

    def only(self, word):
        """The targets that have `word` in their name."""
        return Figures({name: runs for name, runs in self.by_target.items() if word in name})

    def rows(self, reference):
        fields = ("server_cpu_us_per_request", "bytes_per_answer", "server_busy", "client_cpu_us_per_request",
                  "rps", "p50_us", "p99_us", "p999_us")
        for name in self.by_target:
            row = {"target": name, "ratio": self.ratio(name, reference),
                   "ratios": [round(ratio, 4) for ratio in self.ratios(name, reference)]}
            row.update((field, self.median(name, field)) for field in fields)
            yield row
