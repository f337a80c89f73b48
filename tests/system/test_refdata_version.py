"""R6, R13, R14: versions, digests, and data that is never labelled with a version it is not."""
import contextlib
import re
import threading

import pytest

from lib.refdata import (LabelWriter, item_path, labelled, make_table, path, pod, refdata_db, set_version,  # noqa: F401
                         sql_dictionary, write_builtin)
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z")


def version_of(client, code):
    answer = client.get(path(code, "/version"))
    assert answer.status == 200, answer.body
    return answer.json()


def at_version(client, code, version):
    """Waits until the pod serves this version; its /version body."""
    def reached():
        body = version_of(client, code)
        return body if body["version"] == version else None

    return eventually(reached)


def test_version_says_what_the_pod_holds(serve, refdata_db, token):
    """R6: exactly these members, loadedAt in RFC 3339, the version in the header too."""
    write_builtin(refdata_db, "D", {"a": 1, "b": 2}, version=41)
    answer = serve(refdata_db, pod("D")).client(token()).get(path("D", "/version"))
    body = answer.json()
    assert set(body) == {"tenantId", "dictCode", "version", "itemCount", "digest", "loadedAt"}
    assert (body["tenantId"], body["dictCode"], body["version"], body["itemCount"]) == ("demo", "D", 41, 2)
    assert re.fullmatch(r"[0-9a-f]{32}", body["digest"])
    assert RFC3339.fullmatch(body["loadedAt"])
    assert answer.headers["x-dict-version"] == "41" and answer.headers["x-data-source"] == "memory"


def test_version_takes_no_parameters(serve, refdata_db, token):
    """C6: a parameter that means nothing is 400."""
    client = serve(refdata_db, pod("D")).client(token())
    assert client.get(path("D", "/version?x=1")).code == "BAD_REQUEST"


def test_two_pods_with_the_same_data_have_the_same_digest(serve, refdata_db, token):
    """R6: the digest is comparable between processes and independent of the rows' order."""
    items = {f"k{i}": f'{{"i": {i}}}' for i in range(50)}
    make_table(refdata_db, "forwards", items)
    make_table(refdata_db, "backwards", dict(reversed(items.items())))
    changes = pod(sql_dictionary("FORWARDS"), sql_dictionary("BACKWARDS"))
    digests = {version_of(serve(refdata_db, changes).client(token()), code)["digest"]
               for code in ["FORWARDS", "BACKWARDS"] for _ in range(2)}
    assert len(digests) == 1


def test_the_digest_follows_the_content_alone(serve, refdata_db, token):
    """R6: another one after a change of key or payload, the old one after it was taken back."""
    client = serve(refdata_db, pod("D")).client(token())
    states = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 1}, {"a": 1, "c": 2}, {"a": 1}, {"a": 1, "b": 2}]
    digests = []
    for number, items in enumerate(states, start=1):
        write_builtin(refdata_db, "D", items, version=number)
        digests.append(at_version(client, "D", number)["digest"])
    assert digests[0] == digests[-1]
    assert len(set(digests)) == len(states) - 1


def test_a_change_by_hand_with_the_version_raised_shows_up(serve, refdata_db, token):
    """R13, R14: the comparison with dictionary_meta alone is enough. Inserts, updates and deletes."""
    write_builtin(refdata_db, "D", {"a": 1, "b": 2}, version=1)
    client = serve(refdata_db, pod("D")).client(token())
    assert client.get(item_path("D", "a")).json()["payload"] == 1
    refdata_db.query("begin; update refdata.dictionary_item set payload = '10' where item_key = 'a';"
                     "delete from refdata.dictionary_item where item_key = 'b';"
                     "insert into refdata.dictionary_item (tenant_id, dict_code, item_key, payload)"
                     " values ('demo', 'D', 'c', '3');"
                     "update refdata.dictionary_meta set version = 2, updated_at = now(); commit")
    at_version(client, "D", 2)
    assert client.get(path("D", "/all")).json()["items"] == [{"key": "a", "payload": 10}, {"key": "c", "payload": 3}]


def test_rows_marked_deleted_are_not_served(serve, refdata_db, token):
    """R19: dictionary_item.deleted."""
    write_builtin(refdata_db, "D", {"a": 1, "b": 2}, version=1)
    refdata_db.query("update refdata.dictionary_item set deleted = true where item_key = 'a'")
    client = serve(refdata_db, pod("D")).client(token())
    assert client.get(item_path("D", "a")).status == 404
    assert client.get(item_path("D", "b")).status == 200


