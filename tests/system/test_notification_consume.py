"""N1, N2, N5, C11: events become notifications, once; what is no event becomes a dead letter; who may see what."""
import os
import uuid

import pytest

from lib.entitlement import grant, revoke
from lib.freshet import run
from lib.notification import FAST, ROLE, encode, event, inbox, letters, message, publish, rows, statuses
from lib.refdata import module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually


@pytest.fixture(scope="module")
def db(module_refdata_db):  # noqa: F811
    return module_refdata_db


@pytest.fixture(scope="module")
def server(module_serve, db):
    return module_serve(db, FAST, args=["--roles", "entitlement,notification"])


@pytest.fixture
def client(server, token):
    with server.client(token("demo", subject="u_1", scope="entitlement:write notification:read")) as client:
        yield client


def test_n5_a_grant_and_a_revoke_are_in_the_inbox_newest_first(client, db):
    grant(client, "seed", "item1")
    revoke(client, "seed", "item1")

    def sent():
        found = inbox(client, "seed").json()["notifications"]
        return found if [each["status"] for each in found] == ["SENT", "SENT"] else None
    eventually(sent)
    answer = inbox(client, "seed", debug=True)
    assert answer.status == 200 and list(answer.json()) == ["user_id", "notifications"]
    assert answer.json()["user_id"] == "seed"
    first, second = answer.json()["notifications"]
    assert list(first) == ["notification_id", "event_id", "event_type", "stock_keeping_unit", "status", "created_at", "sent_at"]
    assert [first["event_type"], second["event_type"]] == ["EntitlementRevoked", "EntitlementGranted"]
    assert first["stock_keeping_unit"] == "item1" and first["created_at"].endswith("Z") and first["sent_at"].endswith("Z")
    assert inbox(client, "seed").json() == answer.json()
    told = db.query("select payload_json->>'version', payload_json->>'source', traceparent is not null"
                    " from notification.notifications where user_id = 'seed' order by sequence")
    assert told == [("1", "purchase", True), ("2", "refund", True)]


def test_n1_an_event_that_comes_again_changes_nothing(server, db):
    """In one batch, in another, under another event-id header (a requeue's); another tenant's is another event."""
    one = event("twice")
    publish(db, one, one, message(one))
    publish(db, message(one, **{"event-id": one["event_id"] + "-requeue-7"}), one)
    publish(db, {**one, "tenant_id": "other"}, event("twice"))
    eventually(lambda: len(rows(db, "twice")) == 3)
    assert sorted(db.query("select tenant_id, count(*) from notification.notifications where user_id = 'twice' group by 1")) == [
        ("demo", 2), ("other", 1)]
    assert db.value("select count(*) from notification.processed_events where event_id = %s", (one["event_id"],)) == 2
    assert server.metrics()['notification_events_total{result="duplicate"}'] >= 4
    eventually(lambda: statuses(db, "twice") == ["SENT"] * 3)


BAD = {
    "random bytes": os.urandom(64),
    "nothing": b"",
    "no UUID": encode(**event("bad", event_id="7")),
    "unknown type": encode(**event("bad", event_type="EntitlementLost")),
    "no version": encode(**event("bad", version=0)),
    "a negative version": encode(**event("bad", version=-1)),
    "no tenant": encode(**event("bad", tenant_id="")),
    "an odd tenant": encode(**event("bad", tenant_id="a/b")),
    "no user": encode(**event("")),
    "a long user": encode(**event("u" * 1025)),
    "a hidden text": encode(**event("bad\0worse")),
    "no text": encode(**event(b"\xff\xfe")),
    "no sku": encode(**event("bad", "")),
    "no time": encode(**event("bad", occurred_at="yesterday")),
    "cut": encode(**event("bad"))[:-3],
}


