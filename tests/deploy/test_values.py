"""P2: what can be said of the chart without Helm: its values, their schema, the configuration that it makes, and the plan."""
import json
import re

import jsonschema
import pytest
import yaml

from chart import FOLDER, GOLDEN, ROOT, VALUES, merged, read_yaml, role_values, values_of
from lib.freshet import run

SIZES = {"MiB": 1 << 20, "Mi": 1 << 20, "GiB": 1 << 30, "Gi": 1 << 30}


def schema():
    return json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))


def size(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * SIZES.get(unit, 1)


@pytest.mark.parametrize("name", VALUES)
def test_the_example_values_conform_to_the_schema(name):
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(values_of(name))


def each_object(schema_part, values, path=""):
    """Objects that schema and values both describe key by key."""
    if "properties" in schema_part and isinstance(values, dict):
        yield path, set(schema_part["properties"]), set(values)
        for name, part in schema_part["properties"].items():
            if name in values:
                part = schema()["$defs"]["role"] if part.get("$ref") == "#/$defs/role" and name == "defaults" else part
                yield from each_object(part, values[name], f"{path}.{name}")


def test_values_yaml_shows_every_key_that_the_schema_allows():
    """An operator finds a key in values.yaml, or it does not exist."""
    only_in_schema = {".global", ".probes.startup.initialDelaySeconds"}
    for path, allowed, shown in each_object(schema(), read_yaml("values.yaml")):
        if path.startswith((".probes.",)):
            continue
        assert allowed - shown - {name[len(path) + 1:] for name in only_in_schema} == set(), path
        assert shown <= allowed, path


@pytest.mark.parametrize("mistake", [
    {"replica": 3}, {"roles": {"query": {"replica": 3}}}, {"mode": "both"}, {"roles": {"Query": {}}},
    {"kafka": {"enabled": True, "brokers": []}}, {"redis": {"nodes": ["redis"]}}, {"nats": {"servers": ["nats:4222"]}},
    {"defaults": {"spread": {"zones": "Always"}}}, {"secrets": {"mode": "vault"}}, {"postgres": {"url": "mysql://h/db"}},
    {"roles": {"query": {"runs": ["reader"]}}}, {"lifecycle": {"marginSeconds": 0}},
])
def test_a_mistake_in_the_values_is_refused(mistake):
    validator = jsonschema.Draft202012Validator(schema())
    assert validator.is_valid(values_of("production"))
    assert not validator.is_valid(merged(values_of("production"), mistake))


@pytest.mark.parametrize("name", VALUES)
def test_the_program_accepts_the_configuration_of_the_chart(name, tmp_path):
    """R15, P2: the rendered freshet.yaml (golden/: compared with Helm's by test_rendered.py), checked by the program itself, with the
    files that it names in place and the variables of each role."""
    text = (GOLDEN / f"{name}.freshet.yaml").read_text(encoding="utf-8")
    for path in set(re.findall(r"/etc/freshet/[a-z/.]+", text)):
        copy = tmp_path / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text('{"keys":[]}' if path.endswith(".json") else "sesame\n", encoding="utf-8")
    config = tmp_path / "freshet.yaml"
    config.write_text(text.replace("/etc/freshet/", f"{tmp_path}/etc/freshet/"), encoding="utf-8")
    values = values_of(name)
    roles = [merged(values["defaults"], values["all"])] if values["mode"] == "all" else \
        [role_values(values, role) for role in values["roles"]]
    for role in roles:
        done = run("config", "--config", config, env={"FRESHET_LOOPS": "4", "FRESHET_MEMORY": str(role["memory"]),
                                                      "FRESHET_CACHE_MEMORY": str(role["cacheMemory"])})
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", VALUES)
def test_production_has_three_replicas_of_every_role(name):
    """P2, seed 000 §11.3."""
    values = values_of(name)
    if values["mode"] == "all":
        return
    for role in values["roles"]:
        found = role_values(values, role)
        replicas = found["autoscaling"]["minReplicas"] if found["autoscaling"]["enabled"] else found["replicas"]
        assert replicas >= 3 and found["podDisruptionBudget"]["enabled"], role
        assert found["spread"]["zones"] and found["spread"]["hosts"] != "none", role


def test_the_roles_of_the_chart_are_those_of_the_program(root):
    """C1."""
    listed = re.search(r"\| role \|[^|]*: ([^|]*) \|", (root / "docs/GLOSSARY.md").read_text(encoding="utf-8"))
    assert set(read_yaml("values.yaml")["roles"]) == set(re.findall(r"`([a-z]+)`", listed.group(1)))


def test_values_for_2m_reads_are_what_the_plan_prints():
    """P1, P2: pods, processors, memory and pools."""
    done = run("plan", "--tps", "2000000", "--json")
    assert done.returncode == 0, done.stderr
    plan, values = json.loads(done.stdout), values_of("2m-reads")
    for name, planned in plan["roles"].items():
        role = role_values(values, name)
        scaling = role["autoscaling"]
        assert (scaling["minReplicas"] if scaling["enabled"] else role["replicas"]) == planned["pods"], name
        assert float(role["resources"]["requests"]["cpu"]) == planned["cores"], name
        assert size(role["resources"]["requests"]["memory"]) == planned["memory_bytes"], name
        assert role["resources"]["limits"]["memory"] == role["resources"]["requests"]["memory"], name
    query = role_values(values, "query")
    assert size(query["cacheMemory"]) == plan["cache_bytes"] and size(query["memory"]) == plan["clients_bytes"]
    assert query["loops"] == plan["target"]["pod_cores"]
    assert query["autoscaling"]["cpuPercent"] == 100 - plan["target"]["headroom_percent"]
    assert plan["busy_zone_lost"] < 1
    assert values["postgres"]["poolSize"] == 16 and plan["postgres_connections"] == sum(
        each["pods"] * each["postgres_connections"] for each in plan["roles"].values())


def test_the_chart_carries_the_rules_of_prometheus():
    """P3: `ln -s ../../../prometheus/freshet.rules.yml deploy/helm/freshet/files/`, where deploy/prometheus has them."""
    rules, carried = ROOT / "deploy/prometheus/freshet.rules.yml", FOLDER / "files/freshet.rules.yml"
    assert rules.exists() == carried.exists()
    assert not rules.exists() or rules.read_text(encoding="utf-8") == carried.read_text(encoding="utf-8")


def test_every_yaml_file_of_deploy_is_well_formed():
    found = [path for path in sorted((ROOT / "deploy").rglob("*.y*ml")) if "templates" not in path.parts]
    assert found
    for path in found:
        list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_a_setting_that_the_chart_writes_is_a_setting_of_the_program(root):
    """The templates name settings; CONFIG.md is what the program prints."""
    known = set(re.findall(r"^\| `([^`]+)` \|", (root / "docs/CONFIG.md").read_text(encoding="utf-8"), re.M))

    def walk(part, prefix=""):
        for name, value in part.items():
            path = f"{prefix}{name}"
            if isinstance(value, dict):
                yield from walk(value, path + ".")
            else:
                yield path

    for name in VALUES:
        config = yaml.safe_load((GOLDEN / f"{name}.freshet.yaml").read_text(encoding="utf-8"))
        config["refdata"].pop("dictionaries")
        for path in walk(config):
            assert path.replace("refdata.postgres.", "refdata.postgres[].") in known, path
