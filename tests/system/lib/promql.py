"""What a PromQL expression names: its metrics, and the labels it uses of each. Enough of the grammar for ours."""
import json
import re

from .engines import ROOT

KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset", "inf", "nan"}
OF_TARGETS = {"job", "instance"}  # labels that Prometheus adds
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\(|\{[^{}]*\})?")
GROUPING = re.compile(r"\b(by|without|on|ignoring)\s*\(([^)]*)\)")


def named(expression):
    """({metric: labels in its matchers}, labels in groupings)."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\[[^\]]*\]|#.*|\boffset \w+", "", text)
    grouped = {label.strip() for _, labels in GROUPING.findall(text) for label in labels.split(",") if label.strip()}
    text = GROUPING.sub(" ", text)
    metrics = {}
    for name, rest in SELECTOR.findall(text):
        if name in KEYWORDS or rest == "(":
            continue
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", rest))
        metrics.setdefault(name, set()).update(labels)
    return metrics, grouped


def dashboards():
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "deploy/grafana").glob("*.json"))}


def panel_queries():
    """[(dashboard, panel's title, expression, legend)], as Grafana sends them with everything selected."""
    found = []
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$job", "freshet.*").replace("$instance", ".*").replace("$__rate_interval", "15s")
                found.append((name, panel["title"], expression, target["legendFormat"]))
    return found
