"""P3: the alerts of deploy/prometheus, judged by promtool: every one has a case that fires and one that does not."""
import re

import yaml

from lib.prometheus import RULES, promtool

TESTS = RULES.with_name("freshet.tests.yml")
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_rules_are_valid_and_their_cases_hold():
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = promtool("test", "rules", TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not():
    cases = {case["name"]: case for case in yaml.safe_load(TESTS.read_text())["tests"]}
    names = {rule["alert"] for rule in ALERTS}
    assert {title.split()[0] for title in cases} == names  # an alert may have further cases
    for name in names:
        for word, expected in (("fires", [name]), ("does not fire", [])):
            (query,) = cases[f"{name} {word}"]["promql_expr_test"]
            fired = [re.fullmatch(r'\{alertname="(\w+)"\}', sample["labels"])[1] for sample in query["exp_samples"]]
            assert fired == expected, f"{name} {word}"


def test_a_broken_rule_fails_its_cases(tmp_path):
    """The cases are no decoration: an alert that never fires fails the one where it should."""
    cases = yaml.safe_load(TESTS.read_text())
    cases["tests"] = [case for case in cases["tests"] if case["name"].startswith("FreshetDown ")]
    (tmp_path / RULES.name).write_text(RULES.read_text().replace('} == 0\n        for: 1m', '} == 2\n        for: 1m', 1))
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(cases))
    done = promtool("test", "rules", tmp_path / TESTS.name)
    assert done.returncode != 0 and "FreshetDown" in done.stdout + done.stderr


def test_every_alert_has_what_an_operator_reads():
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 40
    for rule in ALERTS:
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(notes) == {"summary", "description", "runbook_url"}, rule["alert"]
        assert notes["runbook_url"] == f"docs/RUNBOOK.md#{rule['alert'].lower()}"
        assert not notes["summary"].endswith(".") and notes["description"].endswith("."), rule["alert"]
