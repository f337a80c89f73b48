"""R15: dictionaries changed by SQL: refdata.touch, and statement triggers that call it."""
import psycopg2
import pytest

from lib.refdata import item_path, make_table, path, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.writers import commit, delta

TRIGGERS = """
create trigger own_inserted after insert on own referencing new table as new_rows
    for each statement execute function refdata.touch_changed('OWN', 'tenant_id');
create trigger own_updated after update on own referencing old table as old_rows new table as new_rows
    for each statement execute function refdata.touch_changed('OWN', 'tenant_id');
create trigger own_deleted after delete on own referencing old table as old_rows
    for each statement execute function refdata.touch_changed('OWN', 'tenant_id');
create trigger own_truncated after truncate on own
    for each statement execute function refdata.touch_changed('OWN');
"""


def versions(database):
    return dict(database.query("select tenant_id, version from refdata.dictionary_meta where dict_code = 'OWN'"))


def test_touch_raises_the_version_and_makes_the_row_when_there_is_none(serve, refdata_db, token):  # noqa: F811
    """R15: without it an UPDATE of dictionary_meta changes no row, and no pod hears of anything."""
    make_table(refdata_db, "own", {"a": "1"})
    client = serve(refdata_db, pod(sql_dictionary("OWN", "own"))).client(token())
    assert client.get(path("OWN", "/version")).json()["version"] == 0
    refdata_db.query("update own set v = '2'")
    assert refdata_db.value("select refdata.touch('demo', 'OWN')") == 1
    assert eventually(lambda: client.get(item_path("OWN", "a")).json()["payload"] == 2)
    assert refdata_db.value("select refdata.touch('demo', 'OWN')") == 2
    assert refdata_db.value("select count(distinct last_event_id) from refdata.dictionary_meta") == 1


@pytest.mark.parametrize("tenant, code", [("", "D"), ("a b", "D"), ("demo", "x" * 65), (None, "D"), ("demo", None)])
def test_touch_takes_names_that_a_dictionary_can_have(refdata_db, tenant, code):  # noqa: F811
    with pytest.raises(psycopg2.errors.InvalidParameterValue):
        refdata_db.value("select refdata.touch(%s, %s)", (tenant, code))
    assert refdata_db.value("select count(*) from refdata.dictionary_meta") == 0


def test_a_statement_trigger_touches_the_tenants_whose_rows_were_changed(refdata_db):  # noqa: F811
    """R15: once per statement and tenant."""
    make_table(refdata_db, "own")
    refdata_db.query(TRIGGERS)
    refdata_db.query("insert into own values ('a', 'k', '1'), ('a', 'l', '1'), ('b', 'k', '1')")
    assert versions(refdata_db) == {"a": 1, "b": 1}
    refdata_db.query("update own set v = '2' where tenant_id = 'a'")
    assert versions(refdata_db) == {"a": 2, "b": 1}
    refdata_db.query("update own set tenant_id = 'c' where tenant_id = 'b'")
    assert versions(refdata_db) == {"a": 2, "b": 2, "c": 1}
    refdata_db.query("delete from own where k = 'nowhere'")
    assert versions(refdata_db) == {"a": 2, "b": 2, "c": 1}
    refdata_db.query("delete from own where tenant_id = 'c'")
    assert versions(refdata_db) == {"a": 2, "b": 2, "c": 2}
    refdata_db.query("truncate own")
    assert versions(refdata_db) == {"a": 3, "b": 3, "c": 3}


def test_updates_of_a_table_with_the_trigger_are_one_version_each(serve, refdata_db, token):  # noqa: F811
    """R10, R15: what apply writes fires the trigger too."""
    make_table(refdata_db, "own")
    refdata_db.query(TRIGGERS)
    definition = sql_dictionary("OWN", "own", apply={"upsertSql": "insert into own values (:tenantId, :key, :payload)"
                                                                  " on conflict (tenant_id, k) do update set v = excluded.v"})
    client = serve(refdata_db, pod(definition)).client(token())
    for version in (1, 2):
        answer = commit(client, delta("OWN", {"a": version, "b": version, "c": version}))
        assert (answer.status, answer.json()["committedVersion"]) == (200, version)
        assert client.get(item_path("OWN", "b"), X_Min_Version=str(version)).json()["payload"] == version
    assert versions(refdata_db) == {"demo": 2}
