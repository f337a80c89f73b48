"""Issue 15, 4: reads, updates and other POSTs of both clients; what is repeated has one effect."""
import uuid

import pytest

from driver import Refusal
from faulty import FaultyLine
from lib.refdata import make_table, module_refdata_db, own_refdata_db, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import free_port

ODD = ["DE", "a/b", "a,b", "%2C", "ключ 🔑", "x+y z", '"\\']
SCOPES = "entitlement:write entitlement:read notification:read"


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    write_builtin(module_refdata_db, "COUNTRY", {key: {"name": key} for key in ODD}, version=7)
    return module_serve(module_refdata_db, pod("COUNTRY", "FEATURE", "LOST", "BIG", "CLEARED"))


@pytest.fixture
def client(drive, server, token):
    return drive(f"http://127.0.0.1:{server.port}", token=token(scope=SCOPES))


def fresh():
    return str(uuid.uuid4())


# ---- reads ----

def test_items_are_read_whatever_their_keys_are(client):
    for key in ODD:
        assert client("get", dictionary="COUNTRY", key=key) == {"name": key}
    answer = client("get_many", dictionary="COUNTRY", keys=[*ODD, "none"])
    assert [item["key"] for item in answer["items"]] == ODD and (answer["missing"], answer["version"]) == (["none"], 7)
    assert client("get", dictionary="COUNTRY", key="none") is None
    assert client("version", dictionary="COUNTRY")["itemCount"] == len(ODD)
    listed = {each["dictCode"]: each["version"] for each in client("dictionaries")}
    assert listed["COUNTRY"] == 7 and "FEATURE" in listed


def test_a_refusal_has_its_code_and_is_not_repeated(client, server):
    before = server.metrics().get('http_requests_total{method="GET",route="/v1/tenants/{tenantId}/dictionaries/{dictCode}/version",status="404"}', 0)
    with pytest.raises(Refusal) as refusal:
        client("version", dictionary="NONE")
    assert (refusal.value.name, refusal.value.code, refusal.value.status) == ("ApiError", "UNKNOWN_DICTIONARY", 404)
    with pytest.raises(Refusal) as refusal:
        client("get", dictionary="COUNTRY", key="DE", min_version=8)
    assert refusal.value.code == "VERSION_NOT_COMMITTED"
    after = server.metrics()['http_requests_total{method="GET",route="/v1/tenants/{tenantId}/dictionaries/{dictCode}/version",status="404"}']
    assert after - before == 1


# ---- updates ----

def test_an_update_is_committed_and_then_read(client):
    first = client("update", dictionary="FEATURE", upserts={"a": 1, "ж": {"x": [None]}})
    assert first["status"] == "COMMITTED"
    second = client("update", dictionary="FEATURE", upserts={"a": 2}, deletes=["ж"])
    assert second["version"] == first["version"] + 1
    assert client("get", dictionary="FEATURE", key="a") == 2 and client("get", dictionary="FEATURE", key="ж") is None
    state = client("update_state", event_id=second["event_id"])
    assert (state["status"], state["committedVersion"]) == ("COMMITTED", second["version"])
    again = client("update", dictionary="FEATURE", upserts={"a": 2}, deletes=["ж"], event_id=second["event_id"])
    assert again["version"] == second["version"]
    with pytest.raises(Refusal) as refusal:
        client("update", dictionary="FEATURE", upserts={"a": 3}, event_id=second["event_id"])
    assert refusal.value.code == "EVENT_ID_CONFLICT"
    assert client("update", dictionary="FEATURE", upserts={"a": 2}, wait=False)["event_id"]


def test_a_snapshot_goes_in_as_many_requests_as_it_needs(client, module_refdata_db):
    """R8: 12,000 items are more than one request takes. An empty one clears."""
    version = client("numbered", dictionary="BIG", count=12_000)["version"]
    assert client("version", dictionary="BIG")["itemCount"] == 12_000
    assert client("get", dictionary="BIG", key="n11999") == {"i": 11999, "name": "item 11999"}
    wide = {f"w{i}": "ж" * 200_000 for i in range(24)}  # 9.6 MB of UTF-8, more than a body may have
    assert client("replace", dictionary="BIG", items=wide)["version"] == version + 1
    assert client("version", dictionary="BIG")["itemCount"] == 24
    assert client("replace", dictionary="BIG", items={})["version"] == version + 2
    assert client("version", dictionary="BIG")["itemCount"] == 0


