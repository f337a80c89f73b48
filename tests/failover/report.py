"""One page about what was broken, what clients saw of it, and what became of everything that was accepted.

Each test adds a section, kept as a file of its own, so that several runs of pytest fill one page: sections/NAME.json, report.html.
"""
import json
import re
import time
from html import escape

from plot import stacked

STYLE = """
:root { color-scheme: light dark } body { font: 15px/1.45 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #8884 }
td:first-child, th:first-child { text-align: left } figure { margin: 1.2em 0 } figcaption { font-weight: 600 }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: currentColor } .grid { stroke: #8883 }
.fault { stroke: #d22; stroke-dasharray: 4 3 } svg text.mark { fill: #d22; font-weight: 700 }
.key { margin-right: 1.2em; white-space: nowrap; font-size: 13px } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em }
.lost { color: #d22; font-weight: 600 }
"""


def _table(head, rows):
    cells = "".join(f"<th>{escape(str(cell))}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _seconds(value):
    return "–" if value < 0.05 else f"{value:.1f} s"


class Report:
    def __init__(self, folder):
        self.folder = folder
        (folder / "sections").mkdir(parents=True, exist_ok=True)

    def add(self, title, timeline, windows, accounts, notes=()):
        """windows: {fault: (moment, until)}; accounts: {what: (accepted, found, lost)}; notes: sentences."""
        section = {
            "title": title, "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "faults": timeline.faults, "notes": list(notes),
            "load": timeline.per_second(),
            "errors": timeline.per_second(lambda kind, outcome: outcome != "ok", lambda kind, outcome: f"{kind}: {outcome}"),
            "recovery": {name: timeline.recovery(*window) for name, window in windows.items()}, "accounts": accounts,
        }
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        (self.folder / "sections" / f"{name}.json").write_text(json.dumps(section), encoding="utf-8")

    def write(self):
        """All sections there are, in the order of their making."""
        files = sorted((self.folder / "sections").glob("*.json"), key=lambda file: file.stat().st_mtime)
        sections = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        body = "".join(map(self._section, sections))
        contents = "".join(f"<li>{escape(each['title'])}</li>" for each in sections)
        (self.folder / "report.html").write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>freshet: failover</title><style>{STYLE}</style>'
            f"<h1>Failover under load</h1><p>Written by <code>./dev test failover</code>. Clients retry a lost connection and a 503 with the"
            f" same eventId or Idempotency-Key; every attempt is counted. Red lines are faults, numbered as in the list below each"
            f" plot.</p><ol>{contents}</ol>{body}</html>", encoding="utf-8")

    def _section(self, section):
        faults = section["faults"]
        marks = "".join(f"<li>{escape(name)}, at {at:.1f} s</li>" for at, name in faults)
        notes = "".join(f"<p>{escape(note)}</p>" for note in section["notes"])
        return (f"<h2>{escape(section['title'])}</h2><p>{section['at']}</p>{notes}"
                + stacked("Load held: successful answers a second", section["load"], faults)
                + stacked("Errors seen by clients, by kind and second", section["errors"], faults)
                + f"<ol>{marks}</ol>" + self._recovery(section["recovery"]) + self._accounts(section["accounts"]))

    @staticmethod
    def _recovery(recovery):
        kinds = sorted({kind for each in recovery.values() for kind in each})
        rows = [[escape(name), *(f"{_seconds(each[kind][0])} / {_seconds(each[kind][1])} / {each[kind][2]}" if kind in each else ""
                                 for kind in kinds)] for name, each in recovery.items()]
        return ("<h3>Time to recover</h3><p>From the fault to the success after the last failure / longest time without a success /"
                f" failed attempts.</p>{_table(['', *kinds], rows)}")

    @staticmethod
    def _accounts(accounts):
        rows = [[escape(what), f"{accepted:,}", f"{found:,}", f'<span class="lost">{lost:,}</span>' if lost else "0"]
                for what, (accepted, found, lost) in accounts.items()]
        return f"<h3>Everything accepted</h3>{_table(['', 'accepted', 'found', 'lost'], rows)}"
