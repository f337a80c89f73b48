"""Issue 15, point 1: GET /v1/ops/updates, where an operator looks for an update that stays PENDING, and /v1/ops in general: tenants,
scopes, parameters, pages."""
import json
import threading
import uuid

import pytest

from lib.ops import ALL, READ, get, items, pages
from lib.refdata import module_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    return module_serve(module_refdata_db, pod("FEATURE"))


@pytest.fixture
def updates(module_refdata_db):
    """Adds rows to update_request, the newest last; returns their ids."""
    tenants = set()

    def add(count, tenant, status="COMMITTED", dict_code="COUNTRY", at="clock_timestamp()", **columns):
        ids = [str(uuid.uuid4()) for _ in range(count)]
        names = "".join(f", {name}" for name in columns)
        for n, event in enumerate(ids):
            module_refdata_db.query(
                f"insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, created_at{names})"
                f" values (%s, %s, %s, %s, '', {at} + %s * interval '1 ms'{', %s' * len(columns)})",
                (tenant, event, dict_code, status, n, *columns.values()))
        tenants.add(tenant)
        return ids
    yield add
    module_refdata_db.query("delete from refdata.update_request where tenant_id = any(%s)", (list(tenants),))


def event_ids(rows):
    return [row["event_id"] for row in rows]


# ---- the list ----

def test_updates_are_listed_newest_first_with_all_that_is_known(server, token, updates):
    ids = updates(2, "acme", "FAILED", error_code="UPDATE_REFUSED", error_message="no", requested_by="ann")
    with server.client(token("acme", scope=READ)) as client:
        answer = get(client, "updates")
    assert event_ids(answer["items"]) == ids[::-1] and answer["next_cursor"] is None and answer["unavailable"] == []
    first = answer["items"][0]
    assert first.pop("created_at").endswith("Z") and first.pop("updated_at").endswith("Z") and first.pop("age_seconds") >= 0
    assert first == {"database": "main", "tenant_id": "acme", "event_id": ids[1], "dict_code": "COUNTRY", "event_type": None,
                     "status": "FAILED", "committed_version": None, "requested_by": "ann", "source": "REST",
                     "error_code": "UPDATE_REFUSED", "error_message": "no"}


def test_each_filter_narrows_the_list(server, token, updates):
    old = updates(1, "acme", "PENDING", at="timestamptz '2026-01-01T00:00:00Z'")
    bad = updates(1, "acme", "FAILED", error_code="STALE_SOURCE_REVISION")
    other = updates(1, "acme", dict_code="CURRENCY")
    with server.client(token("acme", scope=READ)) as client:
        def found(query):
            return event_ids(items(client, "updates?" + query))
        assert found("status=PENDING") == old and found("status=FAILED") == bad
        assert found("dict=CURRENCY") == other and found("error_code=STALE_SOURCE_REVISION") == bad
        assert found("to=2026-01-01T00:00:00.001Z") == old and found("from=2026-01-01T00:00:00.001Z") == other + bad
        assert found("from=2026-01-01T01:00:00%2B01:00&to=2026-01-02T00:00:00Z") == old
        assert found(f"event_id={bad[0]}") == bad and found(f"event_id={uuid.uuid4()}") == []
        assert found("status=PENDING&dict=CURRENCY") == []
        assert found("database=main") == other + bad + old


@pytest.mark.parametrize("path, field", [
    ("updates?stray=1", "stray"),
    ("updates?limit=0", "limit"),
    ("updates?limit=501", "limit"),
    ("updates?limit=x", "limit"),
    ("updates?status=pending", "status"),
    ("updates?from=yesterday", "from"),
    ("updates?event_id=7", "event_id"),
    ("updates?cursor=zz", "cursor"),
    ("updates?cursor=", "cursor"),
    ("updates?cursor=00", "cursor"),
    ("updates?database=none", "database"),
    ("updates?status=PENDING&status=FAILED", "status"),
    ("updates?tenant=a%20b", "tenant"),
    ("updates?dict=%ff", "dict"),
    ("updates/acme/7", "event_id"),
    ("pods?tenant=acme", "tenant"),
    ("pods?state=x", "state"),
    ("overview?limit=1", "limit"),
    ("config?x=1", "x"),
    ("hydration?kind=x", "kind"),
    ("streams?kind=x", "kind"),
    ("idempotency-keys?module=x", "module"),
    ("dictionaries/acme/COUNTRY/keys?cursor=1", "cursor"),
    ("dictionaries/acme/COUNTRY/items/x/history?tenant=acme", "tenant"),
])
def test_a_bad_parameter_is_400_and_names_the_field(server, token, path, field):
    with server.client(token("acme", scope=ALL)) as client:
        answer = client.get("/v1/ops/" + path)
        assert (answer.status, answer.code, answer.json().get("field")) == (400, "BAD_REQUEST", field), answer.body


