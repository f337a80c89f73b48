"""H6, I2-I4, N1, N5: those who ask: entitlement, whether a sku exists; notification, what an item is called."""
import signal
import time

import pytest

from lib.entitlement import GRANTS, SCOPES, body, grant, listed, new_key, revoke
from lib.items import fresh, item, post
from lib.notification import FAST, event, inbox, publish, rows
from lib.wait import eventually

CHECKED = {**FAST, "entitlement": {"hydration": {"enabled": True, "wait_timeout_ms": 5000}}}
HASTY = {"entitlement": {"hydration": {"enabled": True, "wait_timeout_ms": 400, "in_flight_window_ms": 50}}}
NO_ITEM = b'{"code":"ENTITY_NOT_FOUND","message":"there is no such item","field":"stock_keeping_unit"}'


@pytest.fixture(scope="module")
def db(module_database):
    return module_database


@pytest.fixture(scope="module")
def server(module_serve, db):
    """All of them in one process, as far as they are about this."""
    patient = {**CHECKED, "notification": {**FAST["notification"], "hydration": {"wait_timeout_ms": 5000}}}
    return module_serve(db, patient, args=["--roles", "intake,entitlement,notification"])


@pytest.fixture(scope="module")
def alone(module_serve, db):
    """Entitlement in a process that has nobody to ask: whatever it is told comes from the other one's."""
    return module_serve(db, HASTY, args=["--roles", "entitlement"])


@pytest.fixture
def client(server, token):
    with server.client(token("demo", subject="shop", scope=f"{SCOPES} notification:read")) as client:
        yield client


@pytest.fixture
def user():
    return fresh("u")


def made(client, title="Green tea"):
    sku = fresh()
    assert post(client, item(sku, title=title)).status == 201
    return sku


# ---- entitlement ----

def test_h6_what_is_there_is_granted_and_what_is_not_is_404(client, user):
    assert grant(client, user, made(client)).status == 200
    answer = grant(client, user, fresh())
    assert (answer.status, answer.body) == (404, NO_ITEM)
    assert len(listed(client, user).json()["entitlements"]) == 1


def test_i4_that_there_is_none_is_stored_under_the_key(client, user):
    """Whatever becomes of the item; another key finds out."""
    sku, key = fresh(), new_key()
    assert grant(client, user, sku, key=key).body == NO_ITEM
    made_now = post(client, item(sku))
    assert made_now.status == 201
    eventually(lambda: grant(client, user, sku).status == 200)
    again = grant(client, user, sku, key=key)
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (404, NO_ITEM, "true")
    assert grant(client, user, sku, key=key, reason="another").code == "IDEMPOTENCY_KEY_CONFLICT"


