"""Tables on the terminal, JSON on disk, and the verdicts that both share."""
import json
import os
import platform
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
        self.verdicts = []
        self.load_at_start = os.getloadavg()[0]
        if self.load_at_start > BUSY_LOAD:
            progress(f"something else is running here (load {self.load_at_start:.1f}): expect wide spreads")

    def add(self, section, value):
        self.sections[section] = value

    def verdict(self, what, value, limit, below=False):
        """Met when value ≤ limit (< limit with `below`)."""
        self._verdict(what, value, limit, "<" if below else "≤", value < limit if below else value <= limit)

    def verdict_at_least(self, what, value, limit):
        self._verdict(what, value, limit, "≥", value >= limit)

    def _verdict(self, what, value, limit, relation, met):
        self.verdicts.append({"target": what, "value": round(value, 4), "limit": limit, "relation": relation,
                              "met": met})

    def finish(self, folder):
        """Prints the verdicts and writes NAME.json. True when every target was met."""
        if self.verdicts:
            table("targets", ["target", "measured", "limit", ""],
                  [[v["target"], f"{v['value']:.2f}", f"{v['relation']} {v['limit']:g}",
                    "pass" if v["met"] else "FAIL"] for v in self.verdicts])
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, self.name + ".json")
        machine = {"cpus": os.cpu_count(), "arch": platform.machine(), "kernel": platform.release(),
                   "load_at_start": self.load_at_start}
        document = {"bench": self.name, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "machine": machine, "sections": self.sections, "verdicts": self.verdicts}
        with open(path, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2, ensure_ascii=False)
            out.write("\n")
        print(f"\nwritten to {path}")
        return all(v["met"] for v in self.verdicts)
