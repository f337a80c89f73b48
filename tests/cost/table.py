"""The limits: tests/cost/table.md, read as it is; and what is wrong with figures that were counted.

Run as a program it prints figures as a page: python3 table.py FOLDER, a folder of *.json files of counted figures.
"""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATH = HERE / "table.md"
PRINTED = HERE.parent.parent / "bench" / "COSTS.md"
INSTRUCTIONS = "instructions"

PAGE = """# What an operation costs

Counted, not timed: `./dev bench costs` prints this page. The limits are in [tests/cost/table.md](../tests/cost/table.md), how it is
counted in [tests/cost/README.md](../tests/cost/README.md).

"""


@dataclass
class Row:
    name: str
    limits: dict
    line: int


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(text):
    return int(text.replace(",", ""))


def read(path=PATH):
    """(columns, {name: Row}) of a page's one table."""
    columns, rows = [], {}
    for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        name, *values = cells(line)
        if not columns:
            columns = values
            continue
        assert len(values) == len(columns) and name not in rows, f"{path}:{line_number}"
        rows[name] = Row(name, dict(zip(columns, map(number, values))), line_number)
    return columns, rows


def exceeded(row, figures):
    """A sentence for each cell that is exceeded."""
    return [f"{row.name}: {column} {figures[column]:,} > {limit:,} (tests/cost/table.md:{row.line})"
            for column, limit in row.limits.items() if column in figures and figures[column] > limit]


def gather(folder):
    """Figures of all files: {name: {column: figure}}."""
    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        for name, figures in json.loads(path.read_text(encoding="utf-8")).items():
            found.setdefault(name, {}).update(figures)
    return found


def page(folder):
    columns, rows = read()
    found = gather(folder)
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in rows:
        missing = [column for column in columns if column not in found.get(name, {})]
        if missing:
            sys.exit(f"{name}: {missing[0]} was not counted")
        lines.append(f"| {name} | " + " | ".join(f"{found[name][column]:,}" for column in columns) + " |")
    return PAGE + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
