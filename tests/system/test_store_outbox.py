"""O4: `freshet outbox` over the tables of every module, by ID of whatever form, and since a moment."""
import json

import pytest

from lib.config import base_config, to_yaml
from lib.entitlement import SCOPES, grant
from lib.freshet import run
from lib.outbox import leave
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually

TABLE = "entitlement.outbox_events"


@pytest.fixture
def outbox(refdata_db, jwks_path, tmp_path):  # noqa: F811
    """outbox(*args): the finished call."""
    config = tmp_path / "outbox.yaml"
    config.write_text(to_yaml(base_config(refdata_db, jwks_path)))
    return lambda *args: run("outbox", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password,
                                                                               "FRESHET_LOG": "info"})


@pytest.fixture
def granted(serve, refdata_db, token):  # noqa: F811
    """Three grants, published an hour, ten minutes and no time ago, in a database that nothing serves any more."""
    server = serve(refdata_db, args=["--roles", "entitlement"])
    client = server.client(token(scope=SCOPES))
    for sku in "abc":
        assert grant(client, "u", sku).status == 200
    eventually(lambda: refdata_db.value(f"select count(*) from {TABLE} where status = 'PUBLISHED'") == 3)
    server.stop()
    for age, sku in (("1 hour", "a"), ("10 minutes", "b")):
        refdata_db.query(f"update {TABLE} set created_at = now() - %s::interval where aggregate_key = %s", [age, f"demo/u/{sku}"])
    return refdata_db


def skus(lines):
    return [line.split(" of=")[1].split()[0].rsplit("/", 1)[1] for line in lines]


def pending(database):
    return sorted(key[-1] for (key,) in database.query(f"select aggregate_key from {TABLE} where status = 'PENDING'"))


def test_every_table_is_listed_and_one_is_chosen_by_its_name(outbox, granted):
    leave(granted, "D", 1, 2)
    granted.query("update refdata.outbox_event set published = true, published_at = now()")
    lines = outbox("list", "--state", "published").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["main", "refdata.outbox_event"]] * 2 + [["store", TABLE]] * 3
    lines = outbox("list", "--state", "published", "--table", TABLE, "--of", "demo/u/b").stdout.splitlines()
    assert skus(lines) == ["b"]
    assert outbox("list", "--state", "published", "--database", "main").stdout.count("\n") == 2


def test_republish_since_a_moment_or_a_while_ago(outbox, granted):
    """O4: what JetStream lost is published again."""
    done = outbox("republish", "--table", TABLE, "--since", "30m")
    assert done.returncode == 0 and done.stdout == f"store {TABLE}: 2 will be published again\n"
    assert pending(granted) == ["b", "c"]
    (audit,) = [line for line in map(json.loads, done.stderr.splitlines()) if line["event"] == "outbox_changed_by_hand"]
    assert (audit["table"], audit["events"], audit["action"]) == (TABLE, 2, "republish")
    moment = granted.value("select to_char((now() - interval '2 hours') at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
    assert "1 will be published again" in outbox("republish", "--table", TABLE, "--since", moment).stdout
    assert pending(granted) == ["a", "b", "c"]


def test_ids_have_the_form_their_table_gives_them(outbox, granted):
    wanted = str(granted.value(f"select event_id from {TABLE} where aggregate_key like '%/a'"))
    assert outbox("list", wanted, "--state", "published").stdout.count(wanted) == 1
    assert "1 will be published" in outbox("republish", wanted, "--table", TABLE).stdout
    assert pending(granted) == ["a"]
    done = outbox("retry", wanted, "--table", TABLE)
    assert done.returncode == 1 and done.stdout == f"store {TABLE}: 0 will be tried again\n"
    assert "1 of the events named" in done.stderr


def test_what_was_given_up_is_not_published_with_what_was_lost(outbox, granted):
    """O4: discarded is discarded, unless it is named."""
    granted.query(f"update {TABLE} set status = 'FAILED', last_error = 'no event' where aggregate_key like '%/b'")
    assert "1 discarded" in outbox("discard", "--all", "--table", TABLE).stdout
    assert "1 will be published again" in outbox("republish", "--table", TABLE, "--since", "30m").stdout
    assert pending(granted) == ["c"]


@pytest.mark.parametrize("args, said", [
    (["republish", "--table", TABLE, "7"], "UUID"),
    (["list", "none"], "number"),
    (["list", "--table", "entitlement.nothing"], "refdata.outbox_event refdata.command_outbox intake.event_outbox"),
    (["republish", "--table", TABLE], "--since"),
    (["republish", "--table", TABLE, "--since", "yesterday"], "--since"),
    (["retry", "--all", "--table", TABLE, "--database", "main"], 'no database "main"'),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_mistakes_are_said_and_change_nothing(outbox, refdata_db, args, said):  # noqa: F811
    done = outbox(*args)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_a_table_that_was_never_made_has_nothing_to_show(outbox, refdata_db):  # noqa: F811
    """A database of before: refdata's alone."""
    refdata_db.query("drop schema entitlement, intake, notification cascade")
    assert outbox("list").returncode == 0
    done = outbox("list", "--table", TABLE)
    assert done.returncode == 1 and "does not exist" in done.stderr
