"""Issue 15, point 1: what operators see of dictionaries, keys, streams, lag, stored answers and hydration, and the audit of what they do."""
import json
import uuid

import pytest

from lib.items import fresh, item, post as post_item
from lib.ops import ALL, READ, WRITE, get, items, pages, post
from lib.refdata import make_table, module_refdata_db, own_refdata_db, pod, refdata_db, set_version, sql_dictionary, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.watcher import Watcher

HOSTILE = ["<script>alert(1)</script>", "\u202eRTL", "line\nbreak", "a/b?c#d", "100%", "quo\"te\\", "k\u00e4se", " "]


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    make_table(module_refdata_db, "city", {f"c{n:02}": '{"n": 1}' for n in range(10)})
    set_version(module_refdata_db, "CITY", 3)
    return module_serve(module_refdata_db, pod("FEATURE", "HELD", "QUIET", sql_dictionary("CITY")))


# ---- dictionaries ----

def test_a_dictionary_shows_what_is_committed_and_what_each_pod_holds(server, module_refdata_db, token):
    write_builtin(module_refdata_db, "HELD", {"a": 1, "b": {"x": 2}}, 7)
    write_builtin(module_refdata_db, "QUIET", {"a": 1}, 2)
    with server.client(token("demo", scope=READ)) as client:
        version = eventually(lambda: client.get("/v1/tenants/demo/dictionaries/HELD/version").json())

        def held():
            (row,) = items(client, "dictionaries?dict=HELD")
            return row if row["held"] else None
        row = eventually(held)
        (pod_row,) = items(client, "pods?state=up")
        (quiet,) = items(client, "dictionaries?dict=QUIET")
    assert (row["tenant_id"], row["dict_code"], row["database"], row["version"]) == ("demo", "HELD", "main", 7)
    assert (row["items"], row["digest"], row["last_error"]) == (2, version["digest"], None) and row["bytes"] > 0
    assert row["loaded_at"] == version["loadedAt"] and pod_row["started_at"][:19] <= row["last_read_at"][:19]
    assert row["pods"] == [{"pod_id": pod_row["pod_id"], "version": 7, "loaded_at": version["loadedAt"], "last_error": None}]
    assert (quiet["version"], quiet["held"], quiet["pods"], quiet["items"]) == (2, False, [], None)


def test_dictionaries_are_paged_by_tenant_and_code(server, module_refdata_db, token):
    for tenant in ("p-1", "p-2"):
        for code in ("B", "a", "Z"):
            set_version(module_refdata_db, code, 1, tenant)
    with server.client(token("p-1", scope=ALL)) as client:
        found, count = pages(client, "dictionaries?tenant=*&limit=1")
        names = [(row["tenant_id"], row["dict_code"]) for row in found]
        assert names == sorted(names) and len(set(names)) == len(names) == count
        assert {name for name in names if name[0].startswith("p-")} == {(t, c) for t in ("p-1", "p-2") for c in ("B", "a", "Z")}
        assert [row["dict_code"] for row in items(client, "dictionaries")] == ["B", "Z", "a"]
        assert [row["tenant_id"] for row in items(client, "dictionaries?tenant=*&dict=Z")] == ["p-1", "p-2"]


@pytest.mark.parametrize("code, source", [("FEATURE", "memory"), ("UNHELD", "postgres")])
def test_keys_are_listed_in_the_order_of_their_bytes_and_found_by_prefix(server, module_refdata_db, token, code, source):
    """From memory where the process holds the dictionary, else from the built-in table."""
    keys = [f"k{n:03}" for n in range(30)] + HOSTILE
    write_builtin(module_refdata_db, code, {key: {"key": key} for key in keys}, 1)
    with server.client(token("demo", scope=READ)) as client:
        if source == "memory":
            client.get(f"/v1/tenants/demo/dictionaries/{code}/version")
        path = f"dictionaries/demo/{code}/keys"
        assert get(client, path).get("source", "postgres") == source
        found, count = pages(client, path + "?limit=7")
        assert [row["key"] for row in found] == sorted(keys, key=str.encode) and count == 6
        assert [row["key"] for row in pages(client, path + "?prefix=k02&limit=3")[0]] == [f"k{n:03}" for n in range(20, 30)]
        assert [row["key"] for row in items(client, path + "?prefix=k007")] == ["k007"]
        assert [row["key"] for row in items(client, path + "?prefix=k%C3%A4")] == ["käse"]
        assert items(client, path + "?prefix=none") == []
        assert {row["bytes"] for row in items(client, path + "?prefix=k0")} == {len('{"key": "k000"}')}