def test_a_failed_update_says_why(drive, serve, refdata_db, token):
    make_table(refdata_db, "strict")
    strict = {"code": "STRICT", "loadSql": "select k, v from strict where tenant_id = :tenantId",
              "apply": {"upsertSql": "insert into strict select :tenantId, :key, to_jsonb((:payload #>> '{}')::int)"}}
    server = serve(refdata_db, pod(strict))
    client = drive(f"http://127.0.0.1:{server.port}", token=token())
    with pytest.raises(Refusal) as refusal:
        client("update", dictionary="STRICT", upserts={"k": "no number"})
    assert (refusal.value.name, refusal.value.code) == ("UpdateFailed", "UPDATE_REFUSED") and refusal.value.more["event_id"]


# ---- repetition ----

def test_what_lost_its_answer_is_repeated_and_has_one_effect(drive, server, token, module_refdata_db):
    """The server did the work, and its answer never came."""
    def once(command, **args):
        line.answers_to_lose = 1
        result = client(command, **args)
        assert line.answers_to_lose == 0
        return result
    with FaultyLine(server.port) as line:
        client = drive(line.url, token=token(scope=SCOPES))
        before = client("version", dictionary="LOST")["version"]
        assert once("update", dictionary="LOST", upserts={"a": 1})["version"] == before + 1
        sku, user, project, session = fresh(), fresh(), fresh(), fresh()
        assert once("create_item", sku=sku, title="T", price=1.5)["price"] == 1.5
        assert client("read_item", sku=sku)["title"] == "T"
        change = {"user_id": user, "sku": sku, "reason": "r", "purchase_id": "p"}
        assert once("grant", **change)["version"] == 1 and once("revoke", **change)["version"] == 2
        assert [row["status"] for row in client("entitlements", user_id=user)] == ["REVOKED"]
        assert once("post_message", project_id=project, session_id=session, content="hello")["reply"] == "hello"
        assert [row["content"] for row in once("messages", project_id=project, session_id=session)] == ["hello", "hello"]
        client("version", dictionary="LOST")
    assert module_refdata_db.value("select version from refdata.dictionary_meta where dict_code = 'LOST'") == before + 1


def test_a_post_without_a_key_is_not_repeated(drive, server, token):
    with FaultyLine(server.port) as line:
        client = drive(line.url, token=token())
        line.answers_to_lose = 1
        with pytest.raises(Refusal) as refusal:
            client("request", method="POST", target="/api/v1/items", body={"sku": fresh(), "title": "T"})
        assert refusal.value.name == "Unavailable" and line.connections == 1


def test_retry_after_is_honoured(drive, serve, refdata_db, token):
    """429: the limit lets one request pass in a second; three are answered, and none had to be refused for good."""
    server = serve(refdata_db, {**pod("FEATURE"), "limits": {"rates": [{"rate": 1}]}})
    client = drive(f"http://127.0.0.1:{server.port}", token=token())
    pending = [client.begin("version", dictionary="FEATURE") for _ in range(3)]
    assert [finish()["version"] for finish in pending] == [0, 0, 0]
    limited = sum(value for name, value in server.metrics().items() if name.startswith("http_rate_limited_total{"))
    assert 2 <= limited <= 8, "a client that ignores Retry-After asks some dozen times"


def test_a_server_that_does_not_answer_is_given_up_after_the_patience(drive, token):
    client = drive(f"http://127.0.0.1:{free_port()}", token=token(), patience=0.5)
    with pytest.raises(Refusal) as refusal:
        client("get", dictionary="FEATURE", key="a")
    assert refusal.value.name == "Unavailable"
    with pytest.raises(Refusal) as refusal:
        client("update", dictionary="FEATURE", upserts={"a": 1})
    assert refusal.value.name == "Unavailable" and uuid.UUID(refusal.value.more["event_id"])
    with pytest.raises(Refusal) as refusal:
        client("create_item", sku="a", title="T", key="mine")
    assert (refusal.value.name, refusal.value.more["key"]) == ("Unavailable", "mine")