def test_a_cursor_belongs_to_its_list(server, token, updates):
    updates(2, "acme")
    with server.client(token("acme", scope=ALL)) as client:
        cursor = get(client, "updates?limit=1")["next_cursor"]
        assert cursor and client.get(f"/v1/ops/dictionaries?cursor={cursor}").json()["field"] == "cursor"


# ---- tenants and scopes ----

def test_the_token_says_whose_rows_are_seen(server, token, updates):
    mine, theirs = updates(1, "mine"), updates(1, "theirs")
    with server.client(token("mine", scope=READ)) as client:
        assert event_ids(items(client, "updates")) == mine == event_ids(items(client, "updates?tenant=mine"))
        assert items(client, f"updates?event_id={theirs[0]}") == []
        for path in ("updates?tenant=theirs", "updates?tenant=*", f"updates/theirs/{theirs[0]}", "dictionaries?tenant=*",
                     "dictionaries/theirs/COUNTRY/keys", "dictionaries/theirs/COUNTRY/items/x/history", "hydration?tenant=theirs",
                     "streams?tenant=*", "audit?tenant=*", "idempotency-keys?tenant=theirs", "overview?tenant=*"):
            answer = client.get("/v1/ops/" + path)
            assert (answer.status, answer.code) == (403, "TENANT_MISMATCH"), (path, answer.body)
        assert client.get(f"/v1/ops/updates/mine/{theirs[0]}").code == "UNKNOWN_UPDATE"
    with server.client(token("mine", scope=ALL)) as client:
        assert event_ids(items(client, "updates")) == mine  # unless it is asked for, only one's own
        assert event_ids(items(client, "updates?tenant=theirs")) == theirs
        assert event_ids(items(client, "updates?tenant=*")) == theirs + mine
        assert event_ids(items(client, f"updates?tenant=*&event_id={theirs[0]}")) == theirs


def test_without_the_scope_nothing_is_shown(server, token):
    reads = ["overview", "pods", "dictionaries", "updates", "lag", "streams", "audit", "config", "hydration", "idempotency-keys",
             f"updates/acme/{uuid.uuid4()}", "dictionaries/acme/X/keys", "dictionaries/acme/X/items/k/history"]
    with server.client(token("acme", scope="ops:write ops:all-tenants")) as client, server.client() as nobody:
        for path in reads:
            assert client.get("/v1/ops/" + path).code == "INSUFFICIENT_SCOPE", path
            assert nobody.get("/v1/ops/" + path).code == "UNAUTHENTICATED", path
    with server.client(token("acme", scope=ALL)) as client:
        answer = client.post("/v1/ops/hydration/forget", "{}", **JSON)
        assert (answer.status, answer.code) == (403, "INSUFFICIENT_SCOPE")


# ---- pages ----

def test_pages_have_every_row_once_while_rows_are_added(server, token, updates):
    """Newer rows come before the first page, so that they do not move what follows it."""
    ids, stop = updates(120, "paged"), threading.Event()

    def add():
        while not stop.is_set():
            updates(1, "paged", at="clock_timestamp() + interval '1 min'")
            stop.wait(0.01)
    writer = threading.Thread(target=add)
    writer.start()
    try:
        with server.client(token("paged", scope=READ)) as client:
            found, count = pages(client, "updates?limit=7")
    finally:
        stop.set()
        writer.join()
    listed = event_ids(found)
    assert len(listed) == len(set(listed)) and count >= 120 // 7
    assert [event for event in listed if event in set(ids)] == ids[::-1]


