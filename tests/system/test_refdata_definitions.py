"""R15: dictionaries come from configuration alone."""
import re
from urllib.parse import quote

import pytest

from lib.refdata import (item_path, make_table, path, pod, refdata_db, set_version, sql_dictionary,  # noqa: F401
                         write_builtin)
from lib.wait import eventually

pytestmark = pytest.mark.roles("query")

# Seed 000 §5, word for word.
SEED_YAML = '''\
refdata:
  postgres:
    jdbcUrl: jdbc:postgresql://pg-host:5432/app
    username: app_user
    passwordFromEnv: PG_PASSWORD
    schema: public
    pool:
      maxSize: 50

  consistency:
    waitCommitTimeoutMs: 300

  security:
    tenant:
      source: JWT_CLAIM
      claim: tenant_id
      allowHeaderOverrideForTrustedClients: false

  kafka:
    commandsTopic: refdata.commands
    keyTemplate: "{tenantId}:{dictCode}"

  redis:
    mode: cluster
    nodes:
      - redis-0:6379
      - redis-1:6379
      - redis-2:6379
    pubChannel: refdata:inv:pub
    streamKey: refdata:inv:stream
    consumerGroup: refdata-query-pods

  dictionaries:
    - code: COUNTRY
      enabled: true
      loadSql: |
        select code as k, to_jsonb(t) as v
        from mdm_country t
        where t.tenant_id = :tenantId and t.deleted = false
      driftCheckSql: |
        select coalesce(max(updated_at_epoch),0)::bigint as version
        from mdm_country
        where tenant_id = :tenantId
      apply:
        mode: SQL_TEMPLATE
        upsertSql: |
          insert into mdm_country(tenant_id, code, name, updated_at_epoch, deleted)
          values (:tenantId, :key, cast(:payload->>'name' as text), :eventEpoch, false)
          on conflict (tenant_id, code) do update
          set name = excluded.name,
              updated_at_epoch = excluded.updated_at_epoch,
              deleted = false
        deleteSql: |
          update mdm_country
          set deleted = true,
              updated_at_epoch = :eventEpoch
          where tenant_id = :tenantId
            and code = :key
        snapshotStrategy: FULL_REPLACE
        snapshotReplaceSql: |
          select refdata_replace_country_snapshot(:tenantId, :snapshotJson)
      reloadOnEvent: FULL

    - code: CURRENCY
      enabled: true
      loadSql: |
        select ccy as k,
               jsonb_build_object('name', name, 'digits', digits) as v
        from mdm_currency
        where tenant_id = :tenantId and deleted = false
      driftCheckSql: |
        select coalesce(max(version),0)::bigint
        from mdm_currency
        where tenant_id = :tenantId
      apply:
        mode: SQL_TEMPLATE
        upsertSql: |
          insert into mdm_currency(tenant_id, ccy, name, digits, version, deleted)
          values (
            :tenantId,
            :key,
            cast(:payload->>'name' as text),
            cast(:payload->>'digits' as int),
            :eventVersion,
            false
          )
          on conflict (tenant_id, ccy) do update
          set name = excluded.name,
              digits = excluded.digits,
              version = excluded.version,
              deleted = false
        deleteSql: |
          update mdm_currency
          set deleted = true,
              version = :eventVersion
          where tenant_id = :tenantId
            and ccy = :key
        snapshotStrategy: FULL_REPLACE
        snapshotReplaceSql: |
          select refdata_replace_currency_snapshot(:tenantId, :snapshotJson)
      reloadOnEvent: FULL
'''


def seed_config(database, jwks_path):
    """The seed's block with nothing changed but where the database is, and keys to check tokens with."""
    text = SEED_YAML.replace("pg-host:5432/app", f"127.0.0.1:{database.server.port}/{database.name}")
    text = text.replace("app_user", database.user)
    return f"{text}\nauth:\n  jwksFile: {jwks_path}\n"


def test_the_seeds_yaml_loads_as_written(serve, refdata_db, root, jwks_path, token):
    """R15: seed §5, on the demo tables: two different structures, one program."""
    refdata_db.run_file(root / "config/demo.sql")
    server = serve(refdata_db, config=seed_config(refdata_db, jwks_path), env={"PG_PASSWORD": refdata_db.password})
    client = server.client(token())
    country = client.get(item_path("COUNTRY", "DE"))
    assert country.json()["payload"]["name"] == "Germany" and country.headers["x-dict-version"] == "1"
    assert client.get(item_path("CURRENCY", "BHD")).json()["payload"] == {"name": "Bahraini dinar", "digits": 3}
    assert not server.logs(level="error")


