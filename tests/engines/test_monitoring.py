"""R20, P3: metrics of the engines in a live scrape, and the lag of a topic of Kafka from processes that do not read it."""
import re

from lib import on_engines
from lib.busy import DICTIONARY, SETTINGS, Work
from lib.config import merge
from lib.pages import Page
from lib.promql import named, panel_queries
from lib.refdata import pod
from lib.wait import eventually

OF_ENGINES = ("kafka_", "redis_", "nats_")
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \| (.*) \|$", re.M)


def test_every_metric_of_an_engine_that_is_named_is_in_a_live_scrape(kafka, serve, refdata_db, token, root):
    server = serve(refdata_db, merge(pod(DICTIONARY), SETTINGS))
    work = Work(server, token).begin()
    try:
        work.round()
        with server.client() as client:
            text = client.get("/actuator/prometheus").body.decode()
    finally:
        work.close()
    rows = {name: (kind, labels, help_text)
            for name, kind, labels, help_text in ROW.findall(Page(root, root / "docs/METRICS.md").prose)}
    shown = dict(re.findall(r"^# TYPE ((?:kafka|redis|nats)_\w+) (\w+)$", text, re.M))
    assert shown == {name: row[0] for name, row in rows.items() if name.startswith(OF_ENGINES)}
    for name in shown:
        labels = {label for line in re.findall(rf"^{name}\{{(.*)\}} ", text, re.M) for label in re.findall(r'(\w+)="', line)}
        assert f"# HELP {name} {rows[name][2]}\n" in text
        assert labels == set(re.findall(r"`(\w+)`", rows[name][1])), name
    used = {metric for _, _, expression, _ in panel_queries() for metric in named(expression)[0] if metric.startswith(OF_ENGINES)}
    assert used == set(shown)


def test_the_lag_of_a_topic_of_kafka_is_seen_by_processes_that_do_not_read_it(kafka, serve, refdata_db, token):
    """R20: nobody applies, and a process that accepts updates shows what waits."""
    lag = f'bus_lag{{topic="{on_engines.topic(refdata_db.name)}",group="{on_engines.group(refdata_db.name)}",database=""}}'
    server = serve(refdata_db, pod("D"), args=("--roles", "command"))
    client = server.client(token())
    for number in range(3):
        answer = client.post("/v1/tenants/demo/updates", {
            "dictCode": "D", "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": number}]})
        assert answer.status == 202, answer.body
    eventually(lambda: server.metrics().get(lag) == 3)
    reader = serve(refdata_db, pod("D"), args=("--roles", "apply"))
    eventually(lambda: server.metrics().get(lag) == 0)
    eventually(lambda: reader.metrics().get(lag) == 0)
