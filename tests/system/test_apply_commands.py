"""R10: every command has its own effect, version and failure, however many share a transaction."""
import pytest

from lib.apply import (COUNTRY, COUNTRY_SQL, CURRENCY, CURRENCY_SQL, REFUSED, TOO_LONG, applier, chunks, command, countries,
                       currencies, dead_letters, decided, delta, empty, event_id, forget_dead_letters, handled, items_of,
                       outbox_of, publish, ready, refuse_payloads, snapshot, statuses, version_of)
from lib.refdata import make_table, module_refdata_db, refdata_db  # noqa: F401
from lib.wait import eventually

ROLES = ("--roles", "apply")
OTHERS = [
    {"code": "FIXED", "loadSql": "select k, v from fixed where tenant_id = :tenantId"},
    {"code": "UPSERTS", "loadSql": "select k, v from fixed where tenant_id = :tenantId",
     "apply": {"upsertSql": "insert into fixed values (:tenantId, :key, :payload)"}},
]


@pytest.fixture(scope="module")
def applied(module_serve, module_refdata_db):
    """A database with a process that applies what is put on its bus."""
    make_table(module_refdata_db, "fixed")
    module_refdata_db.query(COUNTRY_SQL + CURRENCY_SQL)
    refuse_payloads(module_refdata_db)
    module_serve(module_refdata_db, applier("D", "E", COUNTRY, CURRENCY, *OTHERS), args=ROLES)
    ready(module_refdata_db)
    return module_refdata_db


@pytest.fixture
def database(applied):
    """The same, empty."""
    empty(applied, "mdm_country, mdm_currency, staging, fixed")
    forget_dead_letters(applied)
    return applied


def test_deltas_of_one_transaction_have_versions_of_their_own(database):
    """R10: version, status and outbox row for each; the last word on a key stands."""
    sent = [delta("D", {"a": 1, "b": 1}), delta("D", {"b": 2}, ["a"]), delta("D", {"a": 3}), delta("D", {}, ["b", "x"]),
            delta("D")]
    publish(database, sent)
    assert decided(database, sent) == [("COMMITTED", version) for version in range(1, 6)]
    assert items_of(database, "D") == {"a": 3}
    assert outbox_of(database, "D") == [(1, sent[0]["eventId"], ["a", "b"]), (2, sent[1]["eventId"], ["b", "a"]),
                                        (3, sent[2]["eventId"], ["a"]), (4, sent[3]["eventId"], ["b", "x"]),
                                        (5, sent[4]["eventId"], [])]
    payload = database.value("select payload from refdata.outbox_event where version = 2")
    assert payload.pop("committedAt").endswith("Z")
    assert payload == {"eventId": sent[1]["eventId"], "tenantId": "demo", "dictCode": "D", "version": 2}


def test_the_last_of_a_key_within_an_update_wins(database):
    """R1"""
    items = [{"key": "a", "op": "UPSERT", "payload": 1}, {"key": "b", "op": "UPSERT", "payload": 1},
             {"key": "a", "op": "DELETE"}, {"key": "b", "op": "DELETE"}, {"key": "b", "op": "UPSERT", "payload": 2}]
    sent = [command("D", items)]
    publish(database, sent)
    decided(database, sent)
    assert items_of(database, "D") == {"b": 2}
    assert outbox_of(database, "D")[0][2] == ["a", "b"]


def test_a_snapshot_replaces_everything_and_writes_only_what_changed(database):
    """R8: between deltas of the same transaction, too; an empty one clears."""
    sent = [delta("D", {"a": 1, "b": 1, "c": 1}), snapshot("D", {"b": 1, "c": 2, "d": 1}), delta("D", {"e": 1}, ["d"])]
    publish(database, sent)
    assert decided(database, sent) == [("COMMITTED", 1), ("COMMITTED", 2), ("COMMITTED", 3)]
    assert items_of(database, "D") == {"b": 1, "c": 2, "e": 1}
    assert [keys for _, _, keys in outbox_of(database, "D")] == [["a", "b", "c"], None, ["e", "d"]]
    before = database.value("select ctid::text from refdata.dictionary_item where item_key = 'b'")
    again = [snapshot("D", {"b": 1, "c": 3, "a": 5})]
    publish(database, again)
    assert decided(database, again) == [("COMMITTED", 4)]
    assert items_of(database, "D") == {"a": 5, "b": 1, "c": 3}
    assert database.value("select ctid::text from refdata.dictionary_item where item_key = 'b'") == before
    cleared = [snapshot("D", {})]
    publish(database, cleared)
    assert decided(database, cleared) == [("COMMITTED", 5)]
    assert items_of(database, "D") == {}