def test_a_slow_server_is_waited_for(drive, server, token):
    with FaultyLine(server.port) as line:
        line.delay_s = 1.0
        hasty = drive(line.url, token=token(), timeout=0.2, patience=1.5)
        with pytest.raises(Refusal) as refusal:
            hasty("get", dictionary="COUNTRY", key="DE")
        assert refusal.value.name == "Unavailable"
        patient = drive(line.url, token=token())
        assert patient("get", dictionary="COUNTRY", key="DE") == {"name": "DE"}


@pytest.mark.whole
def test_an_update_waits_for_a_database_that_is_down(drive, serve, own_postgres, own_refdata_db, token):
    """503 with Retry-After until PostgreSQL is there again; one effect."""
    server = serve(own_refdata_db, pod("FEATURE"))
    client = drive(f"http://127.0.0.1:{server.port}", token=token(), patience=60)
    assert client("update", dictionary="FEATURE", upserts={"a": 1})["version"] == 1
    assert client("get", dictionary="FEATURE", key="a") == 1
    own_postgres.stop()
    finish = client.begin("update", dictionary="FEATURE", upserts={"a": 2})
    assert client("get", dictionary="FEATURE", key="a") == 1
    own_postgres.start()
    assert finish()["version"] == 2
    assert client("get", dictionary="FEATURE", key="a") == 2


# ---- read your writes ----

def behind(database):
    """A dictionary whose loads take for ever once `pause` has a row; single keys can be read all the same. A snapshot does not say
    which keys it changed, so that a pod has to load everything."""
    make_table(database, "slow", {"k": '"old"'})
    database.query("create table pause(seconds float8)")
    set_version(database, "SLOW", 1)
    return {"code": "SLOW", "loadSql": "select k, v from slow, (select pg_sleep(coalesce(max(seconds), 0)) from pause) as p"
                                       " where tenant_id = :tenantId",
            "loadKeysSql": "select k, v from slow where tenant_id = :tenantId and k = any(:keys)",
            "apply": {"snapshotReplaceSql": "update slow set v = e -> 'payload' from jsonb_array_elements(:snapshotJson) e"
                                            " where tenant_id = :tenantId and k = e ->> 'key'"}}


def test_a_read_sees_the_own_write_also_from_a_pod_that_is_behind(drive, serve, refdata_db, token):
    """R7: the read demands the version of the write. Without that the pod answers what it has."""
    changes = pod(behind(refdata_db), cache={"sweepInterval": "1h"})
    changes["refdata"]["barrier"] = {"waitMs": 20}
    server = serve(refdata_db, changes)
    url = f"http://127.0.0.1:{server.port}"
    client, careless = drive(url, token=token()), drive(url, token=token(), read_your_writes=False)
    assert client("get", dictionary="SLOW", key="k") == "old"
    refdata_db.query("insert into pause values (600)")
    version = client("replace", dictionary="SLOW", items={"k": "new"})["version"]
    assert careless("get", dictionary="SLOW", key="k") == "old"
    assert client("get", dictionary="SLOW", key="k") == "new"
    assert client("get_many", dictionary="SLOW", keys=["k"])["version"] >= version
    assert careless("get", dictionary="SLOW", key="k", min_version=version) == "new"


# ---- the rest ----

def test_entities_and_notifications_are_read(client):
    sku, user = fresh(), fresh()
    client("create_item", sku=sku, title="Tea", price=2)
    found = client("entity", entity_type="item", entity_id=sku)
    assert found["data"]["title"] == "Tea" and found["source_module"] == "intake"
    assert client("entity", entity_type="item", entity_id=sku, fields=["title", "price"])["data"] == {"title": "Tea", "price": 2}
    assert client("entity", entity_type="dictionary_item", entity_id=["COUNTRY", "a/b"])["data"]["payload"] == {"name": "a/b"}
    assert client("entity", entity_type="item", entity_id="none") is None
    client("grant", user_id=user, sku=sku, reason="r", purchase_id="p")
    assert client("notifications", user_id="nobody") == []


@pytest.mark.whole
def test_pages_are_read_to_the_end(client):
    """250 messages are more than a page."""
    project, session = fresh(), fresh()
    for number in range(125):
        client("post_message", project_id=project, session_id=session, content=f"m{number}")
    rows = client("messages", project_id=project, session_id=session)
    assert [row["sequence"] for row in rows] == list(range(1, 251))