def test_keys_of_a_dictionary_with_sql_come_from_memory(server, token):
    with server.client(token("demo", scope=READ)) as client:
        client.get("/v1/tenants/demo/dictionaries/CITY/version")
        answer = get(client, "dictionaries/demo/CITY/keys?limit=4")
        assert answer["source"] == "memory" and [row["key"] for row in answer["items"]] == ["c00", "c01", "c02", "c03"]


def test_an_item_s_history_has_each_version_that_may_have_changed_it(server, token):
    def update(client, kind, *keys):
        body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": kind,
                "items": [{"key": key, **({"op": "UPSERT"} if kind == "DELTA" else {}), "payload": 1} for key in keys]}
        answer = client.post("/v1/tenants/past/updates?consistencyMode=WAIT_COMMIT", json.dumps(body), **{"Content-Type": "application/json"})
        assert answer.status == 200, answer.body
        return answer.json()["committedVersion"], body["eventId"]
    with server.client(token("past", scope=READ)) as client:
        first, _, third, fourth = (update(client, *u) for u in (("DELTA", "x/y", "b"), ("DELTA", "b"), ("SNAPSHOT", "b"), ("DELTA", "x/y")))
        found = items(client, "dictionaries/past/FEATURE/items/x%2Fy/history")
        assert [(row["version"], row["event_id"], row["op"]) for row in found] == [
            (*fourth, "DELTA"), (*third, "SNAPSHOT"), (*first, "DELTA")]
        assert [row["version"] for row in pages(client, "dictionaries/past/FEATURE/items/b/history?limit=1")[0]] == [3, 2, 1]
        assert items(client, "dictionaries/past/NONE/items/b/history") == []


# ---- streams and lag ----

def test_streams_are_listed_with_their_readers_for_their_tenant_only(server, token):
    watchers = [Watcher(server, token("demo"), "demo", "FEATURE") for _ in range(2)]
    with server.client(token("demo", scope=READ)) as client:
        row = eventually(lambda: [r for r in items(client, "streams?kind=watch") if r["readers"] == 2])[0]
        assert (row["kind"], row["tenant_id"], row["name"]) == ("watch", "demo", "FEATURE") and row["position"] >= 0
        eventually(lambda: items(client, "pods?state=up")[0]["streams"] == 2)
        with server.client(token("other", scope=READ)) as stranger:
            assert items(stranger, "streams") == []
        with server.client(token("other", scope=ALL)) as operator:
            assert [r["name"] for r in items(operator, "streams?tenant=*")] == ["FEATURE"]
        for watcher in watchers:
            watcher.raw.close()
        eventually(lambda: items(client, "streams") == [])


def test_lag_is_shown_for_each_group_and_partition(serve, refdata_db, token):
    """Commands are accepted and none is applied."""
    server = serve(refdata_db, pod("FEATURE"), args=["--roles", "command,ops"])
    with server.client(token("demo", scope=READ)) as client:
        for n in range(3):
            body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": "DELTA",
                    "items": [{"key": f"k{n}", "op": "UPSERT", "payload": 1}]}
            assert client.post("/v1/tenants/demo/updates", json.dumps(body), **{"Content-Type": "application/json"}).status == 202
        rows = items(client, "lag?topic=refdata.commands&limit=500")
        behind = [row for row in rows if row["lag"]]
        assert len(behind) == 1 and behind[0]["group"] == "refdata-apply" and behind[0]["engine"] == "postgres"
        assert (behind[0]["lag"], behind[0]["end"] - behind[0]["position"]) == (3, 3)
        assert len({row["partition"] for row in rows}) == len(rows) > 1
        assert get(client, "overview?tenant=demo")["lag"]["max_messages"] == 3
        assert items(client, "lag?group=none") == []


# ---- stored answers ----

def test_stored_answers_are_listed_without_their_bodies(server, token):
    key = fresh("key-")
    with server.client(token("demo", subject="ann", scope=READ)) as client:
        assert post_item(client, item(), key=key).status == 201
        (row,) = items(client, f"idempotency-keys?key={key}")
        assert row.pop("created_at") < row.pop("expires_at")
        assert row == {"module": "intake", "tenant_id": "demo", "key": key, "route": "POST /api/v1/items", "user_id": "ann",
                       "status": "stored", "response_status": 201}
        assert items(client, f"idempotency-keys?key={key}&user=bob") == [] == items(client, f"idempotency-keys?key={key}&module=chat")
        assert len(items(client, f"idempotency-keys?module=intake&user=ann&key={key}&route=/api/v1/items")) == 1
        body = {"eventId": str(uuid.uuid4()), "dictCode": "FEATURE", "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": 1}]}
        assert client.post("/v1/tenants/demo/updates", json.dumps(body),
                           **{"Content-Type": "application/json", "Idempotency-Key": key}).status in (200, 202)
        (row,) = items(client, f"idempotency-keys?module=refdata&key={key}")
        assert (row["event_id"], row["user_id"], row["module"]) == (body["eventId"], "ann", "refdata")
    with server.client(token("other", scope=READ)) as stranger:
        assert items(stranger, f"idempotency-keys?key={key}") == [] == items(stranger, f"idempotency-keys?module=refdata&key={key}")


