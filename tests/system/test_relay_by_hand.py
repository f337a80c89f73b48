"""O4: `freshet outbox` on what failed, what was published and what a dead worker holds."""
import json

import pytest

from lib.config import base_config, to_yaml
from lib.freshet import run
from lib.outbox import leave
from lib.refdata import refdata_db  # noqa: F401


@pytest.fixture
def outbox(refdata_db, jwks_path, tmp_path):  # noqa: F811
    """outbox(*args): exit status, lines of standard output, audit lines of standard error."""
    config = tmp_path / "outbox.yaml"
    config.write_text(to_yaml(base_config(refdata_db, jwks_path)))

    def call(*args):
        done = run("outbox", *args, "--config", config, env={"FRESHET_TEST_PG_PASSWORD": refdata_db.password,
                                                             "FRESHET_LOG": "info"})
        audit = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        return done.returncode, done.stdout.splitlines(), [a for a in audit if a["event"] == "outbox_changed_by_hand"]
    return call


@pytest.fixture
def filled(refdata_db):  # noqa: F811
    """Versions 1–2 pending, 3–4 held, 5–7 published, 8–10 failed."""
    leave(refdata_db, "D", 1, 10)
    refdata_db.query("update refdata.outbox_event set locked_until = now() + interval '1 hour', claim_id = gen_random_uuid(),"
                     " claim_count = 1 where version in (3, 4)")
    refdata_db.query("update refdata.outbox_event set published = true, published_at = now() where version between 5 and 7")
    refdata_db.query("update refdata.outbox_event set failed_at = now(), attempt_count = 10, claim_count = 10,"
                     " last_error = 'nobody listens' where version >= 8")
    return refdata_db


def ids(database, *wanted):
    return [str(database.value("select id from refdata.outbox_event where version = %s", [v])) for v in wanted]


def states(database):
    return {version: "published" if published else "failed" if failed else "held" if held else "pending"
            for version, published, failed, held in database.query(
                "select version, published, failed_at is not null, locked_until > now() from refdata.outbox_event")}


def test_list_shows_failed_ones_unless_told_otherwise(outbox, filled):
    status, lines, audit = outbox("list")
    assert status == 0 and len(lines) == 3 and not audit
    assert all("of=demo/D" in line and "attempts=10" in line and "error=nobody listens" in line for line in lines)
    assert [f"id={i} " in line for i, line in zip(ids(filled, 8, 9, 10), lines)] == [True] * 3
    for state, count in (("pending", 2), ("in_flight", 2), ("published", 3), ("failed", 3)):
        assert len(outbox("list", "--state", state)[1]) == count
    assert len(outbox("list", "--state", "published", "--limit", "2")[1]) == 2
    assert outbox("list", "--of", "demo/E")[1] == []


def test_retry_brings_failed_ones_back_with_their_counts_at_zero(outbox, filled):
    status, lines, audit = outbox("retry", *ids(filled, 8, 9))
    assert status == 0 and "2 will be tried again" in lines[0]
    assert audit[0]["action"] == "retry" and audit[0]["events"] == 2 and audit[0]["table"] == "refdata.outbox_event"
    assert filled.query("select version, attempt_count, claim_count, failed_at from refdata.outbox_event where version >= 8"
                        " order by 1") == [(8, 0, 0, None), (9, 0, 0, None), (10, 10, 10, filled.value(
                            "select failed_at from refdata.outbox_event where version = 10"))]


def test_discard_gives_failed_ones_up_and_touches_no_other(outbox, filled):
    assert outbox("discard", "--all")[2][0]["events"] == 3
    assert states(filled) == {1: "pending", 2: "pending", 3: "held", 4: "held",
                              **{version: "published" for version in range(5, 11)}}
    assert outbox("list")[1] == []


def test_republish_takes_a_range_of_published_ones(outbox, filled):
    first, last = ids(filled, 6, 9)
    assert outbox("republish", "--from", first, "--to", last)[2][0]["events"] == 2
    assert [version for version, state in sorted(states(filled).items()) if state == "pending"] == [1, 2, 6, 7]


def test_unlock_frees_what_a_dead_worker_holds(outbox, filled):
    assert outbox("unlock", "--of", "demo/D")[2][0]["events"] == 2
    assert "held" not in states(filled).values()


def test_a_wrong_call_changes_nothing(outbox, filled):
    before = states(filled)
    for args in ((), ("mend",), ("retry",), ("discard", "x"), ("retry", "--all", "7"), ("list", "--state", "odd"), ("list", "--limit", "0"),
                 ("republish", "--from", "a"), ("retry", "--all", "--database", "no")):
        status, _, audit = outbox(*args)
        assert status == 2 and not audit, args
    assert states(filled) == before


def test_commands_have_a_table_of_their_own(outbox, filled):
    """R11: what waits for Kafka is listed beside the rest; IDs and changes are one table's."""
    filled.query("insert into refdata.command_outbox (tenant_id, dict_code, event_id, payload, waited, failed_at, last_error)"
                 " select 'demo', 'D', gen_random_uuid(), '{}', false, now(), 'nobody home' from generate_series(1, 2)")
    lines = outbox("list")[1]
    assert len([line for line in lines if line.startswith("main refdata.outbox_event ")]) == 3
    assert len([line for line in lines if line.startswith("main refdata.command_outbox ") and "type=command" in line]) == 2
    assert len(outbox("list", "--table", "refdata.command_outbox")[1]) == 2
    assert outbox("retry", "--all")[2][0]["table"] == "refdata.outbox_event"
    status, lines, audit = outbox("retry", "--all", "--table", "refdata.command_outbox")
    assert status == 0 and "2 will be tried again" in lines[0] and audit[0]["table"] == "refdata.command_outbox"
    assert filled.value("select count(*) from refdata.command_outbox where failed_at is null") == 2
    assert outbox("list", "--table", "refdata.nothing")[0] == 2
