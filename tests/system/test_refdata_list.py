"""Issue 15, point 4: GET /v1/tenants/{t}/dictionaries, the list of a tenant's dictionaries with their versions."""
import re
import threading

import pytest

from lib.config import merge
from lib.refdata import TENANT, item_path, own_refdata_db, pod, refdata_db, set_version, write_builtin  # noqa: F401
from lib.wait import eventually, free_port

pytestmark = pytest.mark.roles("query")

LIST = f"/v1/tenants/{TENANT}/dictionaries"
RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z")
STILL = {"sweepInterval": "1h", "driftCheckInterval": "1h"}


def listed(client, query=""):
    answer = client.get(LIST + query)
    assert answer.status == 200, answer.body
    return answer.json()


def by_code(body):
    return {entry["dictCode"]: entry for entry in body["dictionaries"]}


def test_what_is_held_and_what_is_not_are_listed_with_their_versions(serve, refdata_db, token):
    """Held: the version in memory and its number of items. Not held: the committed version, and nothing is loaded for it."""
    write_builtin(refdata_db, "HELD", {"a": 1, "b": 2}, version=41)
    write_builtin(refdata_db, "THERE", {"a": 1}, version=7)
    client = serve(refdata_db, pod("THERE", "HELD", "NEVER")).client(token())
    assert client.get(item_path("HELD", "a")).status == 200
    for _ in range(2):
        body = listed(client)
        assert list(body) == ["dictionaries", "nextCursor"] and body["nextCursor"] is None
        held, never, there = body["dictionaries"]
        assert {RFC3339.fullmatch(held.pop(name)) is not None for name in ("updatedAt", "loadedAt")} == {True}
        assert held == {"dictCode": "HELD", "version": 41, "held": True, "available": True, "itemCount": 2}
        assert RFC3339.fullmatch(there.pop("updatedAt"))
        assert there == {"dictCode": "THERE", "version": 7, "held": False, "available": True}
        assert never == {"dictCode": "NEVER", "version": 0, "held": False, "available": True}


def test_a_dictionary_that_is_not_held_shows_its_new_version_a_moment_later(serve, refdata_db, token):
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    client = serve(refdata_db, pod("D", cache=STILL)).client(token())
    assert listed(client)["dictionaries"][0]["version"] == 1
    set_version(refdata_db, "D", 2)
    assert eventually(lambda: listed(client)["dictionaries"][0]["version"] == 2)
    assert listed(client)["dictionaries"][0]["held"] is False


def test_a_tenant_sees_its_own_versions_and_no_other_ones(serve, refdata_db, token):
    write_builtin(refdata_db, "D", {"a": 1}, version=5)
    write_builtin(refdata_db, "D", {"a": 1}, version=9, tenant="other")
    server = serve(refdata_db, pod("D"))
    assert listed(server.client(token()))["dictionaries"][0]["version"] == 5
    other = server.client(token("other"))
    assert other.get(LIST).code == "TENANT_MISMATCH"
    assert other.get("/v1/tenants/other/dictionaries").json()["dictionaries"][0]["version"] == 9
    assert listed(server.client(token()))["dictionaries"][0]["version"] == 5
    assert server.client().get(LIST).code == "UNAUTHENTICATED"


def test_a_dictionary_whose_scope_the_token_lacks_is_left_out(serve, refdata_db, token):
    """C5: held or not, and a page is filled by the dictionaries after it."""
    changes = pod("A", {"code": "B", "readScope": "b:read"}, {"code": "C", "readScope": "c:read"}, "D")
    server = serve(refdata_db, changes)
    reader = server.client(token(scope="b:read c:read"))
    assert reader.get(item_path("B", "x")).code == "ITEM_NOT_FOUND"  # loads it
    assert list(by_code(listed(reader))) == ["A", "B", "C", "D"]
    assert list(by_code(listed(server.client(token(scope="c:read b:readx"))))) == ["A", "C", "D"]
    plain = server.client(token())
    assert list(by_code(listed(plain))) == ["A", "D"]
    first = listed(plain, "?limit=1")
    assert (list(by_code(first)), first["nextCursor"]) == (["A"], "A")
    last = listed(plain, "?limit=1&cursor=A")
    assert (list(by_code(last)), last["nextCursor"]) == (["D"], None)


def test_pages_bring_every_dictionary_once_in_bytewise_order(serve, refdata_db, token):
    codes = [f"{prefix}{number}" for prefix in ("a", "B", "_", "-", ".") for number in range(5)]
    client = serve(refdata_db, pod(*codes)).client(token())
    seen, cursor = [], ""
    while cursor is not None:
        body = listed(client, "?limit=4" + (f"&cursor={cursor}" if cursor else ""))
        assert len(body["dictionaries"]) <= 4
        seen += [entry["dictCode"] for entry in body["dictionaries"]]
        cursor = body["nextCursor"]
    assert seen == sorted(codes)
    assert listed(client, "?cursor=zzz") == {"dictionaries": [], "nextCursor": None}


