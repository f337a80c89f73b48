"""H4, H6: the modules as owners of entities. One process asks, another has the modules: what is shown is what the module's own
route shows, to those it shows it to; whoever was told "not found" is told when it is made; copies follow what happens."""
import json
import uuid
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest

from lib import entitlement, items, on_engines
from lib.chat import Session
from lib.config import merge
from lib.hydration import Asking, path
from lib.refdata import TENANT, item_path, make_table, module_refdata_db, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta, snapshot

OWNERS = ("--roles", "intake,entitlement,chat,command,apply,relay,query")
CITIES = sql_dictionary("cities", "towns", apply={
    "upsertSql": "insert into towns values (:tenantId, :key, :payload) on conflict (tenant_id, k) do update set v = excluded.v",
    "deleteSql": "delete from towns where tenant_id = :tenantId and k = :key",
})
AGENTS = {"agents": [{"name": "billing", "keywords": ["invoice"], "reply": "Billing: {content}"},
                     {"name": "support", "keywords": ["broken"], "reply": "Support: {content}"}], "default-agent": "billing"}
# Nothing here is about running out of time: a slow machine decides nothing, and what was cached stays till it is told of.
PATIENT = {"hydration": {"wait_timeout_ms": 20000, "negative_cache_ttl_ms": 3600000, "copy_ttl_ms": 3600000}}

embedded = pytest.mark.skipif(on_engines.IS_ON, reason="looks into the embedded bus, which the same tests run without engines use")

@pytest.fixture(scope="module")
def owners(module_serve, module_refdata_db):  # noqa: F811
    make_table(module_refdata_db, "towns")
    return module_serve(module_refdata_db, merge(pod("countries", CITIES), {"chat": AGENTS}), args=OWNERS)


@pytest.fixture(scope="module")
def asker(owners, module_serve, module_refdata_db):  # noqa: F811
    server = module_serve(module_refdata_db, PATIENT, args=("--roles", "hydration"))
    server.database = module_refdata_db
    return server


@pytest.fixture
def ask(asker, token):
    """ask(type, id, mode=…, fields=…, tenant=…, subject=…): the answer's data, None for not found."""
    def of(entity_type, entity_id, tenant=TENANT, subject="alice", **query):
        client = asker.client(token(tenant, subject=subject))
        wanted = "&".join(f"{name}={quote(value, safe=',')}" for name, value in query.items())
        answer = client.get(f"/v1/hydration/{entity_type}/{quote(entity_id, safe='')}?{wanted}")
        if answer.status == 404:
            assert answer.code == "ENTITY_NOT_FOUND", answer.body
            return None
        assert answer.status == 200, (answer.status, answer.body)
        value = answer.json()
        assert (value["entity_type"], value["entity_id"]) == (entity_type, entity_id)
        return value["data"]
    return of


def on_the_bus(database, kind, entity_type, entity_id=None):
    """[(headers, payload)] of the embedded bus, in the order of their partition."""
    rows = database.query("select headers, payload from platform.bus_message where topic = %s"
                          " order by partition, message_offset", (f"entity.{kind}",))
    found = [(dict(zip(headers[::2], headers[1::2])), json.loads(bytes(payload))) for headers, payload in rows]
    return [(headers, payload) for headers, payload in found
            if payload["entity_type"] == entity_type and entity_id in (None, payload["entity_id"])]


def changes(database, entity_type, entity_id):
    """[(version, data or None)] that the owner told without being asked."""
    return [(int(headers["version"]), payload.get("data")) for kind in ("updated", "not-found")
            for headers, payload in on_the_bus(database, kind, entity_type, entity_id) if "correlation_id" not in headers]


def asked(database, entity_type, entity_id):
    return len(on_the_bus(database, "unknown", entity_type, entity_id))


def modes_agree(ask, entity_type, entity_id, whole, **caller):
    """In every mode what it promises of that object."""
    assert ask(entity_type, entity_id, mode="existence", **caller) == {}
    names = sorted(whole)[:2]
    assert ask(entity_type, entity_id, mode="partial", fields=",".join(names), **caller) == {name: whole[name] for name in names}
    assert ask(entity_type, entity_id, mode="partial", fields=f"{names[0]},no_such", **caller) == {names[0]: whole[names[0]]}
    assert ask(entity_type, entity_id, mode="full", **caller) == whole


# ---- item ----

def new_item(owners, token, sku=None, tenant=TENANT):
    answer = items.post(owners.client(token(tenant)), items.item(sku, weight={"g": 1.50}))
    assert answer.status == 201, answer.body
    return answer.json()


