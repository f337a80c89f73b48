"""Issue 2 "Bad input": a bad configuration names file, line, column and field, and exits 1 before listening."""
import os
import re
import socket

import pytest

from lib.freshet import run
from lib.wait import free_port

GOOD = """\
auth:
  jwksFile: {jwks}
refdata:
  postgres:
    jdbcUrl: jdbc:postgresql://127.0.0.1:1/none
  cache:
    preload: ["demo/A"]
  dictionaries:
    - code: A
      loadSql: |
        select k, v
        from t
        where tenant_id = :tenantId
    - code: B
"""

# name → (what to replace, by what, line, column or None, field, told)
MISTAKES = {
    "an unknown section": ("auth:", "atuh: {}\nauth:", 1, 1, "atuh", "auth"),
    "an address without a port": ("auth:", "http: {listen: localhost}\nauth:", 1, 16, "http.listen", "PORT"),
    "a port that cannot be": ("auth:", 'http: {listen: "127.0.0.1:99999"}\nauth:', 1, 16, "http.listen", "PORT"),
    "nowhere to listen": ("auth:", "http: {listen: []}\nauth:", 1, 16, "http.listen", "1 to"),
    "no database": ("    jdbcUrl: jdbc:postgresql://127.0.0.1:1/none", "    []", 5, 5, "refdata.postgres", "1 to"),
    "an unknown key": ("  cache:", "  cahce:", 6, 3, "refdata.cahce", "cache"),
    "an unknown key of a dictionary": ("    - code: B", "    - code: B\n      loadSQL: x", 15, 7,
                                       "refdata.dictionaries[1].loadSQL", "loadSql"),
    "a key twice": ("  cache:", "  cache: {}\n  cache:", 7, 3, "refdata.cache", ""),
    "a number for a list": ("  dictionaries:", "  dictionaries: 5\n  x:", 8, 17, "refdata.dictionaries", ""),
    "a word for a number": ("  cache:", "  consistency: {waitCommitTimeoutMs: soon}\n  cache:", 6, 38,
                            "refdata.consistency.waitCommitTimeoutMs", "soon"),
    "a number out of bounds": ("  cache:", "  consistency: {waitCommitTimeoutMs: 49}\n  cache:", 6, 38,
                               "refdata.consistency.waitCommitTimeoutMs", "50"),
    "a word for a bool": ("    - code: B", "    - code: B\n      enabled: yes", 15, 16,
                          "refdata.dictionaries[1].enabled", "true"),
    "a duration without a unit we know": ("    preload:", "    sweepInterval: 1 fortnight\n    preload:", 7, 20,
                                          "refdata.cache.sweepInterval", "fortnight"),
    "a missing key": ("    jdbcUrl: jdbc:postgresql://127.0.0.1:1/none", "    schema: x", 5, None,
                      "refdata.postgres.jdbcUrl", ""),
    "a missing code": ("    - code: B", "    - enabled: true", 14, None, "refdata.dictionaries[1].code", ""),
    "the same code twice": ("    - code: B", "    - code: A", 14, 13, "refdata.dictionaries[1].code", "A"),
    "a code that is no name": ("    - code: B", '    - code: "a b"', 14, 13, "refdata.dictionaries[1].code", ""),
    "an empty code": ("    - code: B", '    - code: ""', 14, 13, "refdata.dictionaries[1].code", ""),
    "an enum of our own": ("    - code: B", "    - code: B\n      reloadOnEvent: SOMETIMES", 15, 22,
                           "refdata.dictionaries[1].reloadOnEvent", "FULL"),
    "kafka without brokers": ("auth:", "bus: {commands: kafka}\nauth:", 1, 17, "kafka.brokers", "brokers"),
    "redis without nodes": ("auth:", "bus: {invalidations: redis}\nauth:", 1, 22, "redis.nodes", "nodes"),
    "nats without servers": ("auth:", "bus: {events: nats}\nauth:", 1, 15, "nats.servers", "servers"),
    "an engine for something else": ("auth:", "bus: {commands: redis}\nauth:", 1, 17, "bus.commands", "kafka"),
    "a broker without a port": ("auth:", "kafka: {brokers: [kafka-0]}\nauth:", 1, 18, "kafka.brokers", "HOST:PORT"),
    "a broker with a port that cannot be": ("auth:", 'kafka: {brokers: ["kafka-0:99999"]}\nauth:', 1, 18,
                                            "kafka.brokers", "HOST:PORT"),
    "a node that is none": ("auth:", "redis: {nodes: ['redis-0:6379', ':6379']}\nauth:", 1, 16, "redis.nodes",
                            "HOST:PORT"),
    "a node of refdata's that is none": ("  cache:", "  redis: {nodes: ['a b:1']}\n  cache:", 6, 18,
                                         "refdata.redis.nodes", "HOST:PORT"),
    "a NATS server without a scheme": ("auth:", "nats: {servers: 'nats-0:4222'}\nauth:", 1, 17, "nats.servers",
                                       "nats://"),
    "another key of commands": ("  cache:", '  kafka: {keyTemplate: "{dictCode}"}\n  cache:', 6, 24,
                                "refdata.kafka.keyTemplate", "order"),
    "a topic that is no name": ("  cache:", '  kafka: {commandsTopic: "a/b"}\n  cache:', 6, 26,
                                "refdata.kafka.commandsTopic", "A-Za-z"),
    "a group that is no name": ("  cache:", '  redis: {consumerGroup: "a:b"}\n  cache:', 6, 26,
                                "refdata.redis.consumerGroup", "A-Za-z"),
    "a pod that is no name": ("  cache:", '  podId: "a:b"\n  cache:', 6, 10, "refdata.podId", "A-Za-z"),
    "a certificate without its key": ("auth:", "kafka: {tls: {certificateFile: x}}\nauth:", 1, 32,
                                      "kafka.tls.keyFile", "together"),
    "a certificate that is not there": ("auth:", "bus: {commands: kafka}\nkafka: {brokers: 'k:1', tls: {enabled: true, "
                                        "caFile: /nowhere}}\nauth:", 2, 54, "kafka.tls.caFile", "/nowhere"),
    "a password that is not there": ("auth:", "bus: {events: nats}\nnats: {servers: 'nats://n:1', "
                                     "passwordFromEnv: NO_SUCH}\nauth:", 2, 48, "nats.passwordFromEnv", "NO_SUCH"),
    "an unknown parameter": ("tenant_id = :tenantId", "tenant_id = :tenant", 13, 27,
                             "refdata.dictionaries[0].loadSql", "tenant"),
    "a parameter that has no value there": ("tenant_id = :tenantId", "tenant_id = :key", 13, 27,
                                            "refdata.dictionaries[0].loadSql", "key"),
    "rows of every tenant": ("tenant_id = :tenantId", "true", 11, None,
                             "refdata.dictionaries[0].loadSql", "shared: true"),
    "a tenant in a comment": ("tenant_id = :tenantId", "true -- :tenantId", 11, None,
                              "refdata.dictionaries[0].loadSql", "shared: true"),
    "a tenant in a string": ("tenant_id = :tenantId", "k <> ':tenantId'", 11, None,
                             "refdata.dictionaries[0].loadSql", "shared: true"),
    "keys of every tenant": ("    - code: B", "      loadKeysSql: select k, v from t where k = any(:keys)\n    - code: B",
                             14, 20, "refdata.dictionaries[0].loadKeysSql", "shared: true"),
    "a built-in table for all": ("    - code: B", "    - code: B\n      shared: true", 15, 15,
                                 "refdata.dictionaries[1].shared", "built-in"),
    "no database at all": ("  postgres:\n    jdbcUrl: jdbc:postgresql://127.0.0.1:1/none\n", "", None, None,
                           "refdata.postgres", "is missing"),
    "two statements": ("        from t\n", "        from t; drop table t\n", 12, None,
                       "refdata.dictionaries[0].loadSql", ""),
    "an open quote": ("        from t\n", "        from 't\n", 12, 14, "refdata.dictionaries[0].loadSql", ""),
    "templates for the built-in table": ("    - code: B",
                                         "    - code: B\n      apply:\n        deleteSql: delete from t", 16, 20,
                                         "refdata.dictionaries[1].apply.deleteSql", "loadSql"),
    "half a pair": ("    - code: B", "      apply:\n        snapshotStageSql: select 1\n    - code: B", 15, 27,
                    "refdata.dictionaries[0].apply.snapshotStageSql", "snapshotFinalizeSql"),
    "delta without keys": ("    - code: B", "      reloadOnEvent: DELTA\n    - code: B", 9, None,
                           "refdata.dictionaries[0].reloadOnEvent", "loadKeysSql"),
    "a preload of nobody": ("demo/A", "demo/C", 7, None, "refdata.cache.preload", "demo/C"),
    "a preload without a tenant": ("demo/A", "A", 7, None, "refdata.cache.preload", "A"),
    "a database that is none": ("jdbc:postgresql:", "jdbc:mysql:", 5, 14, "refdata.postgres.jdbcUrl", ""),
    "a postgres block nobody defined": ("    - code: B", "    - code: B\n      postgres: other", 15, 17,
                                        "refdata.dictionaries[1].postgres", "other"),
    "an environment variable that is not there": ("127.0.0.1:1/none", "${FRESHET_NOT_THERE}", 5, None,
                                                  "refdata.postgres.jdbcUrl", "FRESHET_NOT_THERE"),
    "tabs": ("  cache:", "\tcache:", 6, 1, "", ""),
    "yaml that does not end": ('["demo/A"]', '["demo/A"', 8, None, "", ""),
}


