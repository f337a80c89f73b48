"""R8, R12, H1, P2: the JSON Schemas of messages take what the contract allows and refuse the rest, for the right reason."""
import copy
import json

import pytest
from jsonschema import Draft202012Validator

from conftest import ROOT

FOLDER = ROOT / "api/schemas"
SCHEMAS = {name: json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
           for name in ("refdata-command", "refdata-invalidation",
                        "entity-unknown", "entity-updated", "entity-not-found")}
# An example that has every field, and the one value of another kind that a field may have.
WHOLE = {"refdata-command": "snapshot-chunk", "refdata-invalidation": "as-the-contract-shows-it",
         "entity-unknown": "partial", "entity-updated": "whole", "entity-not-found": "absent"}
EMPTY = {"items": [], "fields": [], "data": {}}

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
    "entity-unknown": {
        "a-list": ("$", "type"),
        "field-as-a-number": ("$.fields[1]", "type"),
        "field-empty": ("$.fields[0]", "minLength"),
        "field-too-long": ("$.fields[0]", "maxLength"),
        "field-with-a-tab": ("$.fields[0]", "not"),
        "fields-as-text": ("$.fields", "type"),
        "fields-null": ("$.fields", "type"),
        "fields-of-another-mode-as-text": ("$.fields", "type"),
        "fields-too-many": ("$.fields", "maxItems"),
        "id-as-a-number": ("$.entity_id", "type"),
        "id-empty": ("$.entity_id", "minLength"),
        "id-null": ("$.entity_id", "type"),
        "id-too-long": ("$.entity_id", "maxLength"),
        "id-with-a-line-end": ("$.entity_id", "not"),
        "id-with-nul": ("$.entity_id", "not"),
        "mode-null": ("$.hydration_mode", "enum"),
        "mode-unknown": ("$.hydration_mode", "enum"),
        "module-as-a-list": ("$.requester_module", "type"),
        "module-empty": ("$.requester_module", "minLength"),
        "no-id": ("$", "required"),
        "no-mode": ("$", "required"),
        "no-module": ("$", "required"),
        "no-type": ("$", "required"),
        "stranger-with-nul": ("$.later", "anyOf"),
        "type-as-a-number": ("$.entity_type", "type"),
        "type-begins-with-a-digit": ("$.entity_type", "pattern"),
        "type-empty": ("$.entity_type", "pattern"),
        "type-in-capitals": ("$.entity_type", "pattern"),
        "type-too-long": ("$.entity_type", "pattern"),
        "type-with-a-dot": ("$.entity_type", "pattern"),
        "type-with-a-line-end": ("$.entity_type", "pattern"),
    },
    "entity-updated": {
        "a-list": ("$", "type"),
        "data-as-a-list": ("$.data", "type"),
        "data-as-text": ("$.data", "type"),
        "data-null": ("$.data", "type"),
        "data-with-nul-in-a-name": ("$.data", "not"),
        "data-with-nul-inside": ("$.data.a", "anyOf"),
        "data-with-nul": ("$.data.a", "anyOf"),
        "id-too-long": ("$.entity_id", "maxLength"),
        "module-empty": ("$.source_module", "minLength"),
        "no-data": ("$", "required"),
        "no-id": ("$", "required"),
        "no-module": ("$", "required"),
        "no-type": ("$", "required"),
        "stranger-with-nul": ("$.later", "anyOf"),
        "type-in-capitals": ("$.entity_type", "pattern"),
    },
    "entity-not-found": {
        "a-list": ("$", "type"),
        "id-too-long": ("$.entity_id", "maxLength"),
        "module-empty": ("$.source_module", "minLength"),
        "no-id": ("$", "required"),
        "no-module": ("$", "required"),
        "no-reason": ("$", "required"),
        "no-type": ("$", "required"),
        "reason-null": ("$.reason", "enum"),
        "reason-unknown": ("$.reason", "enum"),
        "stranger-with-nul": ("$.later", "anyOf"),
        "type-in-capitals": ("$.entity_type", "pattern"),
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
    whole = load(FOLDER / "examples" / name / "valid" / f"{WHOLE[name]}.json")
    for field in whole:
        for wrong in ([], {}, True, 1.5, "", None):
            if field in EMPTY and wrong == EMPTY[field]:
                continue
            changed = {**copy.deepcopy(whole), field: wrong}
            assert errors_of(name, changed), f"{field}: {wrong!r}"
