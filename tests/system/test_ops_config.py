"""Issue 15, point 1: the configuration in force, without secrets."""
import json

from lib.ops import READ, get
from lib.refdata import pod, refdata_db  # noqa: F401
from lib.wait import eventually

SECRETS = ("s3cr3t-in-url", "s3cr3t-in-query", "s3cr3t-in-header", "s3cr3t-agent", "s3cr3t-in-path")


def shown(client):
    answer = client.get("/v1/ops/config")
    assert answer.status == 200, answer.body
    return answer, {row["name"]: row for row in answer.json()["settings"]}


def test_every_setting_is_shown_with_its_value_default_and_line(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE", http={"limits": {"requestTimeout": "31s"}}))
    with server.client(token("acme", scope=READ)) as client:
        answer, settings = shown(client)
    text = server.config_path.read_text().splitlines()
    timeout = settings["http.limits.requestTimeout"]
    assert timeout["value"] == "31s" and timeout["is_default"] is False
    assert text[timeout["line"] - 1].strip() == 'requestTimeout: "31s"'
    assert settings["http.workers"] == {"name": "http.workers", "value": 64, "default": "64", "is_default": True, "line": None,
                                        "reloadable": False}
    assert settings["refdata.dictionaries[0].code"]["value"] == "FEATURE"
    assert settings["refdata.dictionaries[0].code"]["reloadable"] is True
    assert settings["refdata.postgres[0].jdbcUrl"]["value"] == refdata_db.jdbc_url
    assert answer.json()["file"] == str(server.config_path) and answer.json()["is_whole"] is True and "refused" not in answer.json()


def test_no_secret_is_in_it_wherever_the_file_has_one(serve, refdata_db, token):
    url = refdata_db.url.replace("postgresql://", "postgres://")
    agents = [{"name": "far", "url": "http://user:s3cr3t-agent@127.0.0.1:1/s3cr3t-in-path?token=s3cr3t-in-query", "keywords": ["x"]}]
    changes = {
        "refdata": {"postgres": {"jdbcUrl": "${SECRET_URL}", "username": None, "passwordFromEnv": None, "schema": None}},
        "traces": {"endpoint": "http://u:s3cr3t-in-url@127.0.0.1:1/v1/traces", "headers": ["Authorization: s3cr3t-in-header"]},
        "chat": {"agents": agents},
    }
    server = serve(refdata_db, changes, env={"SECRET_URL": url + "?application_name=s3cr3t-in-query"})
    with server.client(token("acme", scope=READ)) as client:
        answer, settings = shown(client)
        text = answer.body.decode()
        for path in ("overview", "pods"):
            text += client.get("/v1/ops/" + path).body.decode()
    for secret in (*SECRETS, refdata_db.password):
        assert secret not in text, secret
    assert settings["refdata.postgres[0].jdbcUrl"]["value"] == f"postgres://***@127.0.0.1:{refdata_db.server.port}/{refdata_db.name}?***"
    assert settings["traces.headers"]["value"] == ["***"]
    assert settings["chat.agents[0].url"]["value"] == "http://***@127.0.0.1:1/***"


def test_a_reload_is_shown_and_one_that_is_refused_with_its_reason(serve, refdata_db, token):
    server = serve(refdata_db, pod("FEATURE"))
    with server.client(token("acme", scope=READ)) as client:
        before, good = shown(client)[0].json(), server.config_path.read_text()
        server.config_path.write_text(good.replace('"FEATURE"', '"FEATURE"\n      stray: 1'))
        server.sighup()
        refused = eventually(lambda: shown(client)[0].json().get("refused"))
        assert "stray" in refused["error"] and refused["at"] >= before["loaded_at"]
        server.config_path.write_text(good + '\nnats:\n  servers: "nats://u:hidden@127.0.0.1:4222"\n')
        server.sighup()
        refused = eventually(lambda: "nats" in (r := shown(client)[0].json()["refused"])["error"] and r)
        assert "nats://***@127.0.0.1:4222" in refused["error"] and "hidden" not in json.dumps(get(client, "overview"))
        assert any("configuration was refused" in problem["what"] for problem in get(client, "overview")["problems"])
        assert shown(client)[1]["refdata.dictionaries[0].code"]["value"] == "FEATURE"
        server.config_path.write_text(good.replace('"FEATURE"', '"OTHER"'))
        server.sighup()
        eventually(lambda: shown(client)[1]["refdata.dictionaries[0].code"]["value"] == "OTHER")
        after = shown(client)[0].json()
        assert "refused" not in after and after["loaded_at"] > before["loaded_at"]
