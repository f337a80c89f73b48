#!/usr/bin/env python3
"""Writes clients/python/src/freshet/types.py: the answers that the Python client returns, as types, out of api/openapi.yaml.

    tools/client_types.py           writes the file
    tools/client_types.py --check   says whether it is what would be written

Only what ROOTS and its parts need: the file stays short, and a new route does not change it.
"""
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "clients/python/src/freshet/types.py"
ROOTS = ("ChatEvent", "ChatMessage", "CreatedItem", "Dictionary", "Entitlement", "EntitlementChanged", "Entity", "Item", "Items",
         "Notification", "Page", "PostedMessage", "UpdateState", "Version")
HEAD = '''"""The answers of the server as types. Written by tools/client_types.py from api/openapi.yaml: do not edit."""
from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

'''
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def reference(schema):
    return schema["$ref"].rsplit("/", 1)[1] if "$ref" in schema else None


def union(parts):
    parts = list(dict.fromkeys(parts))
    is_optional = "None" in parts
    parts = [part for part in parts if part != "None"]
    text = parts[0] if len(parts) == 1 else f"Union[{', '.join(parts)}]"
    return f"Optional[{text}]" if is_optional else text


class Types:
    def __init__(self, schemas):
        self.schemas = schemas
        self.written, self.order = {}, []

    def is_class(self, name):
        return self.schemas[name].get("type") == "object"

    def of(self, schema):
        """How Python names it. Classes that it needs are written first."""
        name = reference(schema)
        if name:
            if self.is_class(name) or "oneOf" in self.schemas[name]:
                self.write(name)
                return name
            return self.of(self.schemas[name])
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return f"Literal[{', '.join(repr(value) for value in values)}]"
        if "oneOf" in schema:
            return union(self.of(choice) for choice in schema["oneOf"])
        kind = schema.get("type")
        if isinstance(kind, list):
            return union(self.of({**schema, "type": each}) for each in kind)
        if kind == "array":
            return f"List[{self.of(schema['items'])}]"
        if kind == "object":
            values = schema.get("additionalProperties")
            return f"Dict[str, {self.of(values) if isinstance(values, dict) else 'Any'}]"
        return SCALARS.get(kind, "Any")

    def write(self, name):
        if name in self.written:
            return
        self.written[name] = None
        schema = self.schemas[name]
        self.written[name] = self.class_of(name, schema) if self.is_class(name) else f"{name} = {self.of(schema)}\n"
        self.order.append(name)

    def class_of(self, name, schema):
        members = {member: self.of(each) for member, each in schema["properties"].items()}
        required = schema.get("required", [])
        if not all(member.isidentifier() and member not in ("from",) for member in members):
            assert set(required) == set(members), name
            body = "".join(f"    {member!r}: {text!r},\n" for member, text in members.items())
            return f"{name} = TypedDict({name!r}, {{\n{body}}})\n"
        lines = {flag: "".join(f"    {member}: {text}\n" for member, text in members.items() if (member in required) is flag)
                 for flag in (True, False)}
        if not lines[False]:
            return f"class {name}(TypedDict):\n{lines[True]}"
        if not lines[True]:
            return f"class {name}(TypedDict, total=False):\n{lines[False]}"
        return f"class _{name}(TypedDict):\n{lines[True]}\n\nclass {name}(_{name}, total=False):\n{lines[False]}"


def generate():
    document = yaml.safe_load((ROOT / "api/openapi.yaml").read_text(encoding="utf-8"))
    types = Types(document["components"]["schemas"])
    for name in ROOTS:
        types.write(name)
    return HEAD + "\n" + "\n\n".join(types.written[name] for name in types.order)


def main():
    text = generate()
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            sys.exit(f"{TARGET.relative_to(ROOT)} is not what tools/client_types.py writes")
    else:
        TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
