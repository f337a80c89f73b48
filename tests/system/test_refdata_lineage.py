"""R14, R7: a history that loses its tail and reaches the same number again with other content. A version is known by its
number and by the event that made it.

The loss is a restore: the tables are put back to an earlier copy while the pod is frozen or does not look.
"""
import contextlib
import os
import signal

import pytest

from lib.refdata import TENANT, item_path, make_table, path, pod, refdata_db, sql_dictionary  # noqa: F401
from lib.wait import eventually
from lib.watcher import Watcher
from lib.writers import commit, delta

TABLES = ("dictionary_meta", "dictionary_item", "outbox_event", "update_request", "processed_event")
REGRESSIONS = 'dict_version_regressions_total{dict_code="%s"}'
OWN = sql_dictionary("OWN", "own", apply={
    "upsertSql": "insert into own values (:tenantId, :key, :payload)"
                 " on conflict (tenant_id, k) do update set v = excluded.v"})


class History:
    """A writer, a pod that only reads, and a copy of the database to go back to."""

    def __init__(self, serve, database, token, cache=None, writer="command,apply,relay"):
        make_table(database, "own")
        dictionaries = pod("B", OWN, cache=cache)
        self.database = database
        self.writer = serve(database, dictionaries, args=("--roles", writer)).client(token(TENANT))
        self.pod = serve(database, dictionaries, args=("--roles", "query"))
        self.reader = self.pod.client(token(TENANT))

    def write(self, code, *values):
        for value in values:
            answer = commit(self.writer, delta(code, {"k": value, f"only {value}": 1}))
            assert answer.status == 200, answer.body
        return answer.json()["committedVersion"]

    def value(self, code, **headers):
        answer = self.reader.get(item_path(code, "k"), **headers)
        return answer.json().get("payload"), int(answer.headers.get("x-dict-version", -1))

    def content(self, code):
        return {item["key"]: item["payload"] for item in self.reader.get(path(code, "/all")).json()["items"]}

    def save(self):
        self.database.query("create schema saved; create table saved.own as table own;"
                            + "".join(f"create table saved.{table} as table refdata.{table};" for table in TABLES))

    def restore(self):
        self.database.query("begin; delete from own; insert into own table saved.own;"
                            + "".join(f"delete from refdata.{table}; insert into refdata.{table} table saved.{table};"
                                      for table in TABLES) + " commit")

    @contextlib.contextmanager
    def frozen(self):
        os.kill(self.pod.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pod.process.pid, signal.SIGCONT)

    def regressions(self, code):
        return self.pod.metrics()[REGRESSIONS % code]


@pytest.mark.parametrize("code", ["B", "OWN"])
def test_a_number_reached_again_with_other_content_is_noticed_counted_logged_and_reloaded(serve, refdata_db, token, code):  # noqa: F811
    """R14, R7: the comparison with dictionary_meta alone is enough; under X-Min-Version too the new content is served."""
    history = History(serve, refdata_db, token, writer="command,apply")
    history.write(code, "one")
    history.save()
    assert history.write(code, "lost 2", "lost 3") == 3
    assert eventually(lambda: history.value(code) == ("lost 3", 3))
    with history.frozen():
        history.restore()
        assert history.write(code, "new 2", "new 3") == 3
    assert eventually(lambda: history.value(code, X_Min_Version="3") == ("new 3", 3))
    assert set(history.content(code)) == {"k", "only one", "only new 2", "only new 3"}
    assert history.regressions(code) == 1
    (line,) = history.pod.logs(event="dictionary_history_replaced")
    assert (line["level"], line["dictCode"], line["localVersion"], line["version"]) == ("error", code, 3, 3)
    assert history.write(code, "new 4") == 4  # and from there on it is a version like any other
    assert eventually(lambda: history.value(code) == ("new 4", 4))
    assert history.regressions(code) == 1


