"""P1: `freshet plan`: 2,000,000 reads a second over pods, by measured cost per read and by arithmetic that is shown."""
import json
import re

import pytest

from lib.freshet import run


def plan(*args):
    done = run("plan", "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_steps_that_are_printed_have_the_results_of_the_json():
    """The arithmetic is shown: each product and quotient can be followed from the figures to the pods."""
    text = run("plan", "--tps", "2000000").stdout
    found = plan("--tps", "2000000")
    reads = re.search(r"reads +\(([\d,]+) x ([\d.]+) us \+ 0 x [\d.]+ us\) x ([\d.]+) += +([\d.]+) processors", text)
    count, cost, loops, processors = (float(part.replace(",", "")) for part in reads.groups())
    assert count * cost * 1e-6 * loops == pytest.approx(processors, abs=0.01) == pytest.approx(found["reads_processors"], abs=0.01)
    room, pods = re.search(r"pods +[\d.]+ / ([\d.]+), rounded up, at least 3 += +(\d+) pods", text).groups()
    assert -(-processors // float(room)) == int(pods) == found["roles"]["query"]["pods"]
    for name, role in found["roles"].items():
        assert re.search(rf"^{name} +{role['pods']} +{role['cores']} +{role['memory_bytes'] >> 20} MiB", text, re.M)
    assert "assumptions" in text and found["figures"]["origin"] in text


@pytest.mark.parametrize("more, changes", [
    (["--pipelined", "100"], lambda few, many: many["reads_processors"] < few["reads_processors"] / 5),
    (["--headroom", "70"], lambda few, many: many["roles"]["query"]["pods"] >= 2 * few["roles"]["query"]["pods"]),
    (["--items", "10000000"], lambda few, many: many["cache_bytes"] > 8 * few["cache_bytes"]),
    (["--item-bytes", "1000"], lambda few, many: many["gbit_out"] > 2 * few["gbit_out"]),
    (["--updates", "2000"], lambda few, many: many["redis_processors"] > 10 * few["redis_processors"]),
    (["--replicas-min", "50"], lambda few, many: many["total_pods"] == 200),
    (["--proxy-us", "200"], lambda few, many: many["proxy_processors"] == 400),
    (["--connections", "1000000"], lambda few, many: many["clients_bytes"] > few["clients_bytes"]),
])
def test_every_option_changes_what_it_should(more, changes):
    assert changes(plan("--tps", "2000000"), plan("--tps", "2000000", *more))


def test_figures_of_a_bench_folder_replace_those_built_in(tmp_path):
    """A read that costs twice as much needs twice the processors; what the folder lacks stays as it is built in."""
    before = plan("--tps", "2000000")
    rows = [{"target": "freshet", "server_cpu_us_per_request": 2 * before["figures"]["read_us"], "bytes_per_answer": 316}]
    sections = {"item_1": rows, "item_16": rows, "loops_freshet": [{"target": "freshet, 2 loops", "ratio": 1.1}]}
    (tmp_path / "query.json").write_text(json.dumps({"bench": "query", "at": "2027-01-02T00:00:00Z", "sections": sections}))
    after = plan("--tps", "2000000", "--bench", str(tmp_path))
    assert after["reads_processors"] == pytest.approx(2 * before["reads_processors"])
    assert after["figures"]["redis_pod_us"] == before["figures"]["redis_pod_us"]
    assert after["figures"]["origin"].endswith("query of 2027-01-02")


@pytest.mark.parametrize("args, status, reason", [
    ([], 2, "--tps is missing"),
    (["--tps", "0"], 2, "--tps needs a whole number"),
    (["--tps", "fast"], 2, "--tps needs a whole number"),
    (["--tps", "1", "--pipelined", "101"], 2, "--pipelined needs a whole number from 0 to 100"),
    (["--tps", "1", "--bench", "/no/such/file"], 1, "/no/such/file: No such file"),
    (["--tps", "1", "--updates", "1000000"], 1, "--pod-cores"),
])
def test_a_wrong_call_is_named(args, status, reason):
    done = run("plan", *args)
    assert done.returncode == status and reason in done.stderr, done.stderr
    assert done.stdout == ""