@pytest.mark.parametrize("query, field", [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"),
                                          ("cursor=", "cursor"), ("cursor=a%2Fb", "cursor"), ("stray=1", "stray"),
                                          ("limit=1&limit=2", "limit")])
def test_a_bad_parameter_is_named(serve, refdata_db, token, query, field):
    """C6."""
    answer = serve(refdata_db, pod("D")).client(token()).get(f"{LIST}?{query}")
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")
    assert field in answer.json()["field"] or field in answer.json()["message"]


def test_a_storm_of_lists_is_a_few_reads_of_the_primary(serve, refdata_db, token):
    """At most one read a second of a tenant, however many ask."""
    codes = [f"D{number}" for number in range(20)]
    for code in codes[:3]:
        write_builtin(refdata_db, code, {"a": 1}, version=3)
    server = serve(refdata_db, pod(*codes, cache=STILL, http={"loops": 2}))
    bearer, requests, threads = token(), 100, 4
    sql = ("select idx_scan + seq_scan from pg_stat_user_tables where relid = 'refdata.dictionary_meta'::regclass")
    listed(server.client(bearer))
    before = refdata_db.value(sql)

    def storm():
        with server.client(bearer) as client:
            for _ in range(requests):
                assert by_code(listed(client))["D0"]["version"] == 3

    running = [threading.Thread(target=storm) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    refdata_db.query("select pg_stat_force_next_flush()")
    assert eventually(lambda: refdata_db.value(sql) - before < requests * threads / 4)


def test_while_postgresql_is_down_what_is_held_is_listed_and_the_rest_has_no_version(serve, own_postgres, own_refdata_db, token):
    write_builtin(own_refdata_db, "HELD", {"a": 1}, version=3)
    write_builtin(own_refdata_db, "THERE", {"a": 1}, version=4)
    client = serve(own_refdata_db, pod("HELD", "THERE")).client(token())
    assert client.get(item_path("HELD", "a")).status == 200
    own_postgres.stop("immediate")

    def without():
        entries = by_code(listed(client))
        assert (entries["HELD"]["version"], entries["HELD"]["held"]) == (3, True)
        return entries["THERE"]["version"] is None and entries

    assert eventually(without)["THERE"] == {"dictCode": "THERE", "version": None, "held": False, "available": True}
    own_postgres.start()
    assert eventually(lambda: by_code(listed(client))["THERE"]["version"] == 4)


def test_a_database_that_is_away_does_not_hide_the_dictionaries_of_another(serve, refdata_db, token):
    """R15: several databases; each is asked by itself."""
    write_builtin(refdata_db, "HERE", {"a": 1}, version=6)
    config = pod({"code": "HERE", "postgres": "main"}, {"code": "AWAY", "postgres": "away"})
    main = {"name": "main", "jdbcUrl": refdata_db.jdbc_url, "username": refdata_db.user,
            "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
    away = {"name": "away", "jdbcUrl": f"jdbc:postgresql://127.0.0.1:{free_port()}/none"}
    server = serve(refdata_db, merge(config, {"refdata": {"postgres": [main, away]}}))
    entries = by_code(listed(server.client(token())))
    assert entries["HERE"]["version"] == 6 and entries["AWAY"]["version"] is None


def test_a_dictionary_that_postgresql_refuses_is_listed_as_not_available(serve, refdata_db, token):
    broken = {"code": "BROKEN", "loadSql": "select 1 as nothing", "shared": True}
    client = serve(refdata_db, pod("D", broken)).client(token())
    entries = eventually(lambda: (lambda all_: all_ if not all_["BROKEN"]["available"] else None)(by_code(listed(client))))
    assert entries["BROKEN"]["held"] is False and entries["D"]["available"]


@pytest.mark.tsan
def test_lists_are_right_while_dictionaries_come_and_go(serve, refdata_db, token):
    """R15: a reload that removes a dictionary while its version is asked for; clients that leave."""
    for code in ("A", "B", "C"):
        write_builtin(refdata_db, code, {"a": 1}, version=2)
    set_version(refdata_db, "BB", 2)  # before the first read: what is not held may be shown a second late
    server = serve(refdata_db, pod("A", "B", "C", http={"loops": 2}))
    bearer, ended, wrong = token(), threading.Event(), []

    def read():
        try:
            with server.client(bearer) as client:
                while not ended.is_set():
                    for entry in listed(client)["dictionaries"]:
                        assert entry["version"] == 2, entry
        except Exception as error:  # noqa: BLE001: told by the test's own thread
            wrong.append(repr(error))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    with server.client(bearer) as client:
        text = server.config_path.read_text()
        for name in ["BB", "B"] * 3:
            server.write_config(text.replace('"B"', f'"{name}"'))
            server.sighup()
            eventually(lambda name=name: name in by_code(listed(client)) or wrong)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
