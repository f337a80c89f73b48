"""C10, ADR 18: `freshet migrate` prints what it would do; a schema that is too new for the program is refused, with the version needed."""
import re
import subprocess

import pytest

from lib.config import base_config, to_yaml
from lib.freshet import run
from lib.postgres import bin_dir
from lib.refdata import item_path, pod, refdata_db, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.wire import Client

MODULES = ["platform", "refdata", "intake", "chat", "entitlement", "notification", "hydration"]


@pytest.fixture
def migrate(jwks_path, tmp_path):
    """migrate(database, option …): the finished command."""
    def call(database, *options):
        config = tmp_path / "migrate.yaml"
        config.write_text(to_yaml(base_config(database, jwks_path)))
        return run("migrate", "--config", config, *options, env={"FRESHET_TEST_PG_PASSWORD": database.password})
    return call


def psql(database, script):
    """As an operator would: the first mistake ends it."""
    return subprocess.run([bin_dir() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database.url], input=script, text=True,
                          capture_output=True, check=True)


def states(done):
    """{module: (database, program, oldest program, verdict)} of --status."""
    line = re.compile(r"(\w+) on \S+: database (\d{3}), program (\d{3}), oldest program (\d{3}): (.*)")
    return {match[1]: match.groups()[1:] for match in map(line.fullmatch, done.stdout.splitlines()) if match}


def need(database, module, number, oldest):
    """What a later release would leave: a migration that this program does not know."""
    database.query("insert into platform.schema_migration (module, number, name, checksum, oldest_program, program)"
                   " values (%s, %s, 'later', 'x', %s, '9.8.7') on conflict (module, number)"
                   " do update set oldest_program = excluded.oldest_program", [module, number, oldest])


def test_c10_a_dry_run_prints_the_sql_and_changes_nothing(migrate, database):
    """What it prints is a script that does the same."""
    assert migrate(database, "--status").returncode == 3
    planned = migrate(database, "--dry-run")
    assert planned.returncode == 0 and "create table refdata.dictionary_meta" in planned.stdout
    assert database.value("select count(*) from pg_namespace where nspname = any(%s)", [MODULES]) == 0
    psql(database, planned.stdout)
    done = migrate(database)
    assert done.returncode == 0 and set(re.findall(r": (\d+) applied", done.stdout)) == {"0"}, done
    status = migrate(database, "--status")
    assert status.returncode == 0
    assert {name: state[3] for name, state in states(status).items()} == dict.fromkeys(MODULES, "up to date")
    again = migrate(database, "--dry-run")
    assert all(line.startswith("--") for line in again.stdout.splitlines()), again.stdout
    assert database.value("select count(*) from platform.schema_migration where program is null") == 0


@pytest.fixture
def two_databases(postgres):
    made = [postgres.create_database() for _ in range(2)]
    yield made
    for each in made:
        each.drop()


@pytest.mark.parametrize("option", ["--dry-run", "--grants"])
def test_c10_what_is_printed_for_several_databases_is_one_script_that_reaches_each(jwks_path, tmp_path, two_databases, option):
    """The SQL of all of them ran on the one that psql was given."""
    databases, role = two_databases, f"role_{two_databases[0].name}"
    config, env = base_config(databases[0], jwks_path), {"FRESHET_TEST_PG_PASSWORD": databases[0].password}
    config["refdata"]["postgres"] = [
        {"name": f"db{number}", "jdbcUrl": database.jdbc_url, "username": database.user,
         "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"} for number, database in enumerate(databases)]
    path = tmp_path / "several.yaml"
    path.write_text(to_yaml(config))
    first, second = databases
    first.query(f'create role "{role}"')
    if option == "--grants":
        assert run("migrate", "--config", path, env=env).returncode == 0
    printed = run("migrate", "--config", path, option, *([role] if option == "--grants" else []), env=env)
    assert printed.returncode == 0, printed.stderr
    psql(first, printed.stdout)
    assert run("migrate", "--config", path, "--status", env=env).returncode == 0
    for database, has_modules in ((first, True), (second, False)):
        assert (database.value("select count(*) from pg_namespace where nspname = 'chat'") == 1) == has_modules
        if option == "--grants":
            assert database.value("select has_schema_privilege(%s, 'refdata', 'usage')", [role])
            database.query(f'drop owned by "{role}"')
    first.query(f'drop role "{role}"')


def test_the_version_names_the_schema(refdata_db, migrate):
    """What `--version` says is what a database of this program has."""
    line = run("--version").stdout.splitlines()[-1]
    assert line.startswith("schema: ")
    said = dict(part.split(" ") for part in line.removeprefix("schema: ").split(", "))
    known = refdata_db.query("select module, max(number)::text from platform.schema_migration group by module")
    assert said == dict(known)
    assert {name: str(int(state[1])) for name, state in states(migrate(refdata_db, "--status")).items()} == said


@pytest.mark.parametrize("options", [["--dry-run", "--status"], ["--grants", "r", "--dry-run"], ["--grants", ""], ["--grants"]])
def test_wrong_calls(options):
    assert run("migrate", *options).returncode == 2


def test_c10_a_program_works_with_the_schema_of_the_next_release(serve, refdata_db, token, migrate):
    """And is refused when that says so: at its start, with what is needed; while it runs, it stops."""
    write_builtin(refdata_db, "D", {"a": 1}, version=1)
    need(refdata_db, "refdata", 900, 0)
    need(refdata_db, "refdata", 901, 3)  # this program knows it
    assert migrate(refdata_db).returncode == 0
    status = migrate(refdata_db, "--status")
    assert status.returncode == 0 and states(status)["refdata"][3] == "newer than this program, which works with it"
    server = serve(refdata_db, pod("D"))
    assert server.client(token()).get(item_path("D", "a")).status == 200

    need(refdata_db, "refdata", 902, 901)
    known = states(migrate(refdata_db, "--status"))["refdata"][1]
    wanted = ("the schema refdata of the database is too new for this program: migration 902, applied by freshet 9.8.7, needs a"
              f" program that knows migration 901, and this one, freshet {run('--version').stdout.split()[1]}, ends with"
              f" {known}: run freshet 9.8.7 or later")
    for option in ([], ["--dry-run"]):
        done = migrate(refdata_db, *option)
        assert done.returncode == 1 and wanted in done.stderr
    status = migrate(refdata_db, "--status")
    assert status.returncode == 1 and states(status)["refdata"][3] == "too new for this program"
    assert server.process.wait(60) == 1
    assert wanted in server.logs(event="schema_too_new")[0]["error"]
    assert server.logs(event="stopped")

    server.start(ready=False)
    eventually(lambda: server.logs(event="serving")[1:])
    eventually(lambda: any(wanted in line["error"] for line in server.logs(event="database_unavailable")))
    with Client(server.port) as client:
        assert client.get("/actuator/health/liveness").status == 200
        assert client.get("/actuator/health").json()["components"]["postgres:main"]["status"] == "DOWN"
