"""Issue 15, 4: api/openapi.yaml keeps to what generators of clients understand. CONTRIBUTING.md has the rules for authors.

Each rule lists what breaks it; test_a_rule_finds_what_breaks_it breaks each of them once.
"""
import copy
import re

import pytest

from conftest import ROOT
from lib.openapi import Document

DOCUMENT = Document(ROOT / "api/openapi.yaml")
METHODS = {"get", "put", "post", "delete", "patch"}
LISTS = ("oneOf", "anyOf", "allOf")


# ---- walking ----

def operations(root):
    for path, entry in root["paths"].items():
        for method in METHODS & set(entry):
            yield f"{method.upper()} {path}", entry[method]


def resolved(root, node):
    while set(node) == {"$ref"}:
        where, node = node["$ref"], root
        for part in where.removeprefix("#/").split("/"):
            node = node[part]
    return node


def parameters(root):
    shared = list(root["components"]["parameters"].values())
    own = [each for entry in root["paths"].values() for each in entry.get("parameters", [])]
    own += [each for _, operation in operations(root) for each in operation.get("parameters", [])]
    return [each for each in shared + own if "$ref" not in each]


def contents(root):
    """(place, media type, schema) of every body that is sent or answered."""
    def of(place, node):
        for kind, media in resolved(root, node).get("content", {}).items():
            yield place, kind, media["schema"]
    for name, operation in operations(root):
        yield from of(f"{name} body", operation.get("requestBody", {}))
        for status, answer in operation["responses"].items():
            yield from of(f"{name} {status}", answer)