def test_an_event_has_its_effect_once(database):
    """R10: the same event again, in the same batch and in a later one, whatever it says."""
    first = delta("D", {"a": 1})
    publish(database, [first, delta("D", {"a": 2}), first, {**first, "items": []}])
    handled(database)
    publish(database, [first])
    handled(database)
    assert items_of(database, "D") == {"a": 2}
    assert version_of(database, "D") == 2
    assert len(outbox_of(database, "D")) == 2
    other = delta("D", {"a": 3}, tenant="other", event=first["eventId"])
    publish(database, [other])
    assert eventually(lambda: items_of(database, "D", "other")) == {"a": 3}, "an event is its tenant's"
    assert items_of(database, "D") == {"a": 2}


def test_an_update_whose_event_was_another_ones_is_not_left_pending(database):
    """Every accepted update ends COMMITTED or FAILED."""
    shared = event_id()
    first = delta("D", {"a": 1}, event=shared)
    publish(database, [first])
    decided(database, [first])
    database.query("update refdata.update_request set status = 'PENDING', dict_code = 'E'")
    second = delta("E", {"a": 1}, event=shared)
    publish(database, [second])
    assert decided(database, [second]) == [("FAILED", "EVENT_ID_CONFLICT")]
    assert version_of(database, "E") == 0


def test_stale_revisions_fail_within_a_batch_and_after_it(database):
    """R10: lower fails, equal is applied, none at all is not asked."""
    sent = [delta("D", {"a": 10}, sourceRevision=10), delta("D", {"a": 9}, sourceRevision=9),
            delta("D", {"a": 11}, sourceRevision=10), delta("D", {"b": 1}),
            snapshot("D", {"a": 8}, sourceRevision=8)]
    publish(database, sent)
    assert decided(database, sent) == [("COMMITTED", 1), ("FAILED", "STALE_SOURCE_REVISION"), ("COMMITTED", 2),
                                       ("COMMITTED", 3), ("FAILED", "STALE_SOURCE_REVISION")]
    assert items_of(database, "D") == {"a": 11, "b": 1}
    later = [delta("D", {"a": 7}, sourceRevision=7), delta("D", {"c": 1}, sourceRevision=12)]
    publish(database, later)
    assert decided(database, later) == [("FAILED", "STALE_SOURCE_REVISION"), ("COMMITTED", 4)]
    assert database.value("select last_source_revision from refdata.dictionary_meta") == 12


def test_two_differently_shaped_tables_by_templates(database):
    """R15: both snapshot styles; :eventEpoch and :eventVersion are the command's own."""
    sent = [delta("COUNTRY", {"RU": {"name": "Russia"}, "DE": {"name": "Germany"}}),
            delta("CURRENCY", {"EUR": {"digits": 2}}), delta("COUNTRY", {}, ["DE"]),
            delta("CURRENCY", {"JPY": {"digits": 0}}), snapshot("COUNTRY", {"FR": {"name": "France"}}, tenant="other")]
    publish(database, sent)
    assert decided(database, sent) == [("COMMITTED", 1), ("COMMITTED", 1), ("COMMITTED", 2), ("COMMITTED", 2),
                                       ("COMMITTED", 1)]
    assert countries(database) == {"RU": "Russia"}
    assert countries(database, "other") == {"FR": "France"}
    assert currencies(database) == {"EUR": (2, 1), "JPY": (0, 2)}
    assert database.value("select updated_at_epoch from mdm_country where code = 'RU'") == 1772193600000
    sent = [snapshot("COUNTRY", {"US": {"name": "United \"States\" \\ é"}}), snapshot("CURRENCY", {"USD": {"digits": 2}})]
    publish(database, sent)
    assert decided(database, sent) == [("COMMITTED", 3), ("COMMITTED", 3)]
    assert countries(database) == {"US": "United \"States\" \\ é"}
    assert currencies(database) == {"USD": (2, 3)}
    assert countries(database, "other") == {"FR": "France"}, "another tenant's are left alone"


