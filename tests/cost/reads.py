"""How many rows each run of a statement reads of each table: PostgreSQL's own counts, as auto_explain logs them with every plan.

A statement that is prepared while its tables are empty keeps its plan until PostgreSQL analyzes them. To an empty table, a plan that
reads all of it costs no more than a lookup. Such a plan shows in the second half of a statement's runs: they read more than the first.
"""
import collections
import re
from dataclasses import dataclass, field

SETTINGS = """
session_preload_libraries = 'auto_explain'
auto_explain.log_min_duration = 0
auto_explain.log_analyze = on
auto_explain.log_timing = off
auto_explain.log_nested_statements = on
log_line_prefix = '@@ %d %p '
"""
# "->  Index Scan using bus_message_pkey on bus_message m  (cost=… rows=1 width=8) (actual rows=1 loops=3)"
NODE = re.compile(r"(?:->  )?([^(]*?)  \(cost=\S+ rows=\d+ width=\d+\) \((?:never executed|actual rows=(\d+) loops=(\d+))\)$")
# Of tables alone. What a bitmap finds in an index is counted where the table is read.
SCAN = re.compile(r"(?:Parallel )?(?:Seq Scan|Bitmap Heap Scan|Index (?:Only )?Scan(?: Backward)? using \S+) on (\S+)")
REMOVED = re.compile(r"Rows Removed by (?:Filter|Index Recheck): (\d+)$")
RUNS_MIN = 8  # fewer tell nothing about growth


@dataclass
class Statement:
    """A text, what each of its runs read of each table, and the plan that read most."""

    text: str
    runs: list = field(default_factory=list)  # (backend, rows by table)
    plan: str = ""

    def add(self, backend, plan):
        read = rows_read(plan)
        if all(read.total() > other.total() for _, other in self.runs):
            self.plan = "\n".join(plan)
        self.runs.append((backend, read))

    def of_first_backends(self):
        """Runs of the connections that planned it while little existed. One that plans it later may choose between two indexes by
        their sizes of that moment."""
        first = {backend for backend, _ in self.runs[:len(self.runs) // 20 + 1]}
        return [read for backend, read in self.runs if backend in first]

    def tables(self):
        return set().union(*(read for _, read in self.runs))

    def halves(self, table):
        """Rows per run: of the first half of the runs, and of the second."""
        runs = self.of_first_backends()
        middle = len(runs) // 2
        return [sum(read[table] for read in half) / max(len(half), 1) for half in (runs[:middle], runs[middle:])]

    def grows(self, table):
        """While what exists has tripled. A burst or a bystander adds less."""
        first, second = self.halves(table)
        return len(self.of_first_backends()) >= RUNS_MIN and second > 1.5 * first + 8


def rows_read(plan):
    """Rows that the nodes of a plan returned or filtered out, by table."""
    total, table, loops = collections.Counter(), None, 0
    for line in map(str.strip, plan):
        if node := NODE.match(line):
            scan = SCAN.match(node[1])
            table, loops = scan and scan[1], int(node[3] or 0)
            if table:
                total[table] += loops * int(node[2] or 0)
        elif table and (removed := REMOVED.match(line)):
            total[table] += loops * int(removed[1])
    return total


def _add_run(statements, backend, entry):
    first = next((number for number, line in enumerate(entry) if NODE.match(line.strip())), None)
    if first is not None:
        text = " ".join(" ".join(entry[:first]).split()).removeprefix("Query Text: ")
        statements.setdefault(text, Statement(text)).add(backend, entry[first:])


def statements_of(log_path, database):
    """All that ran in a database, by text."""
    statements, backend, entry, is_plan = {}, None, [], False
    with open(log_path, encoding="utf-8", errors="replace") as log:
        for line in log:
            if line.startswith("@@ "):
                _add_run(statements, backend, entry)
                _, of, backend, kind = line.split(" ", 3)
                entry = []
                is_plan = of == database and kind.startswith("LOG:  duration: ")
            elif is_plan:
                entry.append(line.rstrip("\n"))
    _add_run(statements, backend, entry)
    return statements