def test_rows_of_the_same_moment_are_paged_without_loss(server, token, module_refdata_db, updates):
    ids = updates(25, "same")
    module_refdata_db.query("update refdata.update_request set created_at = '2026-01-01' where tenant_id = 'same'")
    with server.client(token("same", scope=READ)) as client:
        found, count = pages(client, "updates?limit=4")
    assert event_ids(found) == sorted(ids, reverse=True) and count == 7


def test_what_fits_is_found_behind_many_rows_that_do_not(server, token, module_refdata_db, updates):
    """Of 50,000 rows of others, 20,000 are read at a time; a page goes on by itself."""
    ids = updates(3, "rare", at="timestamptz '2026-01-01T00:00:00Z'")
    module_refdata_db.query(
        "insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash)"
        " select 'many', gen_random_uuid(), 'X', 'COMMITTED', '' from generate_series(1, 50000)")
    try:
        with server.client(token("rare", scope=READ)) as client:
            found, _ = pages(client, "updates?limit=2")
            assert event_ids(found) == ids[::-1]
            assert event_ids(pages(client, "updates?status=COMMITTED&limit=500")[0]) == ids[::-1]
    finally:
        module_refdata_db.query("delete from refdata.update_request where tenant_id = 'many'")


# ---- one update ----

def post_update(client, event, **more):
    body = {"eventId": event, "dictCode": "FEATURE", "eventType": "DELTA",
            "items": [{"key": "k", "op": "UPSERT", "payload": {"n": 1}}], **more}
    answer = client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT", json.dumps(body), **JSON)
    assert answer.status == 200, answer.body
    return answer.json()


def test_the_way_of_an_update_is_told_from_the_post_to_the_pods(server, token):
    event = str(uuid.uuid4())
    with server.client(token("demo", scope=READ)) as client:
        assert client.get("/v1/tenants/demo/dictionaries/FEATURE/version").status == 200  # so that it is held
        version = post_update(client, event)["committedVersion"]

        def whole():
            update = get(client, f"updates/demo/{event}")
            return update if [step["step"] for step in update["timeline"]][-1] == "loaded" else None
        update = eventually(whole)
        pods = {row["pod_id"] for row in items(client, "pods?state=up")}
    assert (update["status"], update["event_type"], update["committed_version"]) == ("COMMITTED", "DELTA", version)
    steps = update["timeline"]
    assert [step["step"] for step in steps] == ["accepted", "applied", "published", "loaded"]
    assert [step["after_ms"] for step in steps] == sorted(step["after_ms"] for step in steps) and steps[0]["after_ms"] == 0
    assert {steps[-1]["pod_id"]} <= pods and update["carrier"] is None


def test_what_will_decide_an_update_that_waits_is_named(serve, refdata_db, token):
    """One process accepts, none applies: the command stays on the bus; and a chunk waits for the others of its snapshot."""
    server = serve(refdata_db, pod("FEATURE"), args=["--roles", "command,query,ops"])
    event = str(uuid.uuid4())
    with server.client(token("demo", scope=READ)) as client:
        body = {"eventId": event, "dictCode": "FEATURE", "eventType": "DELTA",
                "items": [{"key": "k", "op": "UPSERT", "payload": 1}]}
        assert client.post("/v1/tenants/demo/updates", json.dumps(body), **JSON).status == 202
        update = get(client, f"updates/demo/{event}")
        assert update["status"] == "PENDING" and [step["step"] for step in update["timeline"]] == ["accepted"]
        carrier = update["carrier"]
        assert carrier["kind"] == "message" and carrier["engine"] == "postgres" and carrier["topic"] == "refdata.commands"
        assert carrier["apply_is_run"] is False
        assert carrier["ahead"] == 0 and event_ids(items(client, "updates?status=PENDING")) == [event]
        refdata_db.query("delete from platform.bus_message where topic = 'refdata.commands'")
        assert get(client, f"updates/demo/{event}")["carrier"] is None  # lost: nothing will decide it
