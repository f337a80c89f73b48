"""`freshet updates`: an update that stays PENDING is found by one command, without a server, and another one says what will decide it
(issue 15, point 3)."""
import json
import re

import pytest

from lib.config import merge
from lib.freshet import run
from lib.refdata import TENANT, migrated, pod, refdata_db  # noqa: F401
from lib.wait import eventually, free_port
from lib.writers import chunks, commit, delta, status_path, updates_path

UNAPPLIED = "no process runs the role apply: it stays PENDING until one does (freshet serve --roles apply)"
COMMAND, APPLY = ("--roles", "command"), ("--roles", "apply")


def settings(*codes, **updates):
    changes = pod(*(codes or ("A", "B")))
    changes["refdata"]["updates"] = updates
    return changes


@pytest.fixture
def accept(serve, refdata_db, token):  # noqa: F811
    """accept(body…) posts to a process that only accepts; accept.updates(*args) is the command, with its configuration."""
    server = serve(refdata_db, settings(), args=COMMAND)

    def post(*bodies, tenant=TENANT):
        for body in bodies:
            assert server.client(token(tenant)).post(updates_path("ASYNC", tenant), body).status == 202
        return [body["eventId"] for body in bodies]

    def updates(*args):
        return run("updates", *args, "--config", server.config_path, env=server.env)
    post.server, post.updates, post.client = server, updates, server.client(token(TENANT))
    return post


def listed(done):
    return [line.split()[1] for line in done.stdout.splitlines()]


def carrier(done):
    """The lines about carriers, without their label."""
    found = done.stdout.split("\ncarrier", 1)
    return [line.strip() for line in found[1].splitlines()] if len(found) > 1 else []


def test_a_pending_update_is_found_and_its_message_named_without_a_server(accept, serve, refdata_db):  # noqa: F811
    first, second, other = accept(delta("A", {"k": 1}), delta("A", {"k": 2}), delta("B", {"k": 3}))
    accept.server.stop()
    done = accept.updates("list", "--status", "PENDING")
    assert done.returncode == 0 and listed(done) == [other, second, first]
    assert re.fullmatch(r"\S+Z \S+ PENDING demo/A database=main age=\d+s by=\S+ source=REST", done.stdout.splitlines()[1])
    assert "freshet updates show EVENT_ID" in done.stderr
    done = accept.updates("show", second)
    assert done.returncode == 0 and f"event_id           {second}" in done.stdout and "status             PENDING" in done.stdout
    line, missing = carrier(done)
    assert missing == UNAPPLIED
    assert re.fullmatch(r"message 1 of refdata.commands/\d+: the group refdata-apply has 1 messages to handle before it", line)
    serve(refdata_db, settings(), args=APPLY)
    eventually(lambda: accept.updates("list", "--status", "PENDING").stdout == "")
    done = accept.updates("show", second)
    assert "status             COMMITTED" in done.stdout and "committed_version  2" in done.stdout and not carrier(done)


