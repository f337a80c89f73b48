#!/usr/bin/env python3
"""Draws a dashboard of deploy/grafana from the data of a Prometheus, for the documentation: not by Grafana, by matplotlib.

    tools/dashboard_picture.py http://127.0.0.1:9090 overview docs/pictures/overview.png [MINUTES]

Needs python3-matplotlib. No test and no other tool uses it.
"""
import datetime
import json
import math
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
import matplotlib.ticker  # noqa: E402 pylint: disable=wrong-import-position

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
        return f"{value / 2**20:.3g} MiB" if value >= 2**20 else f"{value / 2**10:.3g} KiB"
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
                  values, linewidth=1.8, label=name or "value")
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=6))
    axes.yaxis.set_major_formatter(lambda value, _: with_unit(value, unit))
    highest = max((value for _, _, values in series[:SERIES_MAX] for value in values), default=0)
    if unit == "bytes" and highest > 0:
        axes.yaxis.set_major_locator(matplotlib.ticker.MultipleLocator(2 ** math.ceil(math.log2(highest / 5))))
    axes.set_ylim(-0.04 * (highest or 1), 1.1 * (highest or 1))  # a line at 0 lies above the frame
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=9)
    if series:  # below the graph, where it hides no line
        axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.1), ncol=3, frameon=False, borderaxespad=0.3)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes, color="#888888")


def frame_of(place, rows, height):
    """Left, bottom, width and height of a panel's graph, with room for its title, labels and legend around it."""
    head, cell_height = 0.5 / height, (1 - 0.5 / height) / rows
    left, width = place["x"] / 24, place["w"] / 24
    top = 1 - head - place["y"] * cell_height
    tall = place["h"] * cell_height
    return left + 0.055, top - tall + 0.95 / height, width - 0.075, tall - 1.3 / height


def main(address, name, path, minutes="5"):
    dashboard = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    end = time.time()
    begin = end - 60 * float(minutes)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = rows * 0.5
    figure = plt.figure(figsize=(14, height), dpi=100)
    figure.suptitle(dashboard["title"], x=0.01, y=1 - 0.15 / height, va="top", ha="left", fontsize=16)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        axes = figure.add_axes(frame_of(place, rows, height))
        axes.set_title(panel["title"], fontsize=12, loc="left")
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