@pytest.mark.parametrize("sku", ["plain", "with/slash", "100%", "a%2Fb", "ключ ü"])
def test_h6_an_item_is_what_its_route_shows_to_its_tenant(owners, ask, token, sku):
    sku = items.fresh(sku)
    whole = new_item(owners, token, sku)
    assert owners.client(token()).get(f"{items.PATH}/{quote(sku, safe='')}").json() == whole
    modes_agree(ask, "item", sku, whole)
    assert ask("item", sku, subject="bob") == whole
    assert ask("item", sku, tenant="other") is None


def test_h4_an_item_that_was_not_there_is_found_once_it_is_made(owners, asker, ask, token):
    sku = items.fresh()
    assert ask("item", sku) is None and ask("item", sku, subject="bob", mode="existence") is None
    whole = new_item(owners, token, sku)
    assert eventually(lambda: ask("item", sku)) == whole
    if not on_engines.IS_ON:
        assert changes(asker.database, "item", sku) == [(1, whole)]
        (headers, payload), = on_the_bus(asker.database, "updated", "item", sku)[:1]
        assert headers["tenant_id"] == TENANT and "visibility" not in headers
        assert payload == {"entity_type": "item", "entity_id": sku, "source_module": "intake", "data": whole}


@embedded
def test_an_owner_in_the_same_process_is_asked_without_the_bus(module_serve, module_refdata_db, asker, ask, token):  # noqa: F811
    """Its answer goes over the bus all the same: the ledger stores it, and another process finds it there."""
    both = module_serve(module_refdata_db, PATIENT, args=("--roles", "hydration,intake"))
    whole = new_item(both, token)
    sku = whole["sku"]
    answer = both.client(token()).get(path("item", sku))
    assert (answer.status, answer.json()["data"]) == (200, whole)
    assert both.client(token()).get(path("item", items.fresh())).code == "ENTITY_NOT_FOUND"
    assert asked(asker.database, "item", sku) == 0
    told = on_the_bus(asker.database, "updated", "item", sku)
    assert sum("correlation_id" in headers for headers, _ in told) == 1
    eventually(lambda: asker.database.query("select 1 from hydration.copies where entity_id = %s", (sku,)))
    assert ask("item", sku) == whole
    assert asked(asker.database, "item", sku) == 0


# ---- entitlement ----

def listed(owners, token, user, sku):
    found = entitlement.listed(owners.client(token(subject=user)), user).json()["entitlements"]
    return next(one for one in found if one["stock_keeping_unit"] == sku)


@pytest.mark.parametrize("user, sku, entity_id", [
    ("u_1", "item1", "u_1/item1"),
    ("auth0|7", "a b", "auth0|7/a b"),
    ("a/b", "c", "a%2Fb/c"),
    ("a", "b/c", "a/b%2Fc"),
    ("100%", "50%25", "100%25/50%2525"),
])
def test_h6_an_entitlement_is_shown_to_its_user_alone(owners, ask, token, user, sku, entity_id):
    granted = entitlement.grant(owners.client(token(scope=entitlement.SCOPES)), user, sku)
    assert granted.status == 200, granted.body
    whole = listed(owners, token, user, sku)
    assert whole["status"] == "ACTIVE"
    assert ask("entitlement", entity_id, subject="mallory") is None
    modes_agree(ask, "entitlement", entity_id, whole, subject=user)
    assert ask("entitlement", entity_id, subject="mallory", mode="existence") is None
    assert ask("entitlement", entity_id, subject=user, tenant="other") is None
    assert ask("entitlement", entity_id, subject=user) == whole


def test_h6_an_entitlement_has_one_id(owners, ask, token):
    assert entitlement.grant(owners.client(token(scope=entitlement.SCOPES)), "one/user", "x").status == 200
    assert ask("entitlement", "one%2Fuser/x", subject="one/user")
    for other in ("one/user/x", "one%2fuser/x", "one%2Fuser/%78", "one%2Fuser", "one%2Fuser/", "/"):
        assert ask("entitlement", other, subject="one/user") is None


