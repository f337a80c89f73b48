"""The published schemas of Kubernetes, Istio and the Prometheus operator, read strictly: a field that a schema does not name is a
mistake, as with `kubectl --validate=strict`."""
import functools
import json
import os
from pathlib import Path

import jsonschema
import yaml

# Values that the schemas describe by words only.
SCALARS = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {
        "type": ["string", "integer"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"},
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": {"type": "object"},
}


def close(schema):
    """Forbids fields that are not named, in every object of an OpenAPI schema."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: ({field: close(each) for field, each in value.items()} if name == "properties" else close(value))
              for name, value in schema.items() if name not in ("description", "default", "example", "format")}
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result.pop("anyOf", None)
        result["type"] = ["integer", "string"]
    elif "properties" in schema and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    if schema.get("nullable") and isinstance(result.get("type"), str):
        result["type"] = [result["type"], "null"]
    return result


class Schemas:
    @functools.cached_property
    def folder(self):
        folder = os.environ.get("FRESHET_DEPLOY_SCHEMAS")
        assert folder, "the schemas could not be fetched from the Go module proxy: see the lines before the tests"
        return Path(folder)

    @functools.cached_property
    def kubernetes(self):
        """(apiVersion, kind) → name of the definition; and all definitions, closed."""
        definitions = json.loads((self.folder / "swagger.json").read_text(encoding="utf-8"))["definitions"]
        kinds = {}
        for name, schema in definitions.items():
            for gvk in schema.get("x-kubernetes-group-version-kind", []):
                version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
                kinds[version, gvk["kind"]] = name
        return kinds, {name: SCALARS.get(name) or close(schema) for name, schema in definitions.items()}

    @functools.cached_property
    def resources(self):
        """(apiVersion, kind) → schema of a custom resource."""
        found = {}
        for path in sorted(self.folder.glob("*.yaml")):
            for crd in yaml.load_all(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                for version in crd["spec"]["versions"] if crd else []:
                    schema = close(version["schema"]["openAPIV3Schema"])
                    schema["properties"].update({"apiVersion": {"type": "string"}, "kind": {"type": "string"},
                                                 "metadata": {"type": "object"}})
                    found[f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]] = schema
        return found

    def mistakes(self, document):
        """One line for each mistake of a resource."""
        key = document.get("apiVersion"), document.get("kind")
        kinds, definitions = self.kubernetes
        if key in kinds:
            schema = {"$ref": f"#/definitions/{kinds[key]}", "definitions": definitions}
        elif key in self.resources:
            schema = self.resources[key]
        else:
            return [f"{key} is in no schema"]
        validator = jsonschema.Draft4Validator(schema)
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in validator.iter_errors(document)]
