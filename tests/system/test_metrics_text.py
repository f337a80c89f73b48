"""R20, C8: /actuator/prometheus, read by a parser that accepts nothing but the text format 0.0.4."""
import itertools
import math
import re

import pytest

from lib.refdata import (item_path, make_table, path, pod, refdata_db, set_version, sql_dictionary,  # noqa: F401
                         write_builtin)
from lib.wait import eventually

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)?\}})? (-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|\+Inf|NaN)")
SUFFIXES = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


class Family:
    def __init__(self, name):
        self.name, self.help, self.type, self.samples = name, None, None, {}

    def values(self, suffix=""):
        return {labels: value for (name, labels), value in self.samples.items() if name == self.name + suffix}


def parse(text):
    """Every rule of the format that a scraper may rely on is an assert here."""
    assert text.endswith("\n") and "\r" not in text
    families, current = {}, None
    for line in text.split("\n")[:-1]:
        comment = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
        if comment:
            kind, name, rest = comment.groups()
            if current is None or current.name != name:
                assert name not in families, f"{name} stands in two places"
                current = families[name] = Family(name)
            attribute = kind.lower()
            assert getattr(current, attribute) is None, f"two {kind} of {name}"
            assert not current.samples, f"{kind} behind the samples of {name}"
            setattr(current, attribute, rest)
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, f"no sample: {line!r}"
        name, labels, value = sample.groups()
        assert current and current.type in SUFFIXES, f"no TYPE before {line!r}"
        assert name in [current.name + suffix for suffix in SUFFIXES[current.type]], f"{name} inside {current.name}"
        labels = tuple(re.findall(LABEL, labels or ""))
        assert len({label.split("=", maxsplit=1)[0] for label in labels}) == len(labels)
        assert (name, labels) not in current.samples, f"twice: {line!r}"
        current.samples[name, labels] = float(value.replace("Inf", "inf"))
    for family in families.values():
        check(family)
    return families


def check(family):
    assert family.help and family.type in SUFFIXES, family.name
    values = family.samples.values()
    if family.type == "counter":
        counts_time = family.name.endswith("_seconds_total")
        assert all(value >= 0 and (counts_time or value == int(value)) for value in values), family.name
    if family.type != "histogram":
        return
    series = {}
    for labels, value in family.values("_bucket").items():
        (bound,) = [label[4:-1] for label in labels if label.startswith('le="')]
        rest = tuple(label for label in labels if not label.startswith('le="'))
        series.setdefault(rest, []).append((float(bound.replace("Inf", "inf")), value))
    assert set(series) == set(family.values("_sum")) == set(family.values("_count")), family.name
    for labels, buckets in series.items():
        bounds, counts = zip(*buckets)
        assert list(bounds) == sorted(set(bounds)) and bounds[-1] == math.inf, family.name
        assert list(counts) == sorted(counts) and counts[-1] == family.values("_count")[labels], family.name


def scrape(server):
    with server.client() as client:
        answer = client.get("/actuator/prometheus")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.body.decode())


