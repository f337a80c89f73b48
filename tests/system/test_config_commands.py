"""The command line: help, wrong calls, tokens, routes, migrations."""
import json
import re
import subprocess

import jwt
import pytest

from lib.config import base_config, to_yaml
from lib.freshet import binary, run
from lib.wait import eventually

COMMANDS = ["serve", "migrate", "token", "config", "routes", "get", "verify"]


def test_help_lists_every_command():
    for args in [["--help"], ["-h"], ["help"]]:
        done = run(*args)
        assert done.returncode == 0 and done.stderr == ""
        assert all(re.search(rf"^  {command} ", done.stdout, re.M) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_refuses_what_it_does_not_know(command):
    done = run(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: freshet {command}")
    assert run("help", command).stdout == done.stdout
    for wrong in [["--nonsense"], ["--nonsense=1"], ["stray"], ["-x"], ["--help=1"]]:
        done = run(command, *wrong)
        assert done.returncode == 2, wrong
        assert wrong[0].split("=", maxsplit=1)[0] in done.stderr and done.stdout == ""


@pytest.mark.parametrize("args", [[], ["sreve"], ["--nonsense"], ["serve", "--config"], ["serve", "--listen"],
                                  ["token"], ["token", "--tenant", ""], ["token", "--tenant", "a b"],
                                  ["token", "--tenant", "a", "--ttl", "0"], ["token", "--tenant", "a", "--ttl", "-1h"],
                                  ["token", "--tenant", "a", "--ttl", "1w"],
                                  ["token", "--tenant", "a", "--ttl", "9999999999999999999d"],
                                  ["config", "--describe=yes"]])
def test_a_wrong_call_is_exit_2_and_says_so_on_standard_error(args):
    done = run(*args)
    assert done.returncode == 2
    assert done.stderr and done.stdout == ""


def test_version_is_printed():
    """C10: and the commit, the build, and the migrations that it needs."""
    printed = run("--version").stdout
    assert re.fullmatch(r"freshet \d+\.\d+\.\d+\ncommit: \S+ \(\S+\)\nbuild: .+\nschema: platform \d+, .+\n", printed)


def test_an_unknown_role_names_those_there_are(tmp_path):
    """C1."""
    done = run("serve", "--roles", "query,queyr")
    assert done.returncode == 2 and "queyr" in done.stderr and "query" in done.stderr.replace("queyr", "")


def test_token_prints_a_token_and_nothing_else(tmp_path):
    """C5: TOKEN=$(freshet token …) works, and the public key is where servers look."""
    env = {"FRESHET_VAR": str(tmp_path)}
    first = run("token", "--tenant", "acme", "--subject", "bob", "--scope", "a b", "--ttl", "90s", env=env)
    assert first.returncode == 0 and first.stderr == ""
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+\n", first.stdout)
    jwks = json.loads((tmp_path / "keys/jwks.json").read_text())
    (jwk,) = jwks["keys"]
    assert "d" not in jwk and "k" not in jwk
    read = jwt.decode(first.stdout.strip(), jwt.PyJWK(jwk).key, [jwk.get("alg", "EdDSA")])
    assert (read["tenant_id"], read["sub"], read["scope"]) == ("acme", "bob", "a b")
    assert read["exp"] - read["iat"] == 90
    again = run("token", "--tenant", "acme", env=env)
    assert json.loads((tmp_path / "keys/jwks.json").read_text()) == jwks
    jwt.decode(again.stdout.strip(), jwt.PyJWK(jwk).key, [jwk.get("alg", "EdDSA")])
    assert (tmp_path / "keys/dev-key.json").stat().st_mode & 0o077 == 0


def test_tokens_made_side_by_side_share_one_key(tmp_path):
    """C5: the first that comes makes it, the others use it."""
    env = {"FRESHET_VAR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    running = [subprocess.Popen([binary(), "token", "--tenant", "acme"], env=env, text=True, stdout=subprocess.PIPE)
               for _ in range(8)]
    made = [process.communicate()[0].strip() for process in running]
    assert {process.returncode for process in running} == {0}
    keys = {jwk["kid"]: jwk for jwk in json.loads((tmp_path / "keys/jwks.json").read_text())["keys"]}
    for text in made:
        jwk = keys[jwt.get_unverified_header(text)["kid"]]
        jwt.decode(text, jwt.PyJWK(jwk).key, [jwk.get("alg", "EdDSA")])


def test_settings_are_described_and_the_page_is_made_of_the_same_rows():
    """DESIGN: a row prints help and docs."""
    described, page = run("config", "--describe"), run("config", "--markdown")
    assert described.returncode == page.returncode == 0
    for text in ["http", "headerTimeout", "jwksFile", "sweepInterval", "loadSql", "snapshotReplaceSql", "passwordFromEnv"]:
        assert text in described.stdout and text in page.stdout


def test_routes_are_listed_and_no_other_answers(database, tmp_path, jwks_path, serve):
    """The table that is served is the table that is printed."""
    config = tmp_path / "routes.yaml"
    config.write_text(to_yaml(base_config(database, jwks_path)))
    done = run("routes", "--config", config)
    routes = [line.split() for line in done.stdout.splitlines()]
    assert ["GET", "/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}", "token"] in routes
    assert ["GET", "/actuator/prometheus", "public"] in routes
    server = serve(database)
    with server.client() as client:
        for method, path, needs in routes:
            status = client.request(method, re.sub(r"\{\w+\}", "x", path.replace("{file}", "app.js"))).status
            assert status == (200 if needs == "public" else 401), (method, path)
        assert client.get("/v1/tenants/x/dictionaries/x/nothing").code == "NOT_FOUND"


def test_routes_are_listed_with_the_scope_or_user_that_they_need(serve, database, token):
    """AUTH.md: what a route needs is shown, and a token without it is 403 INSUFFICIENT_SCOPE."""
    routes = [line.split() for line in run("routes").stdout.splitlines()]
    assert ["POST", "/v1/entitlements/grants", "entitlement:write"] in routes
    assert ["GET", "/my/projects/{project_id}/events", "user"] in routes
    server = serve(database)
    plain = token("demo", subject=None)
    with server.client() as client:
        for method, path in [(method, path) for method, path, needs in routes if needs not in ("public", "token")]:
            answer = client.request(method, re.sub(r"\{\w+\}", "x", path), headers={"Authorization": f"Bearer {plain}"})
            assert answer.status == 403 and b"INSUFFICIENT_SCOPE" in answer.body, (method, path, answer.body)


# ---- migrations (C10) ----

@pytest.fixture
def migrate(database, tmp_path, jwks_path):
    config = tmp_path / "migrate.yaml"
    config.write_text(to_yaml(base_config(database, jwks_path)))
    env = {"FRESHET_TEST_PG_PASSWORD": database.password}
    return ["migrate", "--config", str(config)], env


def applied(database):
    return database.query("select * from platform.schema_migration order by 1, 2")


def test_migrating_twice_changes_nothing_the_second_time(database, migrate):
    """C10, R19: schemas of its own, the seed's tables and columns."""
    args, env = migrate
    assert run(*args, env=env).returncode == 0
    first = applied(database)
    again = run(*args, env=env)
    assert again.returncode == 0 and "0 applied" in again.stdout
    assert applied(database) == first and first
    columns = dict(database.query("select table_name, array_agg(column_name::text) from information_schema.columns"
                                  " where table_schema = 'refdata' group by table_name"))
    assert {"tenant_id", "dict_code", "version", "last_source_revision", "updated_at"} <= set(columns["dictionary_meta"])
    assert {"tenant_id", "dict_code", "item_key", "payload", "deleted", "updated_at"} <= set(columns["dictionary_item"])
    assert database.value("select count(*) from information_schema.tables where table_schema = 'public'") == 0


def test_eight_migrations_side_by_side_are_one(database, migrate):
    """C10: safe side by side."""
    args, env = migrate
    running = [subprocess.Popen([binary(), *args], env={**env, "PATH": "/usr/bin:/bin"}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    told = [process.communicate() for process in running]
    assert {process.returncode for process in running} == {0}, told
    lines = [line for out, _ in told for line in out.splitlines() if " 0 applied" not in line]
    assert sorted(line.split()[0] for line in lines) == ["chat", "entitlement", "hydration", "intake",
                                                              "notification", "platform", "refdata"]
    assert len(applied(database)) == len(set(applied(database)))


def test_a_migration_of_a_dead_database_is_exit_1_and_tells_no_secret(database, migrate, tmp_path):
    """C10, C9."""
    args, env = migrate
    config = tmp_path / "dead.yaml"
    config.write_text((tmp_path / "migrate.yaml").read_text().replace(f":{database.server.port}/", ":1/"))
    done = run("migrate", "--config", config, env=env)
    assert done.returncode == 1 and "127.0.0.1" in done.stderr
    assert database.password not in done.stdout + done.stderr


def test_serving_with_migrations_off_waits_for_them(serve, database, token, migrate):
    """C10: `bus.migrate: never` only checks; it is ready once somebody migrated."""
    server = serve.make(database, {"bus": {"migrate": "never"}, "refdata": {"cache": {"sweepInterval": "50ms"}}})
    server.start(ready=False)
    eventually(lambda: server.logs(event="database_unavailable"))
    assert not server.is_ready()
    assert "freshet migrate" in server.logs(event="database_unavailable")[0]["error"]
    args, env = migrate
    assert run(*args, env=env).returncode == 0
    eventually(server.is_ready)
