"""api/openapi.yaml as a test uses it: operations, and a strict comparison of an answer with its description.

Strict both ways: a header, a field or a status that the file does not name is as wrong as one that is missing.
"""
import json
import re
from dataclasses import dataclass

import yaml
from jsonschema import Draft202012Validator, RefResolver

# Of every answer, whatever the route: framing, not interface.
FRAMING = {"date", "content-type", "content-length", "transfer-encoding", "connection"}


@dataclass
class Operation:
    method: str
    path: str
    parameters: list
    responses: dict  # by status, a number
    is_public: bool
    body: object = None  # the example of what is sent


class Document:
    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        self.root = yaml.load(self.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml's is ten times as fast
        self.resolver = RefResolver("", self.root)
        self.operations = dict(self._operations())

    def resolve(self, node):
        """What a $ref stands for; anything else is itself."""
        return self.resolver.resolve(node["$ref"])[1] if set(node) == {"$ref"} else node

    def _operations(self):
        for path, item in self.root["paths"].items():
            shared = item.get("parameters", [])
            for method, operation in item.items():
                if method == "parameters":
                    continue
                yield operation["operationId"], Operation(
                    method.upper(), path,
                    [self.resolve(parameter) for parameter in shared + operation.get("parameters", [])],
                    {int(status): self.resolve(answer) for status, answer in operation["responses"].items()},
                    operation["security"] == [], self._body(operation))

    @staticmethod
    def _body(operation):
        return operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")

    # ---- schemas ----

    def problems(self, schema, value):
        """What is wrong with a value, a line each."""
        validator = Draft202012Validator(schema, resolver=self.resolver)
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]

    def schemas(self):
        """Every schema object of the file with the place it stands at."""
        def walk(node, place):
            if isinstance(node, dict):
                for name, child in node.items():
                    if name == "schema" or place == "#/components/schemas":
                        yield f"{place}/{name}", child
                    yield from walk(child, f"{place}/{name}")
            elif isinstance(node, list):
                for number, child in enumerate(node):
                    yield from walk(child, f"{place}/{number}")
        return walk(self.root, "#")

    def examples(self):
        """(place, schema, example) wherever both stand side by side."""
        def walk(node, place):
            if isinstance(node, dict):
                if "schema" in node and "example" in node:
                    yield place, node["schema"], node["example"]
                for name, child in node.items():
                    yield from walk(child, f"{place}/{name}")
            elif isinstance(node, list):
                for number, child in enumerate(node):
                    yield from walk(child, f"{place}/{number}")
        return walk(self.root, "#")

    # ---- answers ----

    def check(self, response, answer, method="GET"):
        """Is this answer as the response object says? Fails with everything that is not."""
        wrong = self._wrong_headers(response, answer)
        if method == "HEAD" or answer.status == 304:
            wrong += ["a body"] if answer.body else []
        else:
            wrong += self._wrong_content(response, answer)
        assert not wrong, f"{answer.status} {answer.headers} {answer.body[:500]!r}\n" + "\n".join(wrong)

    def _wrong_headers(self, response, answer):
        described = {name.lower(): self.resolve(header) for name, header in response.get("headers", {}).items()}
        wrong = [f"header {name} is not described" for name in answer.headers.keys() - described.keys() - FRAMING]
        for name, header in described.items():
            if name in answer.headers:
                value = self._value(header["schema"], answer.headers[name])
                wrong += [f"header {name}{problem[1:]}" for problem in self.problems(header["schema"], value)]
            elif header.get("required"):
                wrong.append(f"header {name} is missing")
        return wrong

    @staticmethod
    def _value(schema, text):
        """A header's text as the type its schema asks for."""
        is_number = schema.get("type") == "integer" and re.fullmatch(r"0|[1-9][0-9]*", text)
        return int(text) if is_number else text

    def _wrong_content(self, response, answer):
        media = response.get("content", {}).get(answer.headers.get("content-type"))
        if media is None:
            return [f"content type {answer.headers.get('content-type')} is not described"]
        return [problem for value in self._values(answer) for problem in self.problems(media["schema"], value)]

    @staticmethod
    def _values(answer):
        """The JSON values of a body: one, one a line, or just its text."""
        kind = answer.headers["content-type"]
        if kind == "application/json":
            return [json.loads(answer.body)]
        if kind == "application/x-ndjson":
            assert answer.body == b"" or answer.body.endswith(b"\n")
            return [json.loads(line) for line in answer.body.split(b"\n")[:-1]]
        return [answer.body.decode()]