@pytest.mark.parametrize("kind", ["sql", "builtin"])
def test_a_command_that_postgresql_refuses_fails_alone(database, kind):
    """R10: its reason is recorded, nothing of it stands, nothing behind or before it is held up."""
    code, poison = ("COUNTRY", {"name": None}) if kind == "sql" else ("D", REFUSED)
    sent = [delta(code, {f"k{i}": {"name": f"n{i}"}}) for i in range(20)]
    sent[7] = delta(code, {"poison": {"name": "half"}, "k7": poison})
    publish(database, sent)
    found = decided(database, sent)
    assert found[7] == ("FAILED", "UPDATE_REFUSED")
    assert [version for status, version in found if status == "COMMITTED"] == list(range(1, 20))
    keys = set(countries(database)) if kind == "sql" else set(items_of(database, code))
    assert keys == {f"k{i}" for i in range(20) if i != 7}
    reason = database.value("select error_message from refdata.update_request where status = 'FAILED'")
    assert "SQLSTATE" in reason and "insert into" not in reason.lower()


def test_a_refusal_names_the_item_and_says_that_its_value_is_left_out(database):
    """R2, C9: whoever has to find the item can; its value is shown to nobody."""
    sent = delta("CURRENCY", {"USD": {"digits": 2}, "EUR": {"digits": "secret"}, "JPY": {"digits": 0}})
    publish(database, [sent])
    assert decided(database, [sent]) == [("FAILED", "UPDATE_REFUSED")]
    assert database.value("select error_message from refdata.update_request") == \
        'item "EUR": invalid input syntax for type integer: "(value left out)" (SQLSTATE 22P02)'


def test_dictionaries_that_take_no_such_update(database):
    """R10: unknown, or without SQL for it."""
    sent = [delta("FIXED", {"a": 1}), delta("GONE", {"a": 1}), delta("UPSERTS", {}, ["a"]), snapshot("UPSERTS", {}),
            delta("UPSERTS", {"a": 1}), delta("D", {"a": 1})]
    publish(database, sent)
    assert decided(database, sent) == [("FAILED", "DICTIONARY_READ_ONLY"), ("FAILED", "UNKNOWN_DICTIONARY"),
                                       ("FAILED", "DICTIONARY_READ_ONLY"), ("FAILED", "DICTIONARY_READ_ONLY"),
                                       ("COMMITTED", 1), ("COMMITTED", 1)]
    assert version_of(database, "GONE") == 0 and version_of(database, "FIXED") == 0


def test_what_is_no_command_goes_to_the_dead_letters(database):
    """R9, R10: with the reason; an update that can be told from it has failed; the partition goes on."""
    broken = delta("D", {"a": 1})
    del broken["occurredAt"]
    fine = delta("D", {"a": 2})
    publish(database, [b"\x00garbage", b"[]", broken, fine])
    assert decided(database, [broken, fine]) == [("FAILED", "BAD_REQUEST"), ("COMMITTED", 1)]
    handled(database)
    dead = dead_letters(database)
    assert len(dead) == 3 and any("occurredAt" in headers["dlq-reason"] for headers in dead)
    assert items_of(database, "D") == {"a": 2}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_number_that_becomes_too_long_is_a_dead_letter_and_a_failure(database, chunked):
    """C6, R10: as in a POST, also where nobody checked it before it was published."""
    poison = chunks("D", [{"fine": 1, "long": TOO_LONG}, {}])[0] if chunked else delta("D", {"fine": 1, "long": TOO_LONG})
    fine = delta("D", {"a": 2})
    publish(database, [poison, fine])
    assert decided(database, [poison, fine]) == [("FAILED", "BAD_REQUEST"), ("COMMITTED", 1)]
    why = "items[1].payload: a number would be printed with more than 1000 digits"
    assert database.value("select error_message from refdata.update_request where status = 'FAILED'") == why
    handled(database)
    assert reasons(database) == [f"not a command: {why}"] and items_of(database, "D") == {"a": 2}


def reasons(database):
    """Of the dead letters."""
    return sorted(headers["dlq-reason"] for headers in dead_letters(database))