def test_a_version_that_goes_back_is_noticed_counted_logged_and_reloaded(serve, refdata_db, token):
    """R14: after a restore or a failover that lost its tail, the truth is what PostgreSQL has."""
    write_builtin(refdata_db, "D", {"a": "new"}, version=9)
    server = serve(refdata_db, pod("D"))
    client = server.client(token())
    assert version_of(client, "D")["version"] == 9
    write_builtin(refdata_db, "D", {"a": "restored"}, version=4)
    at_version(client, "D", 4)
    assert client.get(item_path("D", "a")).json()["payload"] == "restored"
    (line,) = server.logs(event="dictionary_version_went_back")
    assert (line["level"], line["dictCode"], line["tenantId"]) == ("error", "D", "demo")
    assert (line["localVersion"], line["version"]) == (9, 4)
    assert server.metrics()['dict_version_regressions_total{dict_code="D"}'] == 1
    write_builtin(refdata_db, "D", {"a": "later"}, version=5)
    at_version(client, "D", 5)
    refdata_db.query("delete from refdata.dictionary_meta")
    at_version(client, "D", 0)
    assert server.metrics()['dict_version_regressions_total{dict_code="D"}'] == 2


def test_data_that_changes_without_its_version_is_not_looked_for(serve, refdata_db, token):
    """R13: the version is the only truth; a pod does not reload what did not change."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    write_builtin(refdata_db, "E", {"a": 1}, version=1)
    server = serve(refdata_db, pod("D", "E"))
    client = server.client(token())
    assert [client.get(item_path(code, "a")).status for code in "DE"] == [200, 200]
    for version in range(2, 6):
        write_builtin(refdata_db, "E", {"a": version}, version=version)
        at_version(client, "E", version)
    assert len(server.logs(event="dictionary_loaded", dictCode="D")) == 1


@pytest.mark.tsan
def test_data_is_never_labelled_with_a_version_it_is_not(serve, refdata_db, token):
    """R13: data and version are read in one REPEATABLE READ transaction, versions only go up for a reader."""
    server = serve(refdata_db, pod(labelled(refdata_db, "L", 50), cache={"sweepInterval": "10ms"}))
    wrong, seen = [], set()

    def read(stop):
        last = 0
        with server.client(token()) as client:
            while not stop.is_set():
                answer = client.get(item_path("L", "k000007"))
                version = int(answer.headers["x-dict-version"])
                if answer.json()["payload"]["label"] != version or version < last:
                    wrong.append((last, version, answer.json()["payload"]["label"]))
                last = version
                seen.add(version)

    stop = threading.Event()
    readers = [threading.Thread(target=read, args=(stop,)) for _ in range(4)]
    with LabelWriter(refdata_db, "L", "l") as writer:
        for reader in readers:
            reader.start()
        try:
            eventually(lambda: len(seen) > 30 or wrong)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert not wrong
    at_version(server.client(token()), "L", writer.version)


def test_a_change_between_reading_the_version_and_the_data_is_not_mixed_in(serve, refdata_db, token):
    """R13: one snapshot for both. The load is held between its two statements while version and data change."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 1)
    server = serve(refdata_db, pod(sql_dictionary("T"), cache={"firstReadTimeout": "1m"}))
    eventually(lambda: server.metrics().get('dict_unavailable{dict_code="T"}') == 0)  # its SQL has been checked
    answers = []

    def read():
        with server.client(token()) as client:
            answers.append(client.get(item_path("T", "a")))

    reader = threading.Thread(target=read)
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("begin; lock table t in access exclusive mode")
        reader.start()
        eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                                            " and datname = current_database()"))
        cursor.execute("update t set v = '2'; update refdata.dictionary_meta set version = 2; commit")
    reader.join()
    assert [(answer.headers["x-dict-version"], answer.json()["payload"]) for answer in answers] == [("1", 1)]
    at_version(server.client(token()), "T", 2)


