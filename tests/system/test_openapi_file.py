"""C5, P2: GET /openapi.yaml is the file the program was built from, and the file is a sound description in itself."""
import re

import pytest
import yaml
from jsonschema import Draft202012Validator

from conftest import ROOT
from lib.openapi import Document
from lib.refdata import module_refdata_db, pod  # noqa: F401

FILE = ROOT / "api/openapi.yaml"
DOCUMENT = Document(FILE)


# ---- the route ----

@pytest.fixture(scope="module")
def client(module_serve, module_refdata_db):
    return module_serve(module_refdata_db, pod()).client()


def test_c5_it_is_the_file_and_needs_no_token(client):
    answer = client.get("/openapi.yaml")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/yaml")
    assert answer.body == FILE.read_bytes()


def test_its_tag_is_that_of_its_content(client):
    tag = client.get("/openapi.yaml").headers["etag"]
    for value in (tag, "*", f'W/{tag}, "other"', f'"other", {tag}'):
        answer = client.get("/openapi.yaml", If_None_Match=value)
        assert (answer.status, answer.headers["etag"], answer.body) == (304, tag, b"")
    assert client.get("/openapi.yaml", If_None_Match='"other"').status == 200


def test_head_says_the_same_without_the_body(client):
    get, head = client.get("/openapi.yaml"), client.request("HEAD", "/openapi.yaml")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "date": ""} == {**get.headers, "date": ""}


def test_c6_what_it_does_not_take(client):
    stray = client.get("/openapi.yaml?v=1")
    assert (stray.status, stray.code, stray.json()["field"]) == (400, "BAD_REQUEST", "v")
    other = client.post("/openapi.yaml", {})
    assert (other.status, other.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert client.get("/openapi.yml").status == 404


# ---- the file ----

def test_every_schema_is_one():
    places = [place for place, schema in DOCUMENT.schemas() if Draft202012Validator.check_schema(schema) is None]
    assert len(places) > 40


def test_every_reference_leads_somewhere_and_every_component_is_used():
    used = set(re.findall(r"\$ref: '#/([^']+)'", FILE.read_text()))
    there = {f"components/{kind}/{name}" for kind, entries in DOCUMENT.root["components"].items() for name in entries}
    assert used <= there
    operations = [item[method] for item in DOCUMENT.root["paths"].values() for method in item if method != "parameters"]
    schemes = {f"components/securitySchemes/{name}"
               for operation in operations for entry in operation["security"] for name in entry}
    assert there - used - schemes == set()


def test_every_example_keeps_its_own_schema():
    examples = list(DOCUMENT.examples())
    wrong = [f"{place}: {problem}" for place, schema, example in examples for problem in DOCUMENT.problems(schema, example)]
    assert wrong == [] and len(examples) > 30


def test_every_object_names_all_its_fields():
    """So that a field too many in an answer is found: additionalProperties is never left open."""
    open_ones = [place for place, schema in DOCUMENT.schemas()
                 if schema.get("type") == "object" and "additionalProperties" not in schema]
    assert open_ones == []


def test_every_path_parameter_is_declared_and_required():
    for name, operation in DOCUMENT.operations.items():
        declared = {parameter["name"] for parameter in operation.parameters if parameter["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", operation.path)), name
        assert all(parameter["required"] for parameter in operation.parameters if parameter["in"] == "path"), name


def test_every_code_is_the_programs_own_with_its_status():
    rows = (ROOT / "src/base/status.h").read_text().replace("\\\n", "")
    table = dict(re.findall(r'X\(\w+,\s*"(\w+)",\s*(?:"[^"]*"\s*)+,\s*(\d+),', rows))
    seen = 0
    for name, operation in DOCUMENT.operations.items():
        for status, response in operation.responses.items():
            for code in codes_of(response):
                assert table[code] == str(status), f"{name}: {code}"
                seen += 1
    assert seen > 100


def codes_of(response):
    schema = DOCUMENT.resolve(response.get("content", {}).get("application/json", {}).get("schema", {}))
    for choice in schema.get("oneOf", [schema]):
        properties = DOCUMENT.resolve(choice).get("properties", {})
        if "const" not in properties.get("code", {}) and properties.get("status") == {"const": "FAILED"}:
            continue  # whatever another process decided: 422, also where the code has a status of its own here
        code = properties.get("code", properties.get("error_code", {}))
        yield from code.get("enum", [code["const"]] if "const" in code else [])


def test_the_version_is_the_programs():
    version = re.search(r"^  version: '([^']+)',", (ROOT / "meson.build").read_text(), re.M)[1]
    assert DOCUMENT.root["info"]["version"] == version


def test_no_key_stands_twice():
    """YAML would quietly keep the last one."""
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: a key stands twice"
            return super().construct_mapping(node, deep)
    yaml.load(FILE.read_text(), Strict)
