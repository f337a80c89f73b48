"""A client of every operation of api/openapi.yaml, which asks with the examples of its parameters and bodies."""
import json
import re
from urllib.parse import quote

from lib.fixtures import ROOT
from lib.openapi import Document
from lib.wait import eventually
from lib.wire import RawConnection, request_bytes

DOCUMENT = Document(ROOT / "api/openapi.yaml")
OPERATIONS = DOCUMENT.operations
TENANT = "demo"


def target_of(operation, **values):
    """The operation's path and query, of the examples of its required parameters unless told otherwise."""
    path, query = operation.path, []
    for parameter in operation.parameters:
        value = values.get(parameter["name"], parameter.get("example") if parameter.get("required") else None)
        if value is None:
            continue
        text = ",".join(quote(part, safe="") for part in value) if isinstance(value, list) else quote(str(value), safe="")
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", text)
        elif parameter["in"] == "query":
            query.append(f"{parameter['name']}={text}")
    return path + ("?" + "&".join(query) if query else "")


def raw(server, data, method="GET"):
    """The answer; of a stream without an end, what comes first."""
    with RawConnection(server.port) as connection:
        connection.send(data)
        if not re.search(rb"/(watch|stream)\b", data.split(b"\r\n")[0]):
            return connection.read_response(method)
        answer = connection.read_head()
        if method != "HEAD":
            is_stream = "transfer-encoding" in answer.headers
            answer.body = connection.read_chunk() if is_stream else connection.read_exactly(int(answer.headers["content-length"]))
        return answer


class Asking:
    """A client whose requests go by raw(): each on a connection of its own, and streams may be endless."""

    def __init__(self, server, bearer=None):
        self.server, self.token = server, bearer

    def request(self, method, target, body=b"", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.token}"
        if body:
            headers.setdefault("Content-Type", "application/json")
        return raw(self.server, request_bytes(method, target, headers, body), method)

    def get(self, target, **headers):
        return self.request("GET", target, **headers)

    def post(self, target, value, **headers):
        return self.request("POST", target, value if isinstance(value, bytes) else json.dumps(value).encode(), **headers)

    def ask_with_key(self, operation, **query):
        """A POST with its own example, and the key of its example where one is required."""
        key = {"Idempotency_Key": parameter["example"] for parameter in operation.parameters
               if parameter["name"] == "Idempotency-Key" and parameter.get("required")}
        return self.post(target_of(operation, **query), operation.body, **key)

    def ask(self, operation, tenantId=None, **headers):  # pylint: disable=invalid-name
        """The operation with its own examples."""
        target = target_of(operation, **({"tenantId": tenantId} if tenantId else {}))
        return self.request(operation.method, target, json.dumps(operation.body).encode() if operation.body else b"", **headers)


# ---- updates ----

def event(number):
    return f"00000000-0000-4000-8000-{number:012}"


def update(number, code="FEATURE", items=(), **members):
    return {"eventId": event(number), "dictCode": code, "eventType": "DELTA", "items": list(items), **members}


def item(key, payload=1):
    return {"key": key, "op": "UPSERT", "payload": payload}


def committed(client, target, body):
    """Its decision; on a slow machine the wait may have to be repeated."""
    return eventually(lambda: (answer := client.post(target, body)).status != 202 and answer)