def test_a_command_that_nobody_accepted_has_a_status_too(database):
    """R8, R2: whoever publishes by the contract alone can ask what became of it; its source is what it says."""
    sent = [delta("D", {"a": 1}, source="KAFKA"), delta("FIXED", {"a": 1}, source="KAFKA"), delta("D", {"b": 1})]
    publish(database, [*sent, sent[0]], requests=False)
    assert decided(database, sent) == [("COMMITTED", 1), ("FAILED", "DICTIONARY_READ_ONLY"), ("COMMITTED", 2)]
    handled(database)
    publish(database, sent, requests=False)
    handled(database)
    assert items_of(database, "D") == {"a": 1, "b": 1} and version_of(database, "D") == 2
    assert database.query("select dict_code, source from refdata.update_request order by 1, 2") == [
        ("D", "KAFKA"), ("D", "REST"), ("FIXED", "KAFKA")]


@pytest.mark.parametrize("shared", [True, False])
def test_chunks_that_nobody_accepted(database, shared):
    """R8: in any order and twice; each event shows the snapshot's status, whether they share one or not."""
    sent = chunks("D", [{"a": 1}, {"b": 2}, {"c": 3}], source="KAFKA", **({"event": event_id()} if shared else {}))
    publish(database, [sent[2], sent[0], sent[2]], requests=False)
    handled(database)
    assert {status for status, _ in statuses(database, [sent[0], sent[2]])} == {"PENDING"}
    publish(database, [sent[1], sent[1]], requests=False)
    assert decided(database, sent) == [("COMMITTED", 1)] * 3
    assert items_of(database, "D") == {"a": 1, "b": 2, "c": 3}


def test_a_dead_letter_can_be_sent_again_once_it_is_put_right(database):
    """R9: what is buried leaves no trace of its event. The reason says what was wrong."""
    wrong_key, unknown, nameless = delta("D", {"a": 1}), delta("LATER", {"a": 1}), delta("D", {"a": 1})
    del nameless["eventId"]
    publish(database, [wrong_key], requests=False, key=b"demo:E")
    publish(database, [unknown, nameless], requests=False)
    handled(database)
    assert reasons(database) == ["not a command: eventId is missing",
                                 "not a command: its key is not {tenantId}:{dictCode}",
                                 "not a command: no such dictionary"]
    assert database.value("select count(*) from refdata.update_request") == 0
    assert database.value("select count(*) from refdata.processed_event") == 0
    publish(database, [wrong_key], requests=False)
    assert decided(database, [wrong_key]) == [("COMMITTED", 1)]


def test_what_is_old_is_forgotten(serve, refdata_db):
    """Retention: decided updates and their events, deleted items; never what is pending."""
    database = refdata_db
    server = serve(database, applier("D", updates={"keep": "1s", "snapshotExpiry": "200ms", "keyKeep": "2h"}), args=ROLES)
    database.query("insert into refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, updated_at)"
                   " select 'demo', gen_random_uuid(), 'D', case i when 0 then 'PENDING' else 'COMMITTED' end, '',"
                   " now() - interval '1 hour' from generate_series(0, 2500) i")
    database.query("insert into refdata.processed_event select 'demo', gen_random_uuid(), 'REST', now() - interval '1 h'"
                   " from generate_series(1, 2500)")
    database.query("insert into refdata.dictionary_item select 'demo', 'D', i::text, 'null', i > 1,"
                   " now() - interval '1 day 1 h' from generate_series(1, 3) i")
    database.query("insert into refdata.update_key select 'demo', 's', i::text, '', gen_random_uuid(),"
                   " now() - i * interval '50 min' from generate_series(1, 4) i")
    eventually(lambda: database.value("select count(*) from refdata.update_request") == 1)
    eventually(lambda: database.value("select count(*) from refdata.processed_event") == 0)
    eventually(lambda: database.value("select count(*) from refdata.dictionary_item") == 1)
    eventually(lambda: database.value("select count(*) from refdata.update_key") == 2)
    (line,) = eventually(lambda: server.logs(event="idempotency_keys_cleaned"))  # I6, I7
    assert (line["table"], line["count"]) == ("refdata.update_key", 2)
    assert server.metrics()['idempotency_cleanup_count_total{route="/v1/tenants/{tenantId}/updates"}'] == 2
