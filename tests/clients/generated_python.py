"""Calls every operation by the client that openapi-python-client generated. Run by test_generators.py."""
import importlib
import os
import pkgutil
import uuid

import freshet_generated.api
from freshet_generated import AuthenticatedClient, models
from freshet_generated.models import (ChatEvents, CreatedItem, DeleteItem, DeltaUpdate, EntitlementChange, EntitlementChanged, Entity,
                                      EventIdConflict, Health, Inbox, ItemConflict, ItemNotFound, Items, Liveness, Messages, NewItem,
                                      NewMessage, Page, PostedMessage, PostUpdateConsistencyMode, SnapshotItem, SnapshotUpdate,
                                      Unauthenticated, UpdateCommitted, UpdatePending, UpdateStateCommitted, UpsertItem,
                                      UserEntitlements, Version, VersionNotCommitted)

URL, TOKEN = os.environ["FRESHET_URL"], os.environ["FRESHET_TOKEN"]
CALLED = set()


def modules():
    for tag in pkgutil.iter_modules(freshet_generated.api.__path__):
        package = importlib.import_module(f"freshet_generated.api.{tag.name}")
        for each in pkgutil.iter_modules(package.__path__):
            yield each.name, importlib.import_module(f"{package.__name__}.{each.name}")


OPERATIONS = dict(modules())


def call(name, expected, *args, **options):
    """The parsed answer, which must be of this type."""
    CALLED.add(name)
    answer = OPERATIONS[name].sync_detailed(*args, client=client, **options)
    assert isinstance(answer.parsed, expected), (name, answer.status_code, answer.content, answer.parsed)
    return answer.parsed


def first_piece(name, *args, **options):
    """Of a stream without an end."""
    CALLED.add(name)
    request = OPERATIONS[name]._get_kwargs(*args, **options)  # pylint: disable=protected-access
    with client.get_httpx_client().stream(**request) as answer:
        assert answer.status_code == 200, answer.read()
        return next(answer.iter_text())


def dictionaries():
    item = call("get_item", models.Item, "demo", "COUNTRY", "DE")
    assert (item.key, item.payload) == ("DE", {"name": "Germany"})
    call("get_item", ItemNotFound, "demo", "COUNTRY", "none")
    call("get_item", VersionNotCommitted, "demo", "COUNTRY", "DE", x_min_version=99)
    many = call("get_items", Items, "demo", "COUNTRY", keys=["JP", "a,b", "none", "DE"])
    assert [each.key for each in many.items] == ["JP", "a,b", "DE"] and many.missing == ["none"]
    page = call("get_all", Page, "demo", "COUNTRY", limit=2)
    last = call("get_all", Page, "demo", "COUNTRY", limit=2, cursor=page.next_cursor)
    assert len(page.items) == 2 and len(last.items) == 1 and last.next_cursor is None
    assert call("get_version", Version, "demo", "COUNTRY").item_count == 3
    assert "upToDate" in first_piece("watch", "demo", "COUNTRY", after=4)


def updates():
    event = str(uuid.uuid4())
    body = DeltaUpdate(event_id=event, dict_code="FEATURE", event_type="DELTA",
                       items=[UpsertItem(key="a", op="UPSERT", payload={"on": True}), DeleteItem(key="b", op="DELETE")])
    waiting = PostUpdateConsistencyMode.WAIT_COMMIT
    done = call("post_update", (UpdateCommitted, UpdatePending), "demo", body=body, consistency_mode=waiting, timeout_ms=1000)
    while isinstance(done, UpdatePending):
        done = call("post_update", (UpdateCommitted, UpdatePending), "demo", body=body, consistency_mode=waiting, timeout_ms=1000)
    assert call("get_update", UpdateStateCommitted, "demo", event).committed_version == done.committed_version
    body.items = []
    call("post_update", EventIdConflict, "demo", body=body)
    snapshot = SnapshotUpdate(dict_code="FEATURE", event_type="SNAPSHOT", items=[SnapshotItem(key="c", payload=None)])
    call("post_update", (UpdateCommitted, UpdatePending), "demo", body=snapshot)


def items():
    sku = str(uuid.uuid4())
    new = NewItem(sku=sku, title="Tea")
    new["price"] = 4.5
    made = call("create_item", CreatedItem, body=new, idempotency_key=sku)
    assert made.id and made["price"] == 4.5
    call("create_item", ItemConflict, body=new)
    assert call("read_item", CreatedItem, sku).id == made.id
    entity = call("get_entity", Entity, "item", sku, mode=models.GetEntityMode.PARTIAL, fields=["title", "price"])
    assert entity.data.additional_properties == {"title": "Tea", "price": 4.5}
    assert call("get_entity_of_two", Entity, "dictionary_item", "COUNTRY", "DE").entity_id == "COUNTRY/DE"


def chats():
    project, session = str(uuid.uuid4()), str(uuid.uuid4())
    assert call("post_message", PostedMessage, project, session, body=NewMessage(content="hello")).reply == "hello"
    assert [row.content for row in call("get_messages", Messages, project, session).messages] == ["hello", "hello"]
    assert "event_type" in first_piece("get_stream", project, session, after=0)
    call("get_events", ChatEvents, project, event_type="message_created")


def entitlements():
    user = str(uuid.uuid4())
    change = EntitlementChange(user_id=user, stock_keeping_unit="s", reason="r", purchase_id="p")
    assert call("grant_entitlement", EntitlementChanged, body=change, idempotency_key=user).version == 1
    assert call("revoke_entitlement", EntitlementChanged, body=change, idempotency_key=user).version == 2
    assert [row.stock_keeping_unit for row in call("get_entitlements", UserEntitlements, user).entitlements] == ["s"]
    call("get_notifications", Inbox, user)
    call("get_debug_inbox", Inbox, user)


def operations():
    call("get_health", Health)
    call("get_readiness", Health)
    call("get_liveness", Liveness)
    assert "http_requests_total" in call("get_metrics", str)
    CALLED.add("get_openapi")
    assert OPERATIONS["get_openapi"].sync_detailed(client=client).content.startswith(b"# freshet")


def the_rest():
    """Operations that this script does not know: those that need no arguments but the tenant must answer."""
    for name in sorted(set(OPERATIONS) - CALLED):
        request = OPERATIONS[name]._get_kwargs  # pylint: disable=protected-access
        needed = request.__code__.co_argcount + request.__code__.co_kwonlyargcount - len(request.__kwdefaults__ or {})
        tenant = ["demo"] if request.__code__.co_varnames[:1] == ("tenant_id",) else []
        if needed == len(tenant):
            answer = OPERATIONS[name].sync_detailed(*tenant, client=client)
            assert answer.status_code < 300, (name, answer)


with AuthenticatedClient(base_url=URL, token=TOKEN) as client:
    for part in (dictionaries, updates, items, chats, entitlements, operations, the_rest):
        part()
with AuthenticatedClient(base_url=URL, token="none") as client:
    call("get_version", Unauthenticated, "demo", "COUNTRY")
print("everything was called")
