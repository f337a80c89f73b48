"""Configuration files for the program under test: nested dicts and lists, written as YAML.

Only what a test needs of YAML: strings are always quoted (JSON's quoting is YAML's), several lines included.
"""
import json

from . import on_engines
from .tokens import AUDIENCE, ISSUER


def to_yaml(value, indent=0):
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(_entry(f"{pad}{name}:", item, indent) for name, item in value.items())
    if isinstance(value, list) and value:
        return "".join(_item(pad, item, indent) for item in value)
    return f"{pad}{json.dumps(value, ensure_ascii=False)}\n"


def _entry(label, item, indent):
    if isinstance(item, (dict, list)) and item:
        return f"{label}\n{to_yaml(item, indent + 1)}"
    return f"{label} {json.dumps(item, ensure_ascii=False)}\n"


def _item(pad, item, indent):
    if isinstance(item, (dict, list)) and item:
        return f"{pad}-\n{to_yaml(item, indent + 1)}"
    return f"{pad}- {json.dumps(item, ensure_ascii=False)}\n"


def merge(base, changes):
    """base with changes laid over it, mapping by mapping; None takes an entry away."""
    result = dict(base)
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merge(result[name], value)
        else:
            result[name] = value
    return result


def base_config(database, jwks_path):
    """The least a test server needs: a database, keys, no dictionaries; and the engines, where tests run on them."""
    return merge(on_engines.settings(database.name), {
        "auth": {"jwksFile": str(jwks_path), "issuer": ISSUER, "audiences": [AUDIENCE]},
        "refdata": {
            "postgres": {
                "jdbcUrl": database.jdbc_url,
                "username": database.user,
                "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD",
                "schema": "public",
            },
            "dictionaries": [],
        },
    })