def test_i2_a_replay_does_not_ask(client, db, user, server, alone, token):
    """What was granted is granted, also where nobody can be asked."""
    sku, key = made(client), new_key()
    first = grant(client, user, sku, key=key)
    assert first.status == 200
    eventually(lambda: db.value("select count(*) from hydration.copies where entity_id = %s", (sku,)))  # nobody holds its row now
    with stopped_source(server, db), alone.client(token("demo", subject="shop", scope=SCOPES)) as other:
        forget(db, sku)
        again = grant(other, user, sku, key=key)
        assert (again.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")


class stopped_source:  # pylint: disable=invalid-name
    """The process that answers is frozen, and not inside a transaction, for whose locks others would wait."""

    def __init__(self, server, db):
        self.server, self.db = server, db

    def _is_frozen(self):
        self.server.process.send_signal(signal.SIGSTOP)
        if self.db.value("select count(*) from pg_stat_activity where datname = current_database() and xact_start is not null"
                         " and pid <> pg_backend_pid()") == 0:
            return True
        self.__exit__()
        return False

    def __enter__(self):
        eventually(self._is_frozen)

    def __exit__(self, *_):
        self.server.process.send_signal(signal.SIGCONT)


def forget(db, sku):
    """What all processes know of it."""
    for table in ("copies", "absences", "flights"):
        db.query(f"delete from hydration.{table} where entity_id = %s", (sku,))


def test_h6_no_answer_is_503_and_leaves_the_key_free(client, db, user, server, alone, token):
    sku, key = fresh(), new_key()  # not made yet: that it was made might just be told
    with alone.client(token("demo", subject="shop", scope=SCOPES)) as other:
        with stopped_source(server, db):
            answer = grant(other, user, sku, key=key)
            assert (answer.status, answer.code) == (503, "HYDRATION_TIMEOUT") and int(answer.headers["retry-after"]) >= 1
            assert db.value("select count(*) from entitlement.idempotency_keys where idempotency_key = %s", (key,)) == 0
        assert post(client, item(sku)).status == 201
        eventually(lambda: grant(other, fresh("u"), sku).status == 200)
        assert grant(other, user, sku, key=key).status == 200


def test_c6_a_bad_body_is_400_before_anybody_is_asked(db, server, alone, token):
    sku = fresh()
    with stopped_source(server, db), alone.client(token("demo", scope=SCOPES)) as other:
        for bad, field in (({}, "user_id"), ({**body(sku=sku), "reason": ""}, "reason"), ([], None)):
            answer = other.post(GRANTS, bad, Idempotency_Key=new_key())
            assert (answer.status, answer.code, answer.json().get("field")) == (400, "BAD_REQUEST", field)
        assert other.post(GRANTS, body(sku=sku)).status == 400  # no key
    assert db.value("select count(*) from hydration.flights where entity_id = %s", (sku,)) == 0


def test_a_revoke_does_not_ask(client, db, user, server, alone, token):
    sku = made(client)
    assert grant(client, user, sku).status == 200
    with stopped_source(server, db), alone.client(token("demo", subject="shop", scope=SCOPES)) as other:
        forget(db, sku)
        assert revoke(other, user, sku).status == 200


def test_i3_duplicates_ask_once_and_get_one_answer(client, user):
    sku, key = made(client), new_key()
    first, again = grant(client, user, sku, key=key), grant(client, user, sku, key=key)
    assert first.body == again.body and again.headers["idempotency-replayed"] == "true"


# ---- notification ----

def notified(client, user):
    return eventually(lambda: inbox(client, user).json()["notifications"])


def test_h6_a_notification_says_what_the_item_is_called(client, db, user):
    title = 'Grüner "Tee" \\ 🍵'
    sku = made(client, title)
    grant(client, user, sku)
    (told,) = notified(client, user)
    assert list(told)[:5] == ["notification_id", "event_id", "event_type", "stock_keeping_unit", "item_title"]
    assert told["item_title"] == title
    assert db.value("select payload_json ->> 'item_title' from notification.notifications where user_id = %s", (user,)) == title


def test_h6_without_an_item_it_goes_without(server, client, db, user):
    publish(db, event(user, fresh()), event(user, "x" * 1000), event(user, "a\nb"))
    eventually(lambda: len(rows(db, user)) == 3)
    assert ["item_title" in each for each in notified(client, user)] == [False] * 3


def test_h6_one_batch_has_the_titles_of_all(client, db, user):
    skus = [made(client, f"Title {i}") for i in range(20)]
    publish(db, *[event(user, sku) for sku in skus])
    eventually(lambda: len(rows(db, user)) == 20)
    told = {each["stock_keeping_unit"]: each.get("item_title") for each in inbox(client, user).json()["notifications"]}
    assert told == {sku: f"Title {i}" for i, sku in enumerate(skus)}


def test_h5_an_inbox_does_not_wait_for_who_is_silent(serve, database, user):
    """One wait of 3 s, then none for the window: five batches, one behind the other, would be 15 s."""
    config = {**FAST, "notification": {**FAST["notification"], "hydration": {"wait_timeout_ms": 3000, "in_flight_window_ms": 600000}}}
    serve(database, config, args=["--roles", "notification"])
    begun = time.monotonic()
    for number in range(1, 6):
        publish(database, event(user, fresh()))
        eventually(lambda: len(rows(database, user)) == number)  # pylint: disable=cell-var-from-loop
    assert time.monotonic() - begun < 10


def test_it_can_be_switched_off(serve, database, user):
    config = {**FAST, "notification": {**FAST["notification"], "hydration": {"enabled": False}}}
    serve(database, config, args=["--roles", "notification"])
    publish(database, event(user, fresh()))
    eventually(lambda: rows(database, user))
    assert database.value("select count(*) from hydration.flights") == 0
