"""O2: a relay in another process is woken by a notice outside the writing transaction; its polls are an hour apart here."""
import uuid

import pytest

from lib.outbox import live, versions
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually


def settings(poll):
    result = pod("D")
    result["refdata"]["outbox"] = {"poll-interval": poll}
    return result


def update(n):
    return {"dictCode": "D", "eventId": str(uuid.uuid4()), "eventType": "DELTA", "occurredAt": "2026-02-27T12:00:00Z",
            "items": [{"key": "k", "op": "UPSERT", "payload": n}]}


@pytest.mark.tsan
def test_a_relay_elsewhere_is_woken_by_a_commit(serve, refdata_db, token):
    writer = serve(refdata_db, settings("1h"), args=("--roles", "command,apply"))
    serve(refdata_db, settings("1h"), args=("--roles", "relay"))
    client = writer.client(token())
    for n in range(1, 11):
        answer = client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000", update(n))
        assert answer.status in (200, 202), answer.body
        # once each, unless their results could not be recorded in time on a loaded machine
        eventually(lambda n=n: live(refdata_db) == 0 and list(dict.fromkeys(versions(refdata_db, "D"))) == list(range(1, n + 1)))