def test_h4_an_entitlement_is_found_once_granted_and_its_copy_is_revoked(owners, asker, ask, token):
    user, sku = items.fresh("u"), items.fresh("s")
    entity_id, admin = f"{user}/{sku}", owners.client(token(scope=entitlement.SCOPES))
    assert ask("entitlement", entity_id, subject=user) is None and ask("entitlement", entity_id, subject="mallory") is None
    assert entitlement.grant(admin, user, sku).status == 200
    assert eventually(lambda: ask("entitlement", entity_id, subject=user))["status"] == "ACTIVE"
    assert entitlement.revoke(admin, user, sku).status == 200

    def is_revoked():
        return ask("entitlement", entity_id, subject=user)["status"] == "REVOKED"
    eventually(is_revoked)
    assert ask("entitlement", entity_id, subject=user) == listed(owners, token, user, sku)
    assert entitlement.grant(admin, user, sku).status == 200
    eventually(lambda: ask("entitlement", entity_id, subject=user)["version"] == 3)
    assert ask("entitlement", entity_id, subject="mallory") is None
    if not on_engines.IS_ON:
        told = changes(asker.database, "entitlement", entity_id)
        assert [version for version, _ in told] == sorted(version for version, _ in told) and told[-1][0] == 3
        for headers, payload in on_the_bus(asker.database, "updated", "entitlement", entity_id):
            assert (headers["visibility"], headers["sub"], payload["source_module"]) == ("caller", user, "entitlement")


# ---- chat_session ----

@pytest.mark.parametrize("subject", ["alice", "0d5fa2f6-6a3b-4d2e-9f5c-0c7c2f1d8a11"])
def test_h6_a_session_is_shown_to_its_user_alone(owners, ask, token, subject):
    with Session(owners, token(subject=subject)) as chat:
        said = chat.say("an invoice")
        whole = ask("chat_session", chat.session, subject=subject)
        assert {name: whole[name] for name in ("session_id", "project_id", "agent")} == {
            "session_id": chat.session, "project_id": chat.project, "agent": said["agent"]}
        assert sorted(whole) == ["agent", "created_at", "project_id", "session_id", "user_id"]
        assert uuid.UUID(whole["user_id"]) and (whole["user_id"] == subject or subject == "alice")
        assert ask("chat_session", chat.session, subject="mallory") is None
        modes_agree(ask, "chat_session", chat.session, whole, subject=subject)
        assert ask("chat_session", chat.session, subject=subject, tenant="other") is None
        for other in (chat.session.upper(), chat.session.replace("-", ""), "x"):
            assert ask("chat_session", other, subject=subject) is None


def test_h6_a_token_without_a_user_is_refused_like_any_other(owners, ask, token):
    """And at once: that it took until the end of its time would tell that there is such a session."""
    with Session(owners, token(subject="alice")) as chat:
        chat.say("an invoice")
        assert ask("chat_session", chat.session, subject=None) is None
        assert ask("chat_session", chat.session, subject="alice")["session_id"] == chat.session
        assert ask("chat_session", chat.session, subject=None) is None


def test_h4_a_session_is_found_once_it_begins_and_its_agent_is_followed(owners, asker, ask, token):
    with Session(owners, token(subject="alice")) as chat:
        assert ask("chat_session", chat.session) is None and ask("chat_session", chat.session, subject="mallory") is None
        chat.say("an invoice")
        assert eventually(lambda: ask("chat_session", chat.session))["agent"] == "billing"
        chat.say("another invoice")
        chat.say("it is broken")
        eventually(lambda: ask("chat_session", chat.session)["agent"] == "support")
        assert ask("chat_session", chat.session, subject="mallory") is None
        if not on_engines.IS_ON:
            told = on_the_bus(asker.database, "updated", "chat_session", chat.session)
            told = [headers for headers, _ in told if "correlation_id" not in headers]
            assert len(told) == 2, "its beginning, and the switch: not every message"
            assert all(headers["visibility"] == "caller" and "sub" not in headers for headers in told)
            versions = [int(headers["version"]) for headers in told]
            assert versions[0] >= 2 and versions[1] > versions[0]


# ---- dictionary_item ----

def update(owners, token, body, tenant=TENANT):
    answer = commit(owners.client(token(tenant)), body, tenant)
    assert answer.status == 200, answer.body
    return answer.json()["committedVersion"]


@pytest.mark.parametrize("code", ["countries", "cities"])
@pytest.mark.parametrize("name", ["RU", "a/b//", "100%", "ключ ü"])
def test_h6_a_dictionarys_item_is_what_its_route_shows_to_its_tenant(owners, ask, token, code, name):
    update(owners, token, delta(code, {name: {"name": name, "n": [1, {"x": None}]}}))
    entity_id = f"{code}/{name}"
    whole = eventually(lambda: ask("dictionary_item", entity_id))
    assert whole == {"key": name, "payload": {"name": name, "n": [1, {"x": None}]}}
    assert eventually(lambda: owners.client(token()).get(item_path(code, name)).json() == whole)
    modes_agree(ask, "dictionary_item", entity_id, whole)
    assert ask("dictionary_item", entity_id, tenant="other") is None