@pytest.mark.tsan
def test_every_metric_has_its_type_a_help_and_parses(serve, refdata_db, token):
    """R20: names and types; after loads, failures, updates, regressions, drift, all kinds of answers."""
    write_builtin(refdata_db, "D", {"a": 1}, version=5)
    make_table(refdata_db, "t", {"a": "1"})
    refdata_db.query("create table bad (tenant_id text, k text, v jsonb); insert into bad values ('demo', null, '1')")
    server = serve(refdata_db, pod("D", sql_dictionary("T", driftCheckSql="select 9::bigint"), sql_dictionary("BAD"),
                                   sql_dictionary("NOWHERE"), cache={"driftCheckInterval": "100ms"}))
    client = server.client(token())
    for code in ["D", "T", "BAD", "NOWHERE", "UNKNOWN"]:
        for rest in ["/items/a", "/items/%FF", "/items?keys=a", "/all", "/version", "/nothing"]:
            client.get(path(code, rest))
    server.client().get(path("D", "/version"))
    server.client("rubbish").get(path("D", "/version"))
    for version in [6, 4]:
        write_builtin(refdata_db, "D", {"a": version}, version=version)
        eventually(lambda: client.get(item_path("D", "a")).headers["x-dict-version"] == str(version))
    eventually(lambda: scrape(server)["dict_drift_value"].samples)
    families = scrape(server)
    types = {
        "dict_version_lag": "gauge", "cache_reload_duration": "histogram", "cache_reload_errors": "counter",
        "refdata_freshness_seconds": "histogram", "dict_version": "gauge", "dict_items": "gauge",
        "dict_memory_bytes": "gauge", "dict_drift_value": "gauge", "dict_unavailable": "gauge",
        "dict_version_regressions_total": "counter",
    }
    assert {name: families[name].type for name in types} == types
    pair = ('tenant="demo"', 'dict_code="D"')
    assert families["dict_version"].values()[pair] == 4
    assert families["dict_items"].values()[pair] == 1
    assert families["dict_memory_bytes"].values()[pair] > 0
    assert families["dict_version_lag"].values()[pair] == 0
    assert families["refdata_freshness_seconds"].values("_count")[('dict_code="D"',)] == 1
    assert families["dict_version_regressions_total"].values()[('dict_code="D"',)] == 1
    assert families["cache_reload_errors"].values()[('dict_code="BAD"',)] >= 1
    assert families["cache_reload_duration"].values("_count")[('dict_code="D"', 'mode="full"')] == 3
    assert families["dict_unavailable"].values()[('dict_code="NOWHERE"',)] == 1
    assert families["dict_drift_value"].values()[('tenant="demo"', 'dict_code="T"')] == 9
    for name in ["cache_reload_duration", "refdata_freshness_seconds"]:
        assert "second" in families[name].help
    assert "bytes" in families["dict_memory_bytes"].help


def test_nothing_a_client_sends_becomes_a_label(serve, refdata_db, token):
    """R20: labels are bounded: unknown names, paths and methods make no series."""
    server = serve(refdata_db, pod("D"))
    client = server.client(token())
    numbers = itertools.count()

    def ask():
        number = next(numbers)
        client.get(path(f"X{number}", "/version"))
        client.get(f"/path{number}")
        client.get(item_path("D", f"key{number}"))
        client.get(path("D", "/version", f"tenant{number}"))
        return {name: len(family.samples) for name, family in scrape(server).items()}

    def nothing_is_added():
        """Once the server is done with its start, which has series of its own."""
        before = ask()
        assert [ask() for _ in range(48)][-1] == before
        return True

    eventually(nothing_is_added)


def test_counters_never_go_back_and_a_dropped_pair_takes_its_gauges_along(serve, refdata_db, token):
    """R20: series of a pair live as long as the pair is held."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    server = serve(refdata_db, pod("D", "E", cache={"entries": 1}))
    client = server.client(token())
    client.get(item_path("D", "a"))
    first = scrape(server)
    assert ('tenant="demo"', 'dict_code="D"') in first["dict_version"].values()
    client.get(path("E", "/version"))
    eventually(lambda: list(scrape(server)["dict_version"].values()) == [('tenant="demo"', 'dict_code="E"')])
    client.get(item_path("D", "a"))
    second = scrape(server)
    assert second["dict_version"].values()[('tenant="demo"', 'dict_code="D"')] == 1
    for name, family in first.items():
        if family.type == "counter":
            for sample, value in family.samples.items():
                assert second[name].samples[sample] >= value


def test_the_lag_is_what_is_committed_and_not_here(serve, refdata_db, token):
    """R20: dict_version_lag while a load fails."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 10)
    server = serve(refdata_db, pod(sql_dictionary("T")))
    client = server.client(token())
    client.get(item_path("T", "a"))
    refdata_db.query("alter table t rename to hidden")
    set_version(refdata_db, "T", 17)
    pair = ('tenant="demo"', 'dict_code="T"')
    eventually(lambda: scrape(server)["dict_version_lag"].values()[pair] == 7)
    refdata_db.query("alter table hidden rename to t")
    eventually(lambda: scrape(server)["dict_version_lag"].values()[pair] == 0)