def test_nothing_to_list_is_said(accept):
    done = accept.updates("list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "freshet updates list: there is no such update\n")
    done = accept.updates("show", "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77")
    assert (done.returncode, done.stdout) == (1, "") and "there is no update 3f0c8f0e" in done.stderr


def test_updates_are_chosen_by_what_they_are(accept, refdata_db):  # noqa: F811
    a, b = accept(delta("A", {"k": 1}), delta("B", {"k": 1}))
    (theirs,) = accept(delta("A", {"k": 1}), tenant="acme")
    refdata_db.query("update refdata.update_request set status = 'FAILED', error_code = 'NO', error_message = 'bad' where event_id = %s",
                     (b,))
    refdata_db.query("update refdata.update_request set created_at = now() - interval '2 hours' where event_id = %s", (a,))
    for args, wanted in [(["--dict", "A"], [theirs, a]), (["--tenant", "acme"], [theirs]), (["--status", "FAILED"], [b]),
                         (["--error-code", "NO"], [b]), (["--error-code", "OTHER"], []), (["--since", "1h"], [theirs, b]),
                         (["--until", "1h"], [a]), (["--since", "2026-01-31T12:00:00Z", "--dict", "B"], [b]),
                         (["--status", "PENDING", "--tenant", "demo"], [a])]:
        assert listed(accept.updates("list", *args)) == wanted, args
    assert "error=NO: bad" in accept.updates("list", "--dict", "B").stdout
    done = accept.updates("list", "--limit", "2")
    assert listed(done) == [theirs, b] and "these are the newest 2; --limit shows more" in done.stderr


def test_json_is_an_object_a_line_as_the_api_has_it(accept):
    (event,) = accept(delta("A", {"k": 1}))
    done = accept.updates("list", "--json")
    row = json.loads(done.stdout)
    assert row["event_id"] == event and row["status"] == "PENDING" and row["database"] == "main" and done.stderr == ""
    shown = json.loads(accept.updates("show", event, "--json").stdout)
    assert shown.pop("carriers")[0].startswith("message 0 of refdata.commands/")
    assert {**row, "age_seconds": 0} == {**shown, "age_seconds": 0}


def test_an_update_that_nothing_carries_says_why(accept, refdata_db):  # noqa: F811
    """As after the loss of messages: the auditor decides it, where the role apply runs."""
    (event,) = accept(delta("A", {"k": 1}))
    refdata_db.query("delete from platform.bus_message where topic = 'refdata.commands'")
    line, missing = carrier(accept.updates("show", event))
    assert missing == UNAPPLIED
    assert line.startswith("none: its command is not on the bus any more.") and "COMMAND_LOST" in line and "role apply" in line


def test_a_message_whose_handling_fails_shows_the_error(accept, refdata_db):  # noqa: F811
    (event,) = accept(delta("A", {"k": 1}))
    refdata_db.query("insert into platform.bus_cursor (group_name, topic, partition, position, attempts, retry_at, last_error)"
                     " select 'refdata-apply', topic, partition, message_offset, 3, now() + interval '1 minute', e'lock\\x1b[2J timeout'"
                     " from platform.bus_message where topic = 'refdata.commands'"
                     " on conflict (group_name, topic, partition) do update set attempts = 3, retry_at = excluded.retry_at,"
                     " last_error = excluded.last_error")
    line, missing = carrier(accept.updates("show", event))
    assert missing == UNAPPLIED
    assert re.search(r"has 0 messages to handle before it; 3 attempts, the next at \S+Z; last error: lock\?\[2J timeout$", line)


def test_a_chunk_waits_for_the_others_of_its_snapshot(accept, serve, refdata_db):  # noqa: F811
    half = chunks("A", {"a": 1, "b": 2}, 2)
    (event,) = accept(half[0])
    serve(refdata_db, settings(), args=APPLY)
    eventually(lambda: any("1 of 2 chunks have arrived" in line for line in carrier(accept.updates("show", event))))
    eventually(lambda: UNAPPLIED not in carrier(accept.updates("show", event)))


def test_a_command_that_kafka_has_not_taken_is_in_its_outbox(serve, refdata_db, token):  # noqa: F811
    """R11, with a Kafka that is down."""
    down = merge(settings(), {"bus": {"commands": "kafka"}, "kafka": {"brokers": [f"127.0.0.1:{free_port()}"]}})
    server = serve.make(refdata_db, down, args=COMMAND).start(ready=False)
    client = eventually(lambda: server.client(token(TENANT)) if server.logs(event="serving") else None)
    body = delta("A", {"k": 1})
    eventually(lambda: client.post(updates_path("ASYNC"), body).status == 202)
    done = run("updates", "show", body["eventId"], "--config", server.config_path, env=server.env)
    line, missing = carrier(done)
    assert missing == UNAPPLIED
    assert re.match(r"row \d+ of refdata.command_outbox: ", line), line


def test_an_update_is_found_in_whichever_database_it_is(serve, refdata_db, postgres, jwks_path, tmp_path, token):  # noqa: F811
    """R15: newest first over all databases; one that is down does not hide the others."""
    second = migrated(postgres, jwks_path, tmp_path)
    blocks = [{"name": name, "jdbcUrl": db.jdbc_url, "username": db.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
              for name, db in [("first", refdata_db), ("second", second)]]
    changes = merge(pod("A", {"code": "B", "postgres": "second"}), {"refdata": {"postgres": blocks}})
    server = serve(refdata_db, changes)
    client, bodies = server.client(token(TENANT)), [delta(code, {"k": 1}) for code in "ABAB"]
    for body in bodies:
        commit(client, body)
    assert client.get(status_path(bodies[3]["eventId"])).json()["status"] == "COMMITTED"
    done = run("updates", "list", "--config", server.config_path, env=server.env)
    assert listed(done) == [body["eventId"] for body in reversed(bodies)]
    assert [line.split()[4] for line in done.stdout.splitlines()] == [f"database={name}" for name in ("second", "first") * 2]
    assert len(listed(run("updates", "list", "--database", "second", "--config", server.config_path, env=server.env))) == 2
    text = server.config_path.read_text()
    server.stop()
    server.config_path.write_text(text.replace(second.name, "nowhere"))
    done = run("updates", "list", "--config", server.config_path, env=server.env)
    assert done.returncode == 1 and len(listed(done)) == 2 and "freshet updates list: database second at " in done.stderr
    second.drop()


@pytest.mark.parametrize("args", [[], ["nothing"], ["show"], ["show", "x"], ["list", "more"], ["list", "--status", "LOST"],
                                  ["list", "--since", "soon"], ["list", "--limit", "0"], ["list", "--tenant", "a b"],
                                  ["list", "--database", "none"], ["show", "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77", "--dict", "A"]])
def test_a_wrong_call_is_exit_2(refdata_db, serve, args):  # noqa: F811
    server = serve.make(refdata_db, settings())
    done = run("updates", *args, "--config", server.config_path, env=server.env)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("freshet updates"), done.stderr
