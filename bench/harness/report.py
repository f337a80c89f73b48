"""Tables on the terminal, JSON on disk, and the targets that both share."""
import contextlib
import io
import json
import os
import platform
import statistics
import sys
import time

BUSY_LOAD = 0.5


def progress(text):
    print(f"  … {text}", file=sys.stderr, flush=True)


def table(title, columns, rows):
    """Prints rows of text under a title, columns as wide as their widest cell."""
    cells = [columns] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        line = row[0].ljust(widths[0]) + "".join("  " + cell.rjust(width)
                                                 for cell, width in zip(row[1:], widths[1:]))
        print("  " + line.rstrip())
        if number == 0:
            print("  " + "-" * (sum(widths) + 2 * (len(widths) - 1)))
    sys.stdout.flush()


def cpu_table(title, figures, reference):
    rows = list(figures.rows(reference))
    columns = ["server", "CPU µs/request", f"× {reference}", "spread", "bytes", "busy", "requests/s",
               "p50 µs", "p99 µs", "p99.9 µs"]
    table(title, columns, [_cpu_cells(row) for row in rows])
    return rows


def _cpu_cells(row):
    spread = f"{min(row['ratios']):.2f}–{max(row['ratios']):.2f}"
    return [row["target"], f"{row['server_cpu_us_per_request']:.3f}", f"{row['ratio']:.2f}", spread,
            f"{row['bytes_per_answer']:.0f}", f"{row['server_busy']:.2f}", f"{row['rps']:,.0f}",
            f"{row['p50_us']:.0f}", f"{row['p99_us']:.0f}", f"{row['p999_us']:.0f}"]


class Report:
    """The outcome of one benchmark: sections of figures, and targets met or missed."""

    def __init__(self, name):
        self.name = name
        self.sections = {}
        self.verdicts = []  # targets: figures with a limit; and figures without one
        self.load_at_start = os.getloadavg()[0]
        if self.load_at_start > BUSY_LOAD:
            progress(f"something else is running here (load {self.load_at_start:.1f}): expect wide spreads")

    def add(self, section, value):
        self.sections[section] = value

    def verdict(self, what, value, limit, below=False):
        """Met when value ≤ limit (< limit with `below`)."""
        relation = "<" if below else "≤"
        self._verdict(what, value, limit, relation, _meets(relation, value, limit))

    def verdict_at_least(self, what, value, limit):
        self._verdict(what, value, limit, "≥", _meets("≥", value, limit))

    def figure(self, what, value, more_is_better=False):
        """A figure without a limit, for `--compare`."""
        self._verdict(what, value, None, "≥" if more_is_better else "≤", True)

    def _verdict(self, what, value, limit, relation, met):
        self.verdicts.append({"target": what, "value": round(value, 4), "limit": limit, "relation": relation,
                              "met": met})

    def finish(self, folder):
        """Prints the targets and writes NAME.json. The names of the targets that were missed."""
        targets = [v for v in self.verdicts if v["limit"] is not None]
        if targets:
            table("targets", ["target", "measured", "limit", ""],
                  [[v["target"], f"{v['value']:.2f}", limit_of(v), "pass" if v["met"] else "FAIL"] for v in targets])
        self.write(folder, self.name, {"sections": self.sections, "verdicts": self.verdicts})
        return [f"{self.name}: {v['target']}" for v in targets if not v["met"]]

    def write(self, folder, name, content):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name + ".json")
        machine = {"cpus": os.cpu_count(), "arch": platform.machine(), "kernel": platform.release(),
                   "load_at_start": self.load_at_start}
        document = {"bench": self.name, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine, **content}
        with open(path, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2, ensure_ascii=False)
            out.write("\n")
        print(f"\nwritten to {path}")


def limit_of(verdict):
    return "" if verdict["limit"] is None else f"{verdict['relation']} {verdict['limit']:g}"


class Comparison(Report):
    """The targets and figures of one benchmark in several rounds: of two builds, measured in turn, or of one alone."""

    def __init__(self, name, builds):
        super().__init__(name)
        self.builds = builds  # this one's name, and that of the one that it is compared with
        self.rounds = []  # {build: {target: verdict}}

    @contextlib.contextmanager
    def quiet(self):
        """Hides the tables of a single run."""
        with contextlib.redirect_stdout(io.StringIO()):
            yield

    def add_round(self, reports):
        self.rounds.append({build: {v["target"]: v for v in report.verdicts} for build, report in reports.items()})

    def finish(self, folder):
        this, *others = self.builds
        rows, missed, compared = [], [], []
        for target, sample in self.rounds[0][this].items():
            values = {build: [each[build][target]["value"] for each in self.rounds if target in each[build]] for build in self.builds}
            median = statistics.median(values[this])
            ratios = [[one / two for one, two in zip(values[this], values[other]) if two] for other in others]
            met = sample["limit"] is None or _meets(sample["relation"], median, sample["limit"])
            if not met:
                missed.append(f"{self.name}: {target}")
            rows.append([target, *(_median_and_spread(values[build]) for build in self.builds),
                         *(f"{statistics.median(each):.2f}" if each else "–" for each in ratios),
                         "more is better" if sample["relation"] == "≥" else "", limit_of(sample), "" if met else "FAIL"])
            compared.append({"target": target, "limit": sample["limit"], "relation": sample["relation"], "values": values, "met": met})
        table(f"{self.name}: median of {len(self.rounds)} rounds (spread)",
              ["", *self.builds, *(f"this × {other}" for other in others), "", "limit", ""], rows)
        self.write(folder, self.name + (".compare" if others else ".runs"), {"builds": self.builds, "targets": compared})
        return missed


def _meets(relation, value, limit):
    return {"≤": value <= limit, "<": value < limit, "≥": value >= limit}[relation]


def _median_and_spread(values):
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"
