"""P2: the examples of api/openapi.yaml are what the demo answers."""
import json
import re

import pytest

from conftest import ROOT
from lib.freshet import run
from lib.openapi_client import DOCUMENT, OPERATIONS, TENANT, Asking, committed, target_of
from lib.wait import eventually


@pytest.fixture(scope="module")
def demo(module_serve, module_database):
    """`./dev run` as it comes, with the demo's rows."""
    server = module_serve.make(module_database, config=(ROOT / "config/freshet.yaml").read_text(encoding="utf-8"))
    bearer = run("token", "--tenant", TENANT, "--scope", "entitlement:write entitlement:read", env=server.env)
    migrated = run("migrate", "--config", server.config_path, env=server.env)
    assert (bearer.returncode, migrated.returncode) == (0, 0), bearer.stderr + migrated.stderr
    module_database.run_file(ROOT / "config/demo.sql")
    client = Asking(server.start(), bearer.stdout.strip())
    operation = OPERATIONS["postUpdate"]
    committed(client, target_of(operation, consistencyMode="WAIT_COMMIT"), operation.body)
    for name in ("grantEntitlement", "revokeEntitlement"):  # asked again they are replayed, in whatever order
        eventually(lambda: client.ask_with_key(OPERATIONS[name]).status == 200)  # pylint: disable=cell-var-from-loop
    return client


def described(name):
    """(media type, example, header examples) of the operation's good answer."""
    response = OPERATIONS[name].responses.get(200) or OPERATIONS[name].responses[201]
    entries = {name.lower(): DOCUMENT.resolve(entry) for name, entry in response.get("headers", {}).items()}
    headers = {name: str(entry["example"]) for name, entry in entries.items() if "example" in entry}
    return [(kind, media["example"], headers) for kind, media in response["content"].items() if "example" in media]


def timeless(value):
    """Without what differs each time: times, and ids that the server makes."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", json.dumps(value, sort_keys=True))
    return re.sub(r'"id": "[0-9a-f-]{36}"', '"id": "ID"', text)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if described(name)])
def test_examples_are_what_the_demo_answers(demo, name):
    """Asked with the examples of the parameters, the demo answers the example. Only times differ."""
    operation = OPERATIONS[name]
    query = {parameter["name"]: parameter["example"] for parameter in operation.parameters
             if parameter["in"] == "query" and "example" in parameter}
    for kind, example, headers in described(name):
        if operation.method == "POST":
            answer = demo.ask_with_key(operation, **query)
            said = answer.json()
        elif kind == "application/json":
            answer = demo.get(target_of(operation, **query))
            said = answer.json()
        else:
            answer = demo.get(target_of(operation, **query), Accept=kind)
            said = json.loads(answer.body.split(b"\n")[0])
        assert answer.status in (200, 201)
        assert (answer.headers["content-type"], timeless(said)) == (kind, timeless(example))
        assert {header: answer.headers[header] for header in headers} == headers