def test_the_seeds_yaml_alone_starts_and_says_that_nobody_can_enter(serve, refdata_db, root, jwks_path, token):
    """C2, R15: seed §5 to the letter, without a word about keys: every token is 401, and health says why."""
    config = seed_config(refdata_db, jwks_path).partition("\nauth:")[0] + "\n"
    server = serve(refdata_db, config=config, env={"PG_PASSWORD": refdata_db.password})
    assert server.client(token()).get(item_path("COUNTRY", "DE")).status == 401
    assert server.client().get("/actuator/health").json()["components"]["auth:keys"]["status"] == "DOWN"
    assert server.logs(event="auth_lets_nobody_in")


def test_the_password_comes_from_the_environment_named(serve, refdata_db, root, jwks_path):
    """R15: passwordFromEnv; a variable that is not there is said at once, with its place."""
    server = serve.make(refdata_db, config=seed_config(refdata_db, jwks_path))
    server.env.pop("PG_PASSWORD", None)
    server.spawn()
    assert server.process.wait(30) == 1
    assert re.search(r"freshet\.yaml:5:\d+: refdata\.postgres\.passwordFromEnv: .*PG_PASSWORD", server.log())


def test_two_databases_are_served_by_one_process(serve, postgres, refdata_db, token):
    """R15: several postgres blocks, each with its own refdata tables, pools and shape."""
    other = postgres.create_database()
    try:
        other.query("create schema shop; create table shop.goods (tenant text, sku int, doc json);"
                    "insert into shop.goods values ('demo', 7, '{\"title\": \"Seven\"}')")
        make_table(refdata_db, "t", {"a": "1"})
        set_version(refdata_db, "T", 3)
        block = {"username": other.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
        changes = pod(sql_dictionary("T"),
                      {"code": "GOODS", "postgres": "shop",
                       "loadSql": "select doc as v, sku as k from goods where tenant = :tenantId"})
        changes["refdata"]["postgres"] = [
            {"name": "main", "jdbcUrl": refdata_db.jdbc_url, "schema": "public", **block},
            {"name": "shop", "jdbcUrl": other.jdbc_url, "schema": "shop", **block},
        ]
        server = serve(refdata_db, changes)
        client = server.client(token())
        assert client.get(item_path("T", "a")).headers["x-dict-version"] == "3"
        goods = client.get(item_path("GOODS", "7"))
        assert (goods.json()["payload"], goods.headers["x-dict-version"]) == ({"title": "Seven"}, "0")
        set_version(other, "GOODS", 5)
        eventually(lambda: client.get(item_path("GOODS", "7")).headers["x-dict-version"] == "5")
        assert set(client.get("/actuator/health").json()["components"]) >= {"postgres:main", "postgres:shop"}
        server.stop()
    finally:
        other.drop()


BAD_TEMPLATES = {
    "syntax": ("selec k, v from t where tenant_id = :tenantId", "syntax error", "line 1 column 1"),
    "table": ("select k,\n       v from nowhere\nwhere tenant_id = :tenantId", "nowhere", "line 2 column 15"),
    "column": ("select k, w as v from t where tenant_id = :tenantId", "\"w\"", "line 1 column 11"),
    "after_parameter": ("select k, v from t where tenant_id = :tenantId and wrong = 1", "wrong", "line 1 column 52"),
    "no_k": ("select k as key, v from t where tenant_id = :tenantId", "no column k", ""),
    "no_v": ("select k, v as value from t where tenant_id = :tenantId", "no column v", ""),
    "v_text": ("select k, v::text from t where tenant_id = :tenantId", "json", ""),
    "no_rows": ("delete from t where tenant_id = :tenantId", "no column k", ""),
    "type": ("select k, v from t where tenant_id = :tenantId + 1", "operator does not exist", ""),
}


def test_templates_that_postgresql_refuses_disable_their_dictionary_alone(serve, refdata_db, token):
    """R15: 503 DICTIONARY_UNAVAILABLE, a log line with dictionary, field and position, a metric; the others go on."""
    make_table(refdata_db, "t", {"a": "1"})
    bad = [{"code": name, "loadSql": sql} for name, (sql, _, _) in BAD_TEMPLATES.items()]
    bad.append(sql_dictionary("upsert", "t", apply={"upsertSql": "insert into nowhere values (:key, :payload)"}))
    server = serve(refdata_db, pod(*bad, sql_dictionary("GOOD", "t")))
    client = server.client(token())
    assert client.get(item_path("GOOD", "a")).status == 200
    metrics = server.metrics()
    assert metrics['dict_unavailable{dict_code="GOOD"}'] == 0
    for name, (_, told, position) in BAD_TEMPLATES.items():
        answer = client.get(item_path(name, "a"))
        assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE"), name
        assert int(answer.headers["retry-after"]) > 0
        assert "select" not in answer.body.decode()
        (line,) = server.logs(event="dictionary_disabled", dictCode=name)
        assert line["level"] == "error" and told in line["error"] and "loadSql" in line["error"]
        assert position in line["error"], line["error"]
        assert metrics[f'dict_unavailable{{dict_code="{name}"}}'] == 1
    assert "apply.upsertSql" in server.logs(event="dictionary_disabled", dictCode="upsert")[0]["error"]
    health = client.get("/actuator/health")
    assert (health.status, health.json()["status"]) == (200, "UP")
    assert health.json()["components"]["dictionary:syntax"]["status"] == "DOWN"
    assert health.json()["components"]["dictionary:GOOD"]["status"] == "UP"
    assert refdata_db.value("select count(*) from t") == 1


def test_a_drift_check_that_postgresql_refuses_leaves_its_dictionary_alone(serve, refdata_db, token):
    """R18, R15: it only diagnoses. The log, health and metrics say so."""
    make_table(refdata_db, "t", {"a": "1"})
    checks = {"D": "select n from nowhere where :tenantId <> ''", "TWO": "select 1, 2"}
    server = serve(refdata_db, pod(*(sql_dictionary(code, "t", driftCheckSql=sql) for code, sql in checks.items())))
    client = server.client(token())
    for code in checks:
        assert client.get(item_path(code, "a")).status == 200
        (line,) = server.logs(event="drift_check_refused", dictCode=code)
        assert line["level"] == "error" and "driftCheckSql" in line["error"]
        metrics = server.metrics()
        assert metrics[f'dict_drift_check_refused{{dict_code="{code}"}}'] == 1
        assert metrics[f'dict_unavailable{{dict_code="{code}"}}'] == 0
        health = client.get("/actuator/health").json()["components"][f"dictionary:{code}"]
        assert health["status"] == "UP" and "driftCheckSql" in str(health)


def test_a_disabled_dictionary_comes_back_by_itself_once_its_table_is_there(serve, refdata_db, token):
    """R15: nobody has to restart anything after a late migration."""
    drifting = {"code": "DRIFTING", "driftCheckSql": "select count(*) from late where tenant_id = :tenantId",
                "loadSql": "select 'k' as k, to_jsonb(:tenantId) as v"}
    server = serve(refdata_db, pod(sql_dictionary("LATE"), drifting, cache={"preload": ["demo/LATE", "demo/DRIFTING"]}))
    client = server.client(token())
    assert client.get(item_path("LATE", "a")).code == "DICTIONARY_UNAVAILABLE"
    make_table(refdata_db, "late", {"a": "1"})
    eventually(lambda: client.get(item_path("LATE", "a")).status == 200)
    eventually(lambda: server.metrics()['dict_drift_check_refused{dict_code="DRIFTING"}'] == 0)
    eventually(lambda: server.metrics().get('dict_drift_value{tenant="demo",dict_code="DRIFTING"}') == 1)
    assert server.logs(event="dictionary_enabled", dictCode="LATE")
    assert server.metrics()['dict_unavailable{dict_code="LATE"}'] == 0
    assert client.get("/actuator/health").json()["components"]["dictionary:LATE"]["status"] == "UP"


def test_what_looks_like_a_parameter_and_is_none_is_left_alone(serve, refdata_db, token):
    """R15: casts, literals, dollar quotes and comments stay; every parameter is bound, as often as it stands."""
    sql = """
        select k, jsonb_build_object(
                 'cast', '12'::int,                     -- :comment ' "
                 'literal', ':tenantId ''quoted'' :no',
                 'escape', E'\\':tenantId',
                 'dollar', $$:tenantId '$$,
                 'tagged', $tag$ :tenantId $$ $tag$,
                 'slice', (array[1,2,3])[1:2],          /* :nested /* :deeper */ ' */
                 ':name', ":odd"::text,
                 'tenant', :tenantId::text || '/' || cast(:tenantId as text)) as v
        from (select 'k'::text as k, 'column' as ":odd" where :tenantId = :tenantId) s"""
    client = serve(refdata_db, pod({"code": "T", "loadSql": sql})).client(token())
    assert client.get(item_path("T", "k")).json()["payload"] == {
        "cast": 12, "literal": ":tenantId 'quoted' :no", "escape": "':tenantId", "dollar": ":tenantId '",
        "tagged": " :tenantId $$ ", "slice": [1, 2], ":name": "column", "tenant": "demo/demo"}


def test_names_and_keys_are_never_part_of_the_sql(serve, refdata_db, token):
    """R15, C6: an injection is looked up like any other text, and finds nothing."""
    make_table(refdata_db, "t", {"a": "1"})
    make_table(refdata_db, "t", {"secret": "2"}, tenant="other")
    server = serve(refdata_db, pod(sql_dictionary("T")))
    tries = ["a' or '1'='1", "'; drop table t; --", "a\\'; drop table t; --", "$1", ":tenantId", "{a,b}", "null", "%", "_"]
    client = server.client(token())
    for text in tries:
        assert client.get(item_path("T", text)).code == "ITEM_NOT_FOUND"
    for text in tries:
        # Most are no name of a tenant; one that is (null) is bound like any other and has nothing.
        for tenant in ["demo", quote(text, safe="")]:
            answer = server.client(token(text)).get(path("T", "/all", tenant))
            assert answer.status in (400, 401, 403) or answer.json()["items"] == []
    assert refdata_db.value("select count(*) from t") == 2


def test_a_dictionary_switched_off_is_unknown(serve, refdata_db, token):
    """R15: enabled: false is as if it were not there, broken SQL or not."""
    server = serve(refdata_db, pod({"code": "OFF", "enabled": False, "loadSql": "select k, v from nowhere",
                                    "shared": True}, "ON"))
    client = server.client(token())
    assert client.get(path("OFF", "/version")).code == "UNKNOWN_DICTIONARY"
    assert client.get(path("ON", "/version")).status == 200
    assert not server.logs(event="dictionary_disabled")


def test_schema_is_the_search_path_and_is_never_sql(serve, refdata_db, token):
    """R15: `schema` names where unqualified tables are looked for, also with a strange name."""
    refdata_db.query("""create schema "odd "" name"; create table "odd "" name".t (tenant_id text, k text, v jsonb);
                        insert into "odd "" name".t values ('demo', 'a', '"odd"');
                        create table t (tenant_id text, k text, v jsonb)""")
    changes = pod(sql_dictionary("T"))
    changes["refdata"]["postgres"] = {"schema": 'odd " name'}
    client = serve(refdata_db, changes).client(token())
    assert client.get(item_path("T", "a")).json()["payload"] == "odd"


def test_a_load_statement_cannot_write(serve, refdata_db, token):
    """R13: a load is read only, whatever its SQL calls."""
    refdata_db.query("create table log (x int); create function peek() returns int language sql as"
                     " 'insert into log values (1) returning x'")
    server = serve(refdata_db, pod({"code": "T", "loadSql": "select 'a' as k, to_jsonb(peek()) as v", "shared": True}))
    answer = server.client(token()).get(item_path("T", "a"))
    assert (answer.status, answer.code) == (503, "DICTIONARY_UNAVAILABLE")
    assert refdata_db.value("select count(*) from log") == 0


def test_a_slow_dictionary_does_not_hold_up_the_others(serve, refdata_db, token):
    """R13: loads run beside each other and beside reads."""
    write_builtin(refdata_db, "FAST", {"a": 1}, version=1)
    slow = {"code": "SLOW", "loadSql": "select 'a' as k, '1'::jsonb as v from pg_sleep(600)", "shared": True}
    server = serve(refdata_db, pod(slow, "FAST", cache={"firstReadTimeout": "1h"}, http={"stopTimeout": "0s"}))
    waiting = server.raw()
    waiting.send(f"GET {item_path('SLOW', 'a')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n".encode())
    eventually(lambda: refdata_db.value("select count(*) from pg_stat_activity where query like '%%pg_sleep(600)%%'"
                                        " and pid <> pg_backend_pid()"))
    client = server.client(token())
    assert client.get(item_path("FAST", "a")).status == 200
    write_builtin(refdata_db, "FAST", {"a": 2}, version=2)
    eventually(lambda: client.get(item_path("FAST", "a")).headers["x-dict-version"] == "2")