@pytest.fixture
def config(tmp_path, jwks_path):
    """config(text) writes the file; gives its path."""

    def write(text):
        path = tmp_path / "bad.yaml"
        path.write_text(text.replace("{jwks}", str(jwks_path)), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_file_line_column_and_field_before_listening(config, mistake):
    """Issue 2, R15."""
    old, new, line, column, field, told = MISTAKES[mistake]
    assert old in GOOD
    path = config(GOOD.replace(old, new, 1))
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):  # taken: had it got as far as listening, it would say so
        done = run("serve", "--config", path, "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert "in use" not in done.stderr and "EADDRINUSE" not in done.stderr
    if line:
        place = f"{line}:{column}" if column else rf"{line}:\d+"
        assert re.search(rf"bad\.yaml:{place}: {re.escape(field)}", done.stderr), done.stderr
    assert field in done.stderr and told in done.stderr, done.stderr
    checked = run("config", "--config", path)
    assert checked.returncode == 1 and field in checked.stderr


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "42\n"])
def test_a_file_that_is_no_mapping_is_refused_at_its_beginning(config, text):
    """Issue 2."""
    done = run("config", "--config", config(text))
    assert done.returncode == 1 and "bad.yaml:1:1: " in done.stderr


def test_authentication_is_switched_off_on_loopback_only(config):
    """C5: in the file, and on the command line."""
    text = GOOD.replace("auth:", 'http: {listen: ["127.0.0.1:0", "0.0.0.0:0"]}\nauth:\n  enabled: false')
    for command in ["config", "serve"]:
        done = run(command, "--config", config(text))
        assert done.returncode == 1
        assert re.search(r"bad\.yaml:1:\d+: http\.listen: .*loopback", done.stderr), done.stderr
    done = run("serve", "--config", config(GOOD.replace("auth:", "auth:\n  enabled: false")), "--listen", "0.0.0.0:0")
    assert done.returncode == 1 and "loopback" in done.stderr


