"""C8, R20, O5, I7: what a process with all roles shows to Prometheus, judged by promtool."""
import os
import re
import time

import pytest
import yaml

from lib.busy import DICTIONARY, SETTINGS, Work
from lib.config import merge
from lib.pages import Page
from lib.prometheus import RULES, Prometheus, promtool
from lib.promql import OF_TARGETS, dashboards, named, panel_queries
from lib.refdata import module_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually
from test_metrics_text import parse

# promtool's rules for names against names that the specification fixes: these, and nothing else.
FIXED = {
    "cache_reload_errors": ("R20", 'counter metrics should have "_total" suffix'),
    "postgres_fallback_reads": ("R20", 'counter metrics should have "_total" suffix'),
    "outbox_pending_count": ("O5", 'non-histogram and non-summary metrics should not have "_count" suffix'),
    "outbox_publish_latency_ms": ("O5", "metric names should not contain abbreviated units"),
}


@pytest.fixture(scope="module")
def busy(module_serve, module_refdata_db, token):
    """A server with all roles that has done work of every kind."""
    server = module_serve(module_refdata_db, merge(pod(DICTIONARY), SETTINGS))
    work = Work(server, token).begin()
    for _ in range(2):
        work.round()
    work.settle()
    yield server
    work.close()


def text_of(server):
    with server.client() as client:
        return client.get("/actuator/prometheus").body.decode()


def test_promtool_complains_about_names_of_the_specification_only(busy):
    """C8: `promtool check metrics` on a live scrape."""
    text = eventually(lambda: "idempotency_keys{" in (now := text_of(busy)) and now)
    done = promtool("check", "metrics", text=text)
    complaints = dict(line.split(" ", 1) for line in done.stderr.splitlines())
    assert complaints == {name: complaint for name, (_, complaint) in FIXED.items()}


# ---- names ----

OF_ENGINES = ("kafka_", "redis_", "nats_")
# The first word of a name, and what it is about: docs/METRICS.md has the rule.
PREFIXES = {"process", "freshet", "http", "auth", "db", "bus", "outbox", "idempotency", "hydration", "refdata", "dict", "cache",
            "postgres", "intake", "chat", "entitlement", "notification"}


def families_of(text):
    """{name: (type, labels of its series)}."""
    families = {}
    for name, family in parse(text).items():
        labels = {label.split("=")[0] for _, pairs in family.samples for label in pairs}
        families[name] = (family.type, labels - {"le"})
    return families


def test_every_name_has_a_prefix_of_the_rule(busy, root):
    names = set(families_of(text_of(busy)))
    assert {name.split("_")[0] for name in names} == PREFIXES
    rule = Page(root, root / "docs/METRICS.md").prose.split("## Names")[1].split("##")[0]
    assert PREFIXES | {"kafka", "redis", "nats"} == {name.rstrip("_") for name in re.findall(r"`([a-z]+_)`", rule)}


ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \| (.*) \|$", re.M)


def test_the_page_of_metrics_is_what_a_process_shows(busy, root):
    """docs/METRICS.md: every metric with its type, labels and help, and no other."""
    text = text_of(busy)
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.M))
    rows = {name: (kind, set(re.findall(r"`(\w+)`", labels)), help_text)
            for name, kind, labels, help_text in ROW.findall(Page(root, root / "docs/METRICS.md").prose)}
    shown = {name: row for name, row in rows.items() if not name.startswith(OF_ENGINES)}
    families = families_of(text)
    assert set(shown) == set(families)
    for name, (kind, labels) in families.items():
        assert shown[name][0] == kind and shown[name][2] == helps[name], name
        assert not labels or labels == shown[name][1], name


def test_everything_that_dashboards_and_rules_name_is_in_a_live_scrape(busy, root):
    """P3: metrics and labels; those of the engines are compared with the page here, and live by the tests of the engines."""
    rows = {name: (kind, set(re.findall(r"`(\w+)`", labels)))
            for name, kind, labels, _ in ROW.findall(Page(root, root / "docs/METRICS.md").prose)}
    live = families_of(text_of(busy))
    rules = [(rule["alert"], rule["expr"]) for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len(panel_queries()) > 90
    for where, expression in [*((f"{name}: {title}", query) for name, title, query, _ in panel_queries()), *rules]:
        metrics, grouped = named(expression)
        assert metrics or where == "nothing", where
        known = set(OF_TARGETS)
        for metric, matched in metrics.items():
            if metric in ("up", "ALERTS"):
                continue
            family = metric if metric in rows else re.sub(r"_(bucket|sum|count)$", "", metric)
            assert family in rows, f"{where}: there is no {metric}"
            kind, labels = rows[family]
            assert (kind == "histogram") == (family != metric), f"{where}: {metric} is a {kind}"
            assert family in live or family.startswith(OF_ENGINES), f"{where}: {family} is not in the scrape"
            of_series = labels | OF_TARGETS | ({"le"} if kind == "histogram" else set())
            assert matched <= of_series, f"{where}: {metric} has no label {matched - of_series}"
            known |= of_series
        assert grouped <= known, f"{where}: no metric has {grouped - known}"
    for name, title, expression, legend in panel_queries():
        _, grouped = named(expression)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped | OF_TARGETS, f"{name}: {title}: {legend}"


# ---- dashboards ----

def test_dashboards_are_whole():
    """P3: unique ids, a data source to choose, units, legends, descriptions, panels that do not overlap."""
    found = dashboards()
    assert set(found) == {"overview", "freshness", "writes", "outbox", "idempotency", "hydration", "streams", "engines"}
    assert len({dashboard["uid"] for dashboard in found.values()}) == len(found)
    for name, dashboard in found.items():
        assert dashboard["schemaVersion"] >= 36 and "freshet" in dashboard["tags"] and dashboard["description"], name
        assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "job", "instance"], name
        ids, places = set(), set()
        for panel in dashboard["panels"]:
            grid = panel["gridPos"]
            cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
            assert panel["id"] not in ids and not cells & places and grid["x"] + grid["w"] <= 24, panel["title"]
            assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}" and all(t["legendFormat"] for t in panel["targets"]), panel["title"]
            ids.add(panel["id"])
            places |= cells


