"""R8, R12, P2: the JSON Schemas of messages take what the contract allows and refuse the rest, for the right reason."""
import copy
import json

import pytest
from jsonschema import Draft202012Validator

from conftest import ROOT

FOLDER = ROOT / "api/schemas"
SCHEMAS = {name: json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
           for name in ("refdata-command", "refdata-invalidation")}

# Where the schema must stop an invalid example, and by which rule.
REASONS = {
    "refdata-command": {
        "no-event-id": ("$", "required"),
        "event-id-not-a-uuid": ("$.eventId", "pattern"),
        "no-tenant": ("$", "required"),
        "tenant-with-a-slash": ("$.tenantId", "pattern"),
        "dictionary-name-too-long": ("$.dictCode", "pattern"),
        "source-unknown": ("$.source", "enum"),
        "event-type-unknown": ("$.eventType", "enum"),
        "no-event-type": ("$", "required"),
        "no-items": ("$", "required"),
        "items-not-a-list": ("$.items", "type"),
        "time-of-another-zone": ("$.occurredAt", "pattern"),
        "time-as-a-number": ("$.occurredAt", "type"),
        "revision-as-text": ("$.sourceRevision", "type"),
        "revision-past-64-bits": ("$.sourceRevision", "maximum"),
        "stray-field": ("$", "additionalProperties"),
        "stray-field-in-an-item": ("$.items[0]", "additionalProperties"),
        "delta-item-without-op": ("$.items[0]", "required"),
        "delta-upsert-without-payload": ("$.items[0]", "required"),
        "delta-in-chunks": ("$.chunksTotal", "const"),
        "op-unknown": ("$.items[0].op", "enum"),
        "key-empty": ("$.items[0].key", "minLength"),
        "key-too-long": ("$.items[0].key", "maxLength"),
        "key-with-nul": ("$.items[0].key", "pattern"),
        "payload-with-nul-inside": ("$.items[0].payload", "anyOf"),
        "snapshot-with-delete": ("$.items[0].op", "const"),
        "snapshot-item-without-payload": ("$.items[0]", "required"),
        "chunk-without-snapshot-id": ("$", "required"),
        "chunk-with-null-snapshot-id": ("$.snapshotId", "type"),
        "chunk-without-index": ("$", "required"),
        "chunk-without-total": ("$", "required"),
        "chunk-index-zero": ("$.chunkIndex", "minimum"),
        "chunk-index-past-the-only-chunk": ("$.chunksTotal", "minimum"),
    },
    "refdata-invalidation": {
        "no-event-id": ("$", "required"),
        "no-tenant": ("$", "required"),
        "no-dictionary": ("$", "required"),
        "no-version": ("$", "required"),
        "no-time": ("$", "required"),
        "event-id-not-a-uuid": ("$.eventId", "pattern"),
        "version-zero": ("$.version", "minimum"),
        "version-as-text": ("$.version", "type"),
        "version-past-64-bits": ("$.version", "maximum"),
        "tenant-empty": ("$.tenantId", "pattern"),
        "dictionary-with-a-space": ("$.dictCode", "pattern"),
        "time-without-a-zone": ("$.committedAt", "pattern"),
        "stray-field": ("$", "additionalProperties"),
    },
}


def examples(kind):
    return [pytest.param(name, path, id=f"{name}/{path.stem}")
            for name in SCHEMAS for path in sorted((FOLDER / "examples" / name / kind).glob("*.json"))]


def errors_of(name, value):
    return {(error.json_path, error.validator) for error in Draft202012Validator(SCHEMAS[name]).iter_errors(value)}


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_a_schema_and_every_invalid_example_has_its_reason(name):
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {path.stem for path in (FOLDER / "examples" / name / "invalid").iterdir()} == set(REASONS[name])


@pytest.mark.parametrize("name, path", examples("valid"))
def test_valid_examples_are_taken(name, path):
    assert errors_of(name, load(path)) == set()


@pytest.mark.parametrize("name, path", examples("invalid"))
def test_invalid_examples_are_refused_for_their_one_reason(name, path):
    """No error stands anywhere but at the place that is wrong."""
    place, rule = REASONS[name][path.stem]
    found = errors_of(name, load(path))
    assert (place, rule) in found
    assert {where for where, _ in found} == {place}


def test_c6_no_more_than_10000_items():
    command = load(FOLDER / "examples/refdata-command/valid/delta.json")
    item = {"key": "k", "op": "DELETE"}
    assert errors_of("refdata-command", {**command, "items": [item] * 10_000}) == set()
    assert errors_of("refdata-command", {**command, "items": [item] * 10_001}) == {("$.items", "maxItems")}


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_field_may_be_of_another_type(name):
    """Every field of a whole example in turn becomes something it is not."""
    valid = FOLDER / "examples" / name / "valid"
    whole = load(valid / ("snapshot-chunk.json" if name == "refdata-command" else "as-the-contract-shows-it.json"))
    for field in whole:
        for wrong in ([], {}, True, 1.5, "", None):
            if field == "items" and wrong == []:
                continue
            changed = {**copy.deepcopy(whole), field: wrong}
            assert errors_of(name, changed), f"{field}: {wrong!r}"