@pytest.mark.parametrize("setting", ["algorithms: [none]", "mtls: {peers: [nobody]}", 'jwksUrl: "ftp://keys"',
                                     "hs256SecretFromEnv: FRESHET_NOT_THERE"])
def test_settings_of_authentication_that_mean_nothing_stop_the_start(config, setting):
    """C5: nothing is accepted that would be ignored later."""
    file = config(GOOD.replace("auth:", f"auth:\n  {setting}"))
    for command in (["serve", "--listen", "127.0.0.1:0"], ["config"]):
        done = run(*command, "--config", file)
        place = re.search(r"bad\.yaml:(\d+):\d+: (auth\.\w+)", done.stderr)
        assert done.returncode == 1 and place, done.stderr
        assert place[2] == "auth." + setting.split(":", maxsplit=1)[0]
        assert file.read_text().splitlines()[int(place[1]) - 1].strip() == setting


def test_several_mistakes_are_told_at_once(config):
    """Issue 2: a list to work through, not one round per mistake."""
    done = run("config", "--config", config("htpp: 1\nlog: {level: loud}\nhttp: {loops: -1}\nrefdata: {cahce: 1}\n"))
    for field in ["htpp", "log.level", "http.loops", "refdata.cahce"]:
        assert field in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("path, told", [("/nonexistent/freshet.yaml", "No such file"), ("/", "directory")])
