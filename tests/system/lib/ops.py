"""What the tests of the operator's API share."""
import json

READ = "ops:read"
ALL = "ops:read ops:all-tenants"
WRITE = "ops:read ops:write"


def get(client, path):
    """The answer of a list or an object, which must be there."""
    answer = client.get("/v1/ops/" + path)
    assert answer.status == 200, answer.body
    return answer.json()


def items(client, path):
    return get(client, path)["items"]


def pages(client, path):
    """All items of a list, page by page to its end, and the number of pages."""
    found, cursor, count = [], None, 0
    while count == 0 or cursor:
        count += 1
        assert count < 1000, "a list that does not end"
        answer = get(client, path + (f"{'&' if '?' in path else '?'}cursor={cursor}" if cursor else ""))
        found += answer["items"]
        cursor = answer["next_cursor"]
    return found, count


def post(client, path, body):
    return client.post("/v1/ops/" + path, json.dumps(body), **{"Content-Type": "application/json"})