def test_h6_what_is_no_item_of_a_dictionary_is_not_found(ask):
    for entity_id in ("no_such/RU", "countries", "countries/", "/RU", "countries/never", "a b/c"):
        assert ask("dictionary_item", entity_id) is None


@pytest.mark.parametrize("code", ["countries", "cities"])
def test_h4_a_dictionarys_item_is_followed_from_its_first_update_to_its_end(owners, asker, ask, token, code):
    key = items.fresh("k")
    entity_id = f"{code}/{key}"

    def payload():
        found = ask("dictionary_item", entity_id)
        return found and found["payload"]
    assert payload() is None
    first = update(owners, token, delta(code, {key: 1}))
    eventually(lambda: payload() == 1)
    update(owners, token, delta(code, {key: 2}))
    eventually(lambda: payload() == 2)
    last = update(owners, token, delta(code, {key: None}))
    eventually(lambda: payload() is None)
    assert ask("dictionary_item", entity_id, mode="existence", subject="bob") is None
    update(owners, token, delta(code, {key: 3}))
    eventually(lambda: payload() == 3)
    if not on_engines.IS_ON:
        told = on_the_bus(asker.database, "not-found", "dictionary_item", entity_id)
        told = [(int(headers["version"]), body["reason"]) for headers, body in told if "correlation_id" not in headers]
        assert told == [(told[0][0], "deleted_or_never_existed")] and told[0][0] >= last > first
        assert asked(asker.database, "dictionary_item", entity_id) == 1, "copies followed, nobody was asked again"


def test_h4_a_snapshot_is_told_to_who_holds_its_items(owners, asker, ask, token):
    """Which keys it changed is not known: those that somebody has a copy of, or takes for absent, are looked at."""
    tenant = items.fresh("t")
    update(owners, token, delta("countries", {"stays": 1, "goes": 1, "quiet": 1}), tenant)

    def payload(key):
        found = ask("dictionary_item", f"countries/{key}", tenant=tenant)
        return found and found["payload"]
    assert [payload(key) for key in ("stays", "goes", "comes")] == [1, 1, None]
    update(owners, token, snapshot("countries", {"stays": 2, "comes": 2, "quiet": 2}), tenant)
    eventually(lambda: [payload(key) for key in ("stays", "goes", "comes")] == [2, None, 2])
    if not on_engines.IS_ON:
        told = on_the_bus(asker.database, "updated", "dictionary_item", "countries/quiet")
        assert [body["data"]["payload"] for headers, body in told if headers["tenant_id"] == tenant] == []


def test_h4_an_update_that_no_consumer_hydrates_costs_nothing_for_hydration(owners, asker, ask, token):
    """Issue 11.26: no row and no message before the first question; after it one message, and only for the item asked for."""
    tenant, database = items.fresh("t"), asker.database

    def marked():
        return database.query("select count(*) from refdata.dictionary_meta where tenant_id = %s"
                              " and hydrated_until is not null", (tenant,)) == [(1,)]

    def written():
        return database.query("select last_value, is_called from refdata.item_change_id_seq")

    def published():
        told = on_the_bus(database, "updated", "dictionary_item")
        return [body["entity_id"] for headers, body in told if headers["tenant_id"] == tenant]
    before = written()
    for _ in range(3):  # from the third on the process expects to find the dictionary as it left it
        update(owners, token, delta("countries", {"asked": 1, "other": 1}), tenant)
    assert not marked() and written() == before
    if on_engines.IS_ON:
        return
    assert published() == []
    assert ask("dictionary_item", "countries/asked", tenant=tenant)["payload"] == 1
    assert marked() and published() == ["countries/asked"]
    update(owners, token, delta("countries", {"asked": 2, "other": 2}), tenant)
    eventually(lambda: ask("dictionary_item", "countries/asked", tenant=tenant)["payload"] == 2)
    eventually(lambda: database.query("select count(*) from refdata.item_change") == [(0,)])
    assert published() == ["countries/asked", "countries/asked"]


def test_h4_more_changes_than_are_told_one_by_one_reach_who_holds_them(owners, asker, ask, token):
    tenant, many = items.fresh("t"), {f"k{number:05}": 1 for number in range(1500)}
    assert ask("dictionary_item", "countries/k00007", tenant=tenant) is None
    update(owners, token, delta("countries", many), tenant)
    assert eventually(lambda: ask("dictionary_item", "countries/k00007", tenant=tenant))["payload"] == 1
    if not on_engines.IS_ON:
        assert changes(asker.database, "dictionary_item", "countries/k00008") == []


