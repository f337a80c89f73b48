#!/usr/bin/env python3
"""Draws a dashboard of deploy/grafana from the data of a Prometheus, for the documentation: not by Grafana, by matplotlib.

    tools/dashboard_picture.py http://127.0.0.1:9090 overview docs/pictures/overview.png [MINUTES]

Needs python3-matplotlib. No test and no other tool uses it.
"""
import datetime
import json
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates  # noqa: E402 pylint: disable=wrong-import-position
import matplotlib.pyplot as plt  # noqa: E402 pylint: disable=wrong-import-position

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "deploy/grafana"
SERIES_MAX = 8


def fetch(address, expression, begin, end, step):
    expression = expression.replace("$job", "freshet.*").replace("$instance", ".*").replace("$__rate_interval", "20s")
    query = urllib.parse.urlencode({"query": expression, "start": begin, "end": end, "step": step})
    with urllib.request.urlopen(f"{address}/api/v1/query_range?{query}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def legend_of(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()


def with_unit(value, unit):
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value:.3g}"


def draw_number(axes, series, unit):
    axes.axis("off")
    rows = [(name, values[-1]) for name, _, values in series] or [("no data", 0)]
    text = "\n".join(f"{with_unit(value, unit)}" + (f"  {name}" if name else "") for name, value in rows[:3])
    axes.text(0.5, 0.45, text, ha="center", va="center", fontsize=15, color="#1a7f37")


def draw_graph(axes, series, unit):
    for name, times, values in series[:SERIES_MAX]:
        axes.plot([datetime.datetime.utcfromtimestamp(at) for at in times],
                  values, linewidth=1, label=name or "value")
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=6))
    axes.yaxis.set_major_formatter(lambda value, _: with_unit(value, unit))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)
    if series:
        axes.legend(fontsize=6, loc="upper left", framealpha=0.6)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes, color="#888888")


def main(address, name, path, minutes="5"):
    dashboard = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    end = time.time()
    begin = end - 60 * float(minutes)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = plt.figure(figsize=(14, rows * 0.42), dpi=80)
    figure.suptitle(dashboard["title"], x=0.01, ha="left", fontsize=13)
    grid = figure.add_gridspec(rows, 24, hspace=3.5, wspace=6, left=0.06, right=0.98, top=1 - 1.6 / rows / 0.42 / 2, bottom=0.04)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[place["y"]:place["y"] + place["h"], place["x"]:place["x"] + place["w"]])
        axes.set_title(panel["title"], fontsize=9, loc="left")
        series = []
        for target in panel["targets"]:
            for found in fetch(address, target["expr"], begin, end, max(1, round((end - begin) / 150))):
                points = [(float(at), float(value)) for at, value in found["values"] if value != "NaN"]
                if points:
                    series.append((legend_of(target["legendFormat"], found["metric"]), *zip(*points)))
        draw = draw_number if panel["type"] == "stat" else draw_graph
        draw(axes, series, panel["fieldConfig"]["defaults"]["unit"])
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