# ---- a real Prometheus ----

# Panels without data in a process that has no engine and in which nothing went wrong.
EMPTY = {"Failed loads", "Reads from PostgreSQL", "Unavailable dictionaries", "Updates without a carrier", "Database", "Given up",
         "Dead letters of topics", "Published again", "Collisions", "Expired keys", "Joined", "Time-outs", "Events without effect",
         "Lost versions and differing content", "Connections cut", "Kafka: lag", "Redis: lag of the stream", "NATS: reconnections",
         "Redis: connections and redirects", "Failed attempts", "Known as absent", "Answered without the owner",
         "Dead letters of notification", "Questions to owners", "Streams cut", "TLS handshakes", "Spans"}


@pytest.fixture(scope="module")
def watched(busy, token):
    """A Prometheus that has seen some work."""
    prometheus = Prometheus({"freshet": [busy]})
    work = Work(busy, token).begin()
    try:
        prometheus.start()
        eventually(lambda: prometheus.query('up{job="freshet"} == 1'))
        for _ in range(3):
            work.round()
            time.sleep(1.2)  # a scrape of its own, since a rate needs two
        yield prometheus
    finally:
        work.close()
        prometheus.destroy()


def test_a_prometheus_evaluates_every_rule(watched):
    """P3: none errs, and none fires about a server that is well."""
    def all_evaluated():
        rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 40 and all(rule["health"] != "unknown" for rule in rules)
        return rules

    rules = eventually(all_evaluated)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    firing = {alert["labels"]["alertname"] for alert in watched.get("alerts")["alerts"] if alert["state"] == "firing"}
    assert firing == set()


def test_a_prometheus_evaluates_every_panel_and_has_data_for_them(watched):
    """P3: of those that do not need an engine or a failure."""
    def all_have_data():
        empty = set()
        for name, title, expression, _ in panel_queries():
            if not watched.query(expression) and title not in EMPTY:
                empty.add(f"{name}: {title}")
        assert empty == set()
        return True

    eventually(all_have_data, interval=1)


# ---- the process ----

def test_the_process_shows_what_the_system_counts(busy):
    """C8: process_* as /proc has them."""
    samples = busy.metrics()
    folder = f"/proc/{busy.process.pid}"
    assert 0 < samples["process_start_time_seconds"] <= time.time()
    assert abs(samples["process_start_time_seconds"] - os.stat(folder).st_ctime) < 60
    assert samples["process_cpu_seconds_total"] > 0
    assert samples["process_virtual_memory_bytes"] > samples["process_resident_memory_bytes"] > 1 << 20
    assert 3 < samples["process_open_fds"] < samples["process_max_fds"]
    assert samples["process_threads"] > 1
    again = busy.metrics()
    assert again["process_start_time_seconds"] == samples["process_start_time_seconds"]
    assert again["process_cpu_seconds_total"] >= samples["process_cpu_seconds_total"]


# ---- events ----

OUTBOXES = {"chat": ("chat.event_outbox", "event_type"), "intake": ("intake.event_outbox", "event_type"),
            "entitlement": ("entitlement.outbox_events", "event_type"), "refdata": ("refdata.outbox_event", "'invalidation'"),
            "notification": ("notification.notifications", "event_type")}


def test_every_committed_event_is_counted_once_where_it_is_written(busy, module_refdata_db):
    """O5: outbox_enqueued_total, whatever the log level, against the rows of the tables."""
    def all_are_counted():
        rows = {(module, kind): count for module, (table, column) in OUTBOXES.items()
                for kind, count in module_refdata_db.query(f"select {column}, count(*) from {table} group by 1")}
        samples = busy.metrics()
        counted = {key: samples.get(f'outbox_enqueued_total{{module="{key[0]}",event_type="{key[1]}"}}') for key in rows}
        assert len(rows) >= 8 and counted == rows
        return True

    eventually(all_are_counted)