def test_an_invalidation_of_the_number_held_by_another_event_is_enough(serve, refdata_db, token):  # noqa: F811
    """R14: the pod does not look by itself. Messages of the number it holds, by the event it holds, load nothing."""
    history = History(serve, refdata_db, token, cache={"sweepInterval": "1h"})
    history.write("B", "one")
    history.save()
    history.write("B", "lost 2")
    assert history.value("B", X_Min_Version="2") == ("lost 2", 2)
    history.restore()
    assert history.write("B", "new 2") == 2
    assert eventually(lambda: history.value("B", X_Min_Version="2") == ("new 2", 2))
    assert history.regressions("B") == 1


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_delta_is_never_put_on_content_that_was_lost(serve, refdata_db, token, trimmed):  # noqa: F811
    """R14, R16: the number was passed before the pod looked again, and the row that told of it may be trimmed by age."""
    history = History(serve, refdata_db, token)
    history.write("B", "one")
    history.save()
    history.write("B", "lost 2", "lost 3")
    assert eventually(lambda: history.value("B") == ("lost 3", 3))
    with history.frozen():
        history.restore()
        assert history.write("B", "new 2", "new 3", "new 4", "new 5") == 5
        if trimmed:
            refdata_db.query("delete from refdata.outbox_event where version <= 3")
    assert eventually(lambda: history.value("B") == ("new 5", 5))
    assert set(history.content("B")) == {"k", "only one", *(f"only new {number}" for number in range(2, 6))}
    assert history.regressions("B") == 1


def test_plain_sql_that_raises_the_version_to_the_number_held_is_noticed(serve, refdata_db, token):  # noqa: F811
    """R14: it names no event; every version it sets is taken for one of its own."""
    history = History(serve, refdata_db, token)
    history.write("B", "one")
    history.save()
    history.write("B", "lost 2")
    assert eventually(lambda: history.value("B") == ("lost 2", 2))
    with history.frozen():
        history.restore()
        refdata_db.query("begin; update refdata.dictionary_item set payload = '\"by hand\"' where item_key = 'k';"
                         " update refdata.dictionary_meta set version = version + 1 where dict_code = 'B'; commit")
    assert eventually(lambda: history.value("B", X_Min_Version="2") == ("by hand", 2))
    assert history.regressions("B") == 1


def test_an_update_after_plain_sql_is_still_a_delta(serve, refdata_db, token):  # noqa: F811
    """R16: the version made by hand is loaded in full, the next one is not."""
    history = History(serve, refdata_db, token)
    history.write("B", "one")
    assert eventually(lambda: history.value("B") == ("one", 1))
    refdata_db.query("update refdata.dictionary_meta set version = version + 1 where dict_code = 'B'")
    assert eventually(lambda: history.value("B") == ("one", 2))
    fulls = len(history.pod.logs(event="dictionary_loaded", mode="full"))
    history.write("B", "three")
    assert eventually(lambda: history.value("B") == ("three", 3))
    assert len(history.pod.logs(event="dictionary_loaded", mode="full")) == fulls
    assert history.regressions("B") == 0


def test_a_stream_of_changes_ends_at_the_fork_and_is_not_resumed_over_it(serve, refdata_db, token):  # noqa: F811
    """R22, R14: who follows is cut off; a number from before the fork is too old, the current one is not."""
    history = History(serve, refdata_db, token)
    history.write("B", "one")
    history.save()
    history.write("B", "lost 2", "lost 3")
    assert eventually(lambda: history.value("B") == ("lost 3", 3))
    stream = Watcher(history.pod, token(TENANT), TENANT, after=3)
    assert stream.line() == {"upToDate": 3}
    with history.frozen():
        history.restore()
        history.write("B", "new 2", "new 3", "new 4")
    assert stream.line() is None
    assert eventually(lambda: history.value("B") == ("new 4", 4))
    for after in (1, 2, 3):
        answer = history.reader.get(path("B", f"/watch?after={after}"))
        assert (answer.status, answer.code, answer.json()["currentVersion"]) == (410, "VERSION_TOO_OLD", 4)
    stream = Watcher(history.pod, token(TENANT), TENANT, after=4)
    assert stream.line() == {"upToDate": 4}
