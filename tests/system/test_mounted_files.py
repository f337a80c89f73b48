"""P2, R15: a ConfigMap and Secrets as Kubernetes mounts them: a change of either is used without a restart."""
import secrets

import pytest

from lib.config import base_config, merge, to_yaml
from lib.freshet import run
from lib.mounted import Mount
from lib.refdata import item_path, make_table, pod, refdata_db, sql_dictionary, write_builtin  # noqa: F401
from lib.wait import eventually


@pytest.fixture
def login(refdata_db):
    """A role with a password of its own: (name, set the password and end its sessions)."""
    name = "app_" + secrets.token_hex(4)

    def rotate(password):
        refdata_db.query(f"alter role {name} password '{password}'")
        refdata_db.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name])

    refdata_db.query(f"create role {name} superuser login password 'first'")
    yield name, rotate
    refdata_db.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name])
    refdata_db.query(f"reassign owned by {name} to {refdata_db.user}; drop owned by {name}; drop role {name}")


def test_a_swapped_configmap_is_reloaded_without_dropping_a_request(serve, refdata_db, token, jwks_path, tmp_path):
    """R15: a new dictionary, and then a bad file, which is refused whole, by swaps of ..data."""
    make_table(refdata_db, "one", {"a": '"first"'})
    write_builtin(refdata_db, "STAYS", {"a": 1}, version=1)

    def text(*dictionaries):
        return to_yaml(merge(base_config(refdata_db, jwks_path), pod(*dictionaries)))

    server = serve.make(refdata_db)
    mount = Mount(tmp_path / "etc", {"freshet.yaml": text("STAYS")})
    server.config_path = mount / "freshet.yaml"
    server.start()
    client = server.client(token())
    assert client.get(item_path("STAYS", "a")).status == 200
    assert client.get(item_path("NEW", "a")).code == "UNKNOWN_DICTIONARY"
    mount.swap({"freshet.yaml": text("STAYS", sql_dictionary("NEW", "one"))})
    eventually(lambda: client.get(item_path("NEW", "a")).status == 200)
    assert len(server.logs(event="config_reloaded")) == 1
    mount.swap({"freshet.yaml": text("STAYS").replace("dictionaries:", "dictionareis:")})
    eventually(lambda: server.logs(event="config_refused"))
    assert client.get(item_path("NEW", "a")).status == 200
    mount.swap({"freshet.yaml": text("STAYS")})
    eventually(lambda: client.get(item_path("NEW", "a")).code == "UNKNOWN_DICTIONARY")
    assert client.get(item_path("STAYS", "a")).status == 200


def test_a_rotated_password_is_used_by_the_next_connection(login, serve, refdata_db, token, tmp_path):
    """P2: passwordFile is read at each login. Sessions end while the new password is in the database but not yet in the file; when
    the Secret's swap follows, writes work again, in the same process."""
    name, rotate = login
    mount = Mount(tmp_path / "secrets", {"password": "first\n"})
    changes = pod("D")
    changes["refdata"]["postgres"] = {"username": name, "passwordFromEnv": None, "passwordFile": str(mount / "password")}
    server = serve(refdata_db, changes)
    client = server.client(token())

    def put(value):
        return client.post("/v1/tenants/demo/updates?consistencyMode=WAIT_COMMIT&timeoutMs=1000", {
            "dictCode": "D", "eventType": "DELTA", "items": [{"key": "a", "op": "UPSERT", "payload": value}]}).status

    eventually(lambda: put(1) == 200)
    rotate("second")
    eventually(lambda: put(2) == 503)
    mount.swap({"password": "second\n"})
    eventually(lambda: put(3) == 200)
    eventually(lambda: client.get(item_path("D", "a")).json()["payload"] == 3)
    assert "second" not in server.log()


@pytest.mark.parametrize("block, field", [
    ("postgres: {jdbcUrl: 'postgresql://h/db', passwordFile: %s}", "postgres.passwordFile"),
    ("refdata: {postgres: {jdbcUrl: 'postgresql://h/db', passwordFile: %s}}", "refdata.postgres.passwordFile"),
    ("bus: {commands: kafka}\nkafka: {brokers: ['h:1'], sasl: {username: u, passwordFile: %s}}", "kafka.sasl.passwordFile"),
    ("bus: {invalidations: redis}\nredis: {nodes: ['h:1'], passwordFile: %s}", "redis.passwordFile"),
    ("bus: {events: nats}\nnats: {servers: ['nats://h:1'], passwordFile: %s}\n"
     "entitlement: {nats: {subject: s, stream: S}}", "nats.passwordFile"),
])
def test_a_password_file_that_cannot_be_used_is_named_with_its_place(tmp_path, jwks_path, block, field):
    """P2, C6: missing, empty, or beside passwordFromEnv; a good one is accepted."""
    config, secret = tmp_path / "freshet.yaml", tmp_path / "password"
    store = "" if "postgres:" in block else "postgres: {jdbcUrl: 'postgresql://h/db'}\n"

    def check(text):
        config.write_text(f"auth: {{jwksFile: {jwks_path}}}\n{store}{text}\n")
        return run("config", "--config", config)

    missing = check(block % secret)
    assert missing.returncode == 1 and f"{field}: the secret in {secret} cannot be read" in missing.stderr
    secret.write_text("\n")
    assert "it is empty" in check(block % secret).stderr
    secret.write_text("sesame\n")
    good = check(block % secret)
    assert good.returncode == 0, good.stderr
    both = check(block % f"{secret}, passwordFromEnv: HOME")
    assert both.returncode == 1 and f"{field}: passwordFromEnv is set too" in both.stderr
