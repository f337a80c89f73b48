"""C10, ADR 18: each release runs beside the one before it while a rollout lasts, and can be rolled back."""
import re
from pathlib import Path

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.refdata import pod, write_builtin
from lib.requests import CODE, SCOPE, SUBJECT
from lib.rolling import KeepAlive, Load
from lib.wire import Client

ROOT = Path(__file__).resolve().parent.parent.parent
MIGRATION = re.compile(r"sql/(\w+)/(\d{3})_\w+\.sql")
OLDEST = re.compile(r"^-- oldest program:\s*(\d{3})$", re.MULTILINE)
UPDATES = "/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000"


def numbered(files):
    """{(module, number): text}"""
    found = ((MIGRATION.fullmatch(name), text) for name, text in files.items())
    return {(match[1], int(match[2])): text for match, text in found if match}


def current_files():
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "sql").glob("*/*.sql")}


def test_c10_released_migrations_are_not_changed(previous_files):
    before, now = numbered(previous_files()), numbered(current_files())
    assert before
    changed = [key for key, text in before.items() if now.get(key) != text]
    assert not changed


def test_c10_no_migration_ends_the_release_before(previous_files):
    """A migration may demand a program that knows what the previous release knew, and nothing later."""
    before, now = numbered(previous_files()), numbered(current_files())
    known = {}
    for module, number in before:
        known[module] = max(number, known.get(module, 0))
    demands = {key: int(found[0]) for key, text in now.items() if (found := OLDEST.findall(text))}
    too_much = {key: oldest for key, oldest in demands.items() if oldest > known.get(key[0], oldest)}
    assert not too_much, "the program of the previous release would be refused while this one is rolled out"


def item_of(server, bearer, key, version):
    with Client(server.port, bearer) as client:
        answer = client.get(f"/v1/tenants/demo/dictionaries/{CODE}/items/{key}", X_Min_Version=str(version))
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json()["payload"]


def write(server, bearer, key, value):
    """The version that it made."""
    update = {"dictCode": CODE, "eventType": "DELTA", "items": [{"key": key, "op": "UPSERT", "payload": value}]}
    with Client(server.port, bearer) as client:
        answer = client.post(UPDATES, update)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json()["committedVersion"]


def test_c10_the_program_of_the_release_before_works_on_the_new_schema(serve, database, token, jwks_path, tmp_path,
                                                                        previous_program):
    """It migrates and serves; this release migrates under it; both serve side by side, under load; it is started again."""
    config, env = tmp_path / "migrate.yaml", {"FRESHET_TEST_PG_PASSWORD": database.password}
    config.write_text(to_yaml(merge(base_config(database, jwks_path), {"bus": {"migrate": "never"}})))
    done = run("migrate", "--config", config, env=env, program=previous_program)
    assert done.returncode == 0, done.stderr
    write_builtin(database, CODE, {"a": 1}, version=1)
    settings = pod(CODE, hydration={"wait_timeout_ms": 20000}, bus={"migrate": "never"})
    bearer = token(subject=SUBJECT, scope=SCOPE)
    before = serve.make(database, settings)
    before.program = previous_program
    before.start()

    def load(*servers):
        return Load([KeepAlive(lambda kind, port=server.port: port, bearer) for server in servers])

    with load(before) as running:
        done = run("migrate", "--config", config, env=env)
        assert done.returncode == 0, done.stderr
        assert run("migrate", "--config", config, "--status", env=env).returncode == 0
        running.goes_on()
    assert not running.failed()
    after = serve(database, settings)
    with load(before, after) as running:
        for value, (writer, reader) in enumerate([(before, after), (after, before)] * 5):
            assert item_of(reader, bearer, f"k{value}", write(writer, bearer, f"k{value}", value)) == value
        running.goes_on()
    assert not running.failed()
    before.stop()
    before.start()  # a rollback, or a process that a rollout has not reached yet
    with load(before, after) as running:
        running.goes_on()
    assert not running.failed()
    for server in (before, after):
        assert not server.logs(event="database_unavailable") and not server.logs(event="store_unavailable")