def test_a_writer_that_never_commits_is_never_seen(serve, refdata_db, token):
    """R13: a pod reads what is committed, and does not wait for who is not."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    write_builtin(refdata_db, "E", {"a": 1}, version=1)
    client = serve(refdata_db, pod("D", "E")).client(token())
    version_of(client, "D")
    with contextlib.closing(refdata_db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("begin; update refdata.dictionary_item set payload = '666' where dict_code = 'D';"
                       "update refdata.dictionary_meta set version = 666 where dict_code = 'D'")
        write_builtin(refdata_db, "E", {"a": 2}, version=2)
        at_version(client, "E", 2)
        assert client.get(item_path("D", "a")).json()["payload"] == 1
        cursor.execute("rollback")
    assert version_of(client, "D")["version"] == 1


def test_a_reload_that_fails_leaves_the_old_version_served_and_is_retried(serve, refdata_db, token):
    """R13: errors are retried with backoff, the old version is served meanwhile."""
    make_table(refdata_db, "t", {"a": "1"})
    set_version(refdata_db, "T", 1)
    server = serve(refdata_db, pod(sql_dictionary("T")))
    client = server.client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == 1
    refdata_db.query("alter table t rename to hidden; update hidden set v = '2'")
    set_version(refdata_db, "T", 2)
    eventually(lambda: server.logs(event="dictionary_load_failed"))
    assert client.get(item_path("T", "a")).headers["x-dict-version"] == "1"
    assert server.metrics()['cache_reload_errors{dict_code="T"}'] >= 1
    refdata_db.query("alter table hidden rename to t")
    at_version(client, "T", 2)
    assert client.get(item_path("T", "a")).json()["payload"] == 2


@pytest.mark.parametrize("change", [
    "alter table t alter column v type json using v::json",
    "alter table t rename to old; create table t (v jsonb, tenant_id text, k text);"
    " insert into t select v, tenant_id, k from old",
    "alter table t drop column k; alter table t add column k text; update t set k = 'a'",
])
def test_a_table_that_changes_its_shape_is_read_by_its_new_shape(serve, refdata_db, token, change):
    """R15: k and v are found by name, whatever was prepared before."""
    make_table(refdata_db, "t", {"a": '{"n": 1}'})
    set_version(refdata_db, "T", 1)
    client = serve(refdata_db, pod({"code": "T", "loadSql": "select * from t where tenant_id = :tenantId"})).client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == {"n": 1}
    refdata_db.query(change)
    set_version(refdata_db, "T", 2)
    at_version(client, "T", 2)
    assert client.get(path("T", "/all")).json()["items"] == [{"key": "a", "payload": {"n": 1}}]


def test_a_table_whose_v_is_no_longer_json_is_never_served_as_json(serve, refdata_db, token):
    """R15: what is no JSON is refused at load too, and the old version stays."""
    make_table(refdata_db, "t", {"a": '{"n": 1}'})
    set_version(refdata_db, "T", 1)
    server = serve(refdata_db, pod(sql_dictionary("T")))
    client = server.client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == {"n": 1}
    refdata_db.query("alter table t alter column v type text using 'no json'")
    set_version(refdata_db, "T", 2)
    eventually(lambda: len(server.logs(event="dictionary_load_failed")) > 3)
    assert client.get(item_path("T", "a")).json()["payload"] == {"n": 1}


@pytest.mark.parametrize("rows, told", [
    ("('demo', null, '1')", "null"),
    ("('demo', '', '1')", "key"),
    ("('demo', repeat('x', 1025), '1')", "key"),
])
def test_a_row_that_cannot_be_served_fails_the_load_and_says_why(serve, refdata_db, token, rows, told):
    """R13, C6: keys are 1 to 1,024 bytes; nothing is left out silently."""
    refdata_db.query(f"create table t (tenant_id text, k text, v jsonb); insert into t values {rows}")
    server = serve(refdata_db, pod(sql_dictionary("T")))
    answer = server.client(token()).get(path("T", "/version"))
    assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE")
    assert "retry-after" in answer.headers
    line = server.logs(event="dictionary_load_failed")[0]
    assert told in line["error"] and line["dictCode"] == "T"


def test_a_payload_of_sql_null_is_json_null_and_a_repeated_key_is_told(serve, refdata_db, token):
    """R15: the last row of a key wins, and somebody hears of it."""
    refdata_db.query("create table t (tenant_id text, k text, v jsonb);"
                     " insert into t values ('demo', 'n', null), ('demo', 'a', '1'), ('demo', 'a', '1')")
    server = serve(refdata_db, pod(sql_dictionary("T")))
    client = server.client(token())
    assert client.get(item_path("T", "n")).body == b'{"key":"n","payload":null}'
    assert version_of(client, "T")["itemCount"] == 2
    assert server.logs(event="dictionary_keys_repeated")[0]["repeated"] == 1