def test_a_file_that_cannot_be_read_is_named(path, told):
    """Issue 2."""
    done = run("serve", "--config", path)
    assert done.returncode == 1
    assert path in done.stderr and told in done.stderr


def test_a_good_file_is_ok_without_any_server(config):
    """`freshet config` needs no PostgreSQL."""
    path = config(GOOD)
    done = run("config", "--config", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: ok\n", "")


def test_the_environment_fills_in_and_defaults_stand_in(config):
    """DESIGN: ${NAME} and ${NAME:default}."""
    path = config(GOOD.replace("127.0.0.1:1/none", "${FRESHET_T_HOST:127.0.0.1}:${FRESHET_T_PORT}/none"))
    assert run("config", "--config", path, env={"FRESHET_T_PORT": "1"}).returncode == 0
    wrong = run("config", "--config", path, env={"FRESHET_T_PORT": "x"})
    assert wrong.returncode == 1 and "bad.yaml:5:14: refdata.postgres.jdbcUrl" in wrong.stderr


def test_a_secret_in_a_url_is_never_told(config):
    """C9: a password stands in no message."""
    path = config(GOOD.replace("jdbc:postgresql://127.0.0.1:1/none",
                               "postgresql://u:hunter2secret@127.0.0.1:99999/none"))
    done = run("serve", "--config", path)
    assert done.returncode == 1 and "hunter2secret" not in done.stderr + done.stdout


def test_a_taken_port_is_exit_1_with_the_address(config):
    """Issue 2: what only starting finds out is told as clearly, and nothing hangs."""
    path = config(GOOD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", "--config", path, "--listen", address)
    assert done.returncode == 1 and address in done.stderr


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", ":80x", "[::1:80"])
def test_a_bad_address_is_a_wrong_call(config, listen):
    """Issue 2."""
    done = run("serve", "--config", config(GOOD), "--listen", listen)
    assert done.returncode == 2 and listen in done.stderr


def test_a_bad_jwks_file_at_the_start_is_no_reason_to_stop(config, tmp_path):
    """C5, C8: keys may come later; `config` checks what the file alone can tell."""
    done = run("config", "--config", config(GOOD.replace("{jwks}", str(tmp_path / "not-there.json"))))
    assert done.returncode == 0, done.stderr


def test_the_default_configuration_is_good(root):
    """config/freshet.yaml as it is shipped."""
    env = {"FRESHET_PG_URL": "postgresql://127.0.0.1:1/none"}
    done = run("config", "--config", root / "config/freshet.yaml", env=env)
    assert done.returncode == 0, done.stderr
    assert os.environ.get("FRESHET_PG_URL") or run("config", "--config", root / "config/freshet.yaml").returncode == 1