def below(place, schema):
    """The schema and all schemas inside it."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    for name, child in schema.get("properties", {}).items():
        yield from below(f"{place}.{name}", child)
    for name in ("items", "not", "propertyNames", "if", "then", "else"):
        if name in schema:
            yield from below(f"{place}/{name}", schema[name])
    if not isinstance(schema.get("additionalProperties", True), bool):
        yield from below(f"{place}/additionalProperties", schema["additionalProperties"])
    for name in LISTS:
        for number, child in enumerate(schema.get(name, [])):
            yield from below(f"{place}/{name}/{number}", child)


def schemas(root):
    places = list(root["components"]["schemas"].items())
    places += [(f"parameter {each['name']}", each["schema"]) for each in parameters(root)]
    places += [(place, schema) for place, _, schema in contents(root)]
    return [found for place, schema in places for found in below(place, schema)]


# ---- the rules ----

def every_operation_has_an_id_a_tag_and_a_summary(root):
    tags, seen = {tag["name"] for tag in root["tags"]}, set()
    for name, operation in operations(root):
        known_as = operation.get("operationId", "")
        if not re.fullmatch(r"[a-z][A-Za-z0-9]*", known_as) or known_as.lower() in seen:
            yield f"{name}: operationId {known_as!r}"
        seen.add(known_as.lower())
        if len(operation.get("tags", [])) != 1 or not set(operation["tags"]) <= tags:
            yield f"{name}: tags {operation.get('tags')}"
        if not operation.get("summary") or "security" not in operation:
            yield f"{name}: no summary or no security"


def no_schema_is_a_boolean(root):
    return [place for place, schema in schemas(root) if isinstance(schema, bool)]


def every_body_is_a_component(root):
    """A name, or a choice of names. What is no JSON is text."""
    for place, kind, schema in contents(root):
        choices = schema.get("oneOf", [schema]) if set(schema) <= {"oneOf", "description"} else [schema]
        if any(set(choice) != {"$ref"} for choice in choices) and not ("json" not in kind and schema == {"type": "string"}):
            yield f"{place} {kind}"


def every_object_is_a_component(root):
    """An object inside another one has a name of its own, which generators give to its class."""
    for name, component in root["components"]["schemas"].items():
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
            yield f"{name}: not a name like VersionNumber"
        for place, schema in below(name, component):
            if place != name and isinstance(schema, dict) and "properties" in schema:
                yield place


def no_two_components_differ_in_case_alone(root):
    names = [name.lower() for name in root["components"]["schemas"]]
    return {name for name in names if names.count(name) > 1}


def no_member_has_a_default(root):
    """openapi-typescript makes such a member required; a description says what is taken in its place."""
    return [place for component in root["components"]["schemas"].items() for place, schema in below(*component)
            if isinstance(schema, dict) and "default" in schema]


def a_constant_that_is_not_text_has_a_type(root):
    return [place for place, schema in schemas(root) if isinstance(schema, dict) and "const" in schema
            and not isinstance(schema["const"], str) and "type" not in schema]


def a_list_in_the_query_is_one_parameter_each(root):
    """The only form that generators write; the server also takes commas."""
    return [each["name"] for each in parameters(root) if {"style", "explode"} & set(each)]


def every_parameter_has_its_limits(root):
    for each in parameters(root):
        schema = resolved(root, each["schema"])
        values = resolved(root, schema["items"]) if schema.get("type") == "array" else schema
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield each["name"]
        elif values.get("type") == "integer" and "minimum" not in values:
            yield each["name"]
        elif values.get("type") == "string" and each["in"] in ("path", "query") and \
                not {"pattern", "format", "enum", "minLength"} & set(values):
            yield each["name"]


def every_error_is_a_shared_answer(root):
    return [f"{name} {status}" for name, operation in operations(root) for status, answer in operation["responses"].items()
            if int(status) >= 400 and set(answer) != {"$ref"}]


RULES = [every_operation_has_an_id_a_tag_and_a_summary, no_schema_is_a_boolean, every_body_is_a_component,
         every_object_is_a_component, no_two_components_differ_in_case_alone, no_member_has_a_default,
         a_constant_that_is_not_text_has_a_type, a_list_in_the_query_is_one_parameter_each, every_parameter_has_its_limits,
         every_error_is_a_shared_answer]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_file_keeps_the_rule(rule):
    assert list(rule(DOCUMENT.root)) == []


# ---- the rules themselves ----

ITEM = "/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}"


def operation_of(root):
    return root["paths"][ITEM]["get"]


def schemas_of(root):
    return root["components"]["schemas"]


BREAKS = [
    (RULES[0], lambda root: operation_of(root).pop("operationId")),
    (RULES[0], lambda root: operation_of(root).update(operationId="get-item")),
    (RULES[0], lambda root: operation_of(root).update(operationId="GETALL".lower())),
    (RULES[0], lambda root: operation_of(root).update(tags=["stray"])),
    (RULES[0], lambda root: operation_of(root).update(tags=["dictionaries", "updates"])),
    (RULES[0], lambda root: operation_of(root).pop("summary")),
    (RULES[0], lambda root: operation_of(root).pop("security")),
    (RULES[1], lambda root: schemas_of(root)["NewItem"]["properties"].update(id=False)),
    (RULES[1], lambda root: schemas_of(root).update(Any=True)),
    (RULES[1], lambda root: schemas_of(root)["DeltaItem"]["oneOf"].append(True)),
    (RULES[2], lambda root: operation_of(root)["responses"]["200"]["content"]["application/json"].update(
        schema={"type": "object", "additionalProperties": False})),
    (RULES[2], lambda root: operation_of(root)["responses"]["200"]["content"]["application/json"].update(
        schema={"oneOf": [{"$ref": "#/components/schemas/Item"}, {"type": "null"}]})),
    (RULES[3], lambda root: schemas_of(root)["Page"]["properties"].update(more={"type": "object", "properties": {}})),
    (RULES[3], lambda root: schemas_of(root)["Messages"]["properties"].update(
        messages={"type": "array", "items": {"type": "object", "properties": {}}})),
    (RULES[3], lambda root: schemas_of(root).update({"page-2": {"type": "string"}})),
    (RULES[4], lambda root: schemas_of(root).update(PAGE={"type": "string"})),
    (RULES[5], lambda root: schemas_of(root)["SnapshotChunk"]["properties"]["chunkIndex"].update(default=1)),
    (RULES[6], lambda root: schemas_of(root)["Entity"]["properties"]["degraded"].pop("type")),
    (RULES[7], lambda root: root["components"]["parameters"]["HydrationFields"].update(explode=False)),
    (RULES[8], lambda root: root["components"]["parameters"]["HydrationFields"]["schema"].pop("maxItems")),
    (RULES[8], lambda root: root["components"]["parameters"]["MinVersion"]["schema"].pop("minimum")),
    (RULES[8], lambda root: schemas_of(root)["Name"].pop("pattern")),
    (RULES[9], lambda root: operation_of(root)["responses"].update({"404": {"description": "None."}})),
]


@pytest.mark.parametrize("rule, damage", BREAKS, ids=[f"{rule.__name__}-{number}" for number, (rule, _) in enumerate(BREAKS)])
def test_a_rule_finds_what_breaks_it(rule, damage):
    root = copy.deepcopy(DOCUMENT.root)
    damage(root)
    assert list(rule(root)) != []
    assert {rule for rule, _ in BREAKS} == set(RULES)