def test_h4_a_key_that_is_no_id_holds_up_no_other(owners, ask, token):
    """Keys may be longer than ids, and have characters that ids have not."""
    key = items.fresh("k")
    assert ask("dictionary_item", f"countries/{key}") is None
    update(owners, token, delta("countries", {"x" * 600: 1, "tab\there": 1, key: 1}))
    assert eventually(lambda: ask("dictionary_item", f"countries/{key}"))["payload"] == 1


def test_h6_an_owner_that_hangs_holds_up_no_other(owners, asker, ask, token):
    """Its table is locked: whoever looks into it waits, on either bus."""
    def hanging():
        return asker.database.query("select pid from pg_locks where relation = 'towns'::regclass and not granted order by pid")
    with closing(asker.database.connect()) as locking, locking.cursor() as cursor:
        cursor.execute("begin; lock table towns in access exclusive mode")
        held_up = [Asking(asker, token(TENANT), path("dictionary_item", f"cities/{items.fresh()}")) for _ in range(8)]
        them = eventually(lambda: hanging() if len(hanging()) > 1 else None)
        assert ask("item", items.fresh()) is None and ask("chat_session", str(uuid.uuid4())) is None
        assert hanging() == them, "they were not waited for"
        cursor.execute("rollback")
    assert [one.answer().status for one in held_up] == [404] * 8


@contextmanager
def refusing(database, condition, errcode):
    """PostgreSQL refuses messages of the embedded bus."""
    database.query("create sequence refusing")
    database.query(f"create function refusing() returns trigger language plpgsql as $$ begin if {condition} then"
                   f" raise exception 'not now' using errcode = '{errcode}'; end if; return new; end $$")
    database.query("create trigger refusing before insert on platform.bus_message for each row"
                   " when (new.topic = 'entity.updated') execute function refusing()")
    try:
        yield
    finally:
        database.query("drop trigger refusing on platform.bus_message; drop function refusing; drop sequence refusing")


@embedded
def test_h4_changes_that_are_published_are_not_published_again_because_a_later_one_failed(owners, asker, ask, token):
    """Else more changes than can be published without a failure, or in the time of one run, are never all published."""
    tenant, keys = items.fresh("t"), [f"k{number:02}" for number in range(24)]

    def payloads():
        return [ask("dictionary_item", f"countries/{key}", tenant=tenant)["payload"] for key in keys]
    update(owners, token, delta("countries", dict.fromkeys(keys, 1)), tenant)
    assert payloads() == [1] * len(keys)
    with refusing(asker.database, "nextval('refusing') % 9 = 0", "57014"):
        update(owners, token, delta("countries", dict.fromkeys(keys, 2)), tenant)
        eventually(lambda: payloads() == [2] * len(keys))
        update(owners, token, snapshot("countries", dict.fromkeys(keys, 3)), tenant)
        eventually(lambda: payloads() == [3] * len(keys))


@embedded
def test_h4_an_item_that_can_never_be_published_holds_up_no_other(owners, asker, ask, token):
    tenant, keys = items.fresh("t"), ["a", "never", "z"]

    def payload(key):
        return ask("dictionary_item", f"countries/{key}", tenant=tenant)["payload"]
    update(owners, token, delta("countries", dict.fromkeys(keys, 1)), tenant)
    assert [payload(key) for key in keys] == [1, 1, 1]
    with refusing(asker.database, """position('"countries/never"' in convert_from(new.payload, 'UTF8')) > 0""", "53100"):
        update(owners, token, delta("countries", dict.fromkeys(keys, 2)), tenant)
        eventually(lambda: payload("a") == payload("z") == 2)
        update(owners, token, snapshot("countries", dict.fromkeys(keys, 3)), tenant)
        eventually(lambda: payload("a") == payload("z") == 3)


def test_h4_a_change_waits_for_a_process_that_knows_its_dictionary(serve, refdata_db):  # noqa: F811
    """As while a new configuration is rolled out: a process with the old one does not take the change for its own."""
    def waiting():
        return [code for code, in refdata_db.query("select dict_code from refdata.item_change order by 1")]
    make_table(refdata_db, "towns")
    serve(refdata_db, pod(CITIES), args=OWNERS)
    refdata_db.query("insert into refdata.item_change (tenant_id, dict_code, keys) values ('t', 'countries', '{k}'),"
                     " ('t', 'cities', '{k}')")
    eventually(lambda: "cities" not in waiting())
    assert waiting() == ["countries"]
    serve(refdata_db, pod("countries", CITIES), args=OWNERS)
    eventually(lambda: not waiting())