def test_n2_what_is_no_event_is_terminated_and_kept_and_holds_up_nobody(server, db):
    good = event("beside")
    for at, payload in enumerate(BAD.values()):
        publish(db, (b"k", {"event-id": f"bad-{at}"}, payload), event("beside"))
    wrong = message(event("liar"), tenant_id="other")
    publish(db, wrong, message(event("liar"), **{"event-id": str(uuid.uuid4())}), good)
    eventually(lambda: statuses(db, "beside") == ["SENT"] * (len(BAD) + 1))
    found = {row["event_id"]: row for row in eventually(lambda: (lambda all_of: all_of if len(all_of) >= len(BAD) + 2 else None)(
        letters(db, kind="terminated")))}
    for at, (name, payload) in enumerate(BAD.items()):
        row = found[f"bad-{at}"]
        assert row["payload"] == payload.hex(), name
        assert row["status"] == "DEAD" and row["reason"].startswith("not an event of entitlements: "), row
        assert row["topic"] == "entitlement.events" and row["deliveries"] == 1
        assert row["headers"] == {"event-id": f"bad-{at}"} and row["message_key"] == "\\x6b"
    assert rows(db, "liar") == [] and rows(db, "bad") == []
    assert len(server.logs(event="notification_dead_letter")) >= len(BAD)
    eventually(lambda: server.metrics().get('notification_dlq{kind="terminated"}', 0) >= len(BAD))


def test_n5_pages_of_an_inbox(client, db):
    publish(db, *[event("paged", f"sku{number}") for number in range(7)])
    eventually(lambda: statuses(db, "paged") == ["SENT"] * 7)
    seen, cursor = [], {}
    while True:
        page = inbox(client, "paged", limit=3, **cursor).json()
        seen += [each["stock_keeping_unit"] for each in page["notifications"]]
        assert len(page["notifications"]) <= 3
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == [f"sku{number}" for number in range(6, -1, -1)]
    for query in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"cursor": "x"}, {"cursor": 0}, {"since": 1}):
        assert (inbox(client, "paged", **query).status, inbox(client, "paged", **query).code) == (400, "BAD_REQUEST"), query
    assert inbox(client, "nobody").json() == {"user_id": "nobody", "notifications": []}
    assert inbox(client, "a/b%").json()["user_id"] == "a/b%"
    assert client.get(f"/v1/users/{'u' * 1025}/notifications").status == 400


def test_c5_c11_ones_own_needs_no_scope_anothers_does_and_another_tenants_is_not_there(server, db, token):
    publish(db, event("owner"))
    eventually(lambda: statuses(db, "owner") == ["SENT"])
    with server.client(token("demo", subject="owner")) as own:
        assert len(inbox(own, "owner").json()["notifications"]) == 1
        assert (inbox(own, "u_1").status, inbox(own, "u_1").code) == (403, "INSUFFICIENT_SCOPE")
        assert len(inbox(own, "owner", debug=True).json()["notifications"]) == 1
    with server.client(token("other", subject="owner", scope="notification:read")) as other:
        assert inbox(other, "owner").json()["notifications"] == []
        assert inbox(other, "owner", debug=True).json()["notifications"] == []
    with server.client() as nobody:
        assert inbox(nobody, "owner").status == 401 and inbox(nobody, "owner", debug=True).status == 401
    with server.client(token(None, subject="owner")) as homeless:
        assert (inbox(homeless, "owner").status, inbox(homeless, "owner").code) == (403, "TENANT_MISMATCH")


def test_n5_without_debug_there_is_no_debug_inbox(serve, refdata_db, token):  # noqa: F811
    quiet = serve(refdata_db, {**FAST, "debug": {"enabled": False}}, args=ROLE)
    with quiet.client(token("demo", subject="u_1")) as client:
        assert (inbox(client, "u_1", debug=True).status, inbox(client, "u_1", debug=True).code) == (404, "NOT_FOUND")
        assert inbox(client, "u_1").status == 200


def test_c8_health_names_the_role(server):
    with server.client() as client:
        assert client.get("/actuator/health").json()["roles"]["notification"]["status"] == "UP"


@pytest.mark.parametrize("kind", ["advisory", "terminated-advisory"])
@pytest.mark.parametrize("name", ["two words", "a.b", "all*"])
def test_n2_streams_of_advisories_have_names_that_nats_takes(serve, refdata_db, kind, name):  # noqa: F811
    server = serve.make(refdata_db, {"notification": {"nats": {kind: {"stream": name}}}})
    done = run("config", "--config", server.config_path, env=server.env)
    serve.started.remove(server)
    assert done.returncode == 1 and f"notification.nats.{kind}.stream: " in done.stderr + done.stdout