# ---- hydration, and the audit of what operators do ----

def test_an_absence_can_be_seen_and_forgotten_and_it_is_written_down_who_did_and_why(server, token):
    sku = fresh()
    with server.client(token("demo", subject="olga", scope=WRITE)) as client:
        assert client.get(f"/v1/hydration/item/{sku}").status == 404
        query = f"entity_type=item&entity_id={sku}"
        (row,) = eventually(lambda: items(client, f"hydration?kind=absences&{query}"))  # it is stored after the answer
        assert (row["kind"], row["source_module"], row["reason"], row["state"]) == (
            "absences", "intake", "deleted_or_never_existed", "serves")
        assert items(client, f"hydration?{query}")[0]["state"] == "answered"  # flights, unless another kind is asked for
        assert items(client, f"hydration?kind=copies&{query}") == []

        entity = {"entity_type": "item", "entity_id": sku}
        assert post(client, "hydration/forget", {**entity, "reason": "try", "dry_run": True}).json() == {
            "matched": 1, "changed": 0, "dry_run": True}
        assert len(items(client, f"hydration?kind=absences&{query}")) == 1
        assert post(client, "hydration/forget", {**entity, "reason": "it exists now"}).json() == {
            "matched": 1, "changed": 1, "dry_run": False}
        assert items(client, f"hydration?kind=absences&{query}") == [] == items(client, f"hydration?{query}")
        (audit,) = [row for row in items(client, "audit") if row["target"] == f"item/{sku}"]
        assert audit.pop("at").endswith("Z")
        assert audit == {"database": "store", "tenant_id": "demo", "who": "olga", "action": "hydration.forget", "target": f"item/{sku}",
                         "matched": 1, "changed": 1, "reason": "it exists now"}
    with server.client(token("other", scope=READ)) as stranger:
        assert all(row["target"] != f"item/{sku}" for row in items(stranger, "audit"))


def test_an_operator_forgets_nothing_of_other_tenants(server, token):
    sku = fresh()
    with server.client(token("demo", scope=WRITE)) as client:
        assert client.get(f"/v1/hydration/item/{sku}").status == 404
        eventually(lambda: items(client, f"hydration?kind=absences&entity_id={sku}"))
    body = {"entity_type": "item", "entity_id": sku, "reason": "?"}
    with server.client(token("other", scope=WRITE)) as stranger:
        assert post(stranger, "hydration/forget", body).json()["matched"] == 0
        assert post(stranger, "hydration/forget?tenant=demo", body).code == "TENANT_MISMATCH"
    with server.client(token("other", scope=f"{WRITE} ops:all-tenants")) as operator:
        assert post(operator, "hydration/forget?tenant=*", body).json()["field"] == "tenant"
        assert post(operator, "hydration/forget?tenant=demo", body).json()["changed"] == 1


@pytest.mark.parametrize("change, field", [
    ({"reason": None}, "reason"), ({"reason": ""}, "reason"), ({"reason": "x" * 501}, "reason"), ({"reason": 7}, "reason"),
    ({"entity_id": None}, "entity_id"), ({"entity_id": "a\0"}, "entity_id"), ({"entity_type": ""}, "entity_type"),
    ({"ids": ["1"]}, "body"), ({"stray": 1}, "body"), ({"dry_run": "yes"}, "dry_run"),
])
def test_a_change_that_is_not_whole_is_400_and_names_the_field(server, token, change, field):
    body = {"entity_type": "item", "entity_id": "x", "reason": "because", **change}
    with server.client(token("demo", scope=WRITE)) as client:
        answer = post(client, "hydration/forget", {name: value for name, value in body.items() if value is not None})
        assert (answer.status, answer.json().get("field")) == (400, field), answer.body


def test_the_audit_is_paged_newest_first(server, token):
    with server.client(token("audited", scope=WRITE)) as client:
        for n in range(5):
            post(client, "hydration/forget", {"entity_type": "item", "entity_id": f"x{n}", "reason": f"{n}"})
        found, count = pages(client, "audit?limit=2")
        assert [row["reason"] for row in found] == ["4", "3", "2", "1", "0"] and count == 3
