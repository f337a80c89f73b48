"""E3, I5, O1, C7: a process that dies between two steps, a PostgreSQL that goes away: both effect and answer, or neither."""
import signal

import pytest

from lib.entitlement import ROLE, SCOPES, agree, grant, listed, live, new_key, published, revoke
from lib.refdata import refdata_db  # noqa: F401
from lib.wait import eventually

FAST = {"entitlement": {"outbox": {"poll-interval": "50ms", "lease": "500ms"}}}
STEPS = ["entitlement.before_change", "idempotency.before_effect", "idempotency.before_commit", "idempotency.after_commit",
         "entitlement.after_commit", "entitlement.after_claim", "entitlement.after_publish", "outbox.after_settle"]


@pytest.mark.parametrize("step", STEPS)
def test_whoever_dies_leaves_both_effect_and_answer_or_neither(serve, refdata_db, token, step):  # noqa: F811
    """The client sends the same again until it is answered: one effect, one event, the key was never lost."""
    server = serve(refdata_db, FAST, args=ROLE, env={"FRESHET_FAILPOINTS": f"{step}=kill#1"})
    bearer = token("demo", subject="shop", scope=SCOPES)
    try:
        first = grant(server.client(bearer), key="p_456")
    except OSError:
        first = None
    eventually(lambda: server.process.poll() == -signal.SIGKILL)
    assert f'"failpoint":"{step}"' in server.log()
    server.env["FRESHET_FAILPOINTS"] = ""
    server.start()
    again = grant(server.client(bearer), key="p_456")
    assert (again.status, again.json().get("version")) == (200, 1), again.body + server.log()[-3000:].encode()
    assert first is None or first.body == again.body
    assert ("idempotency-replayed" in again.headers) == (step not in STEPS[:3])
    assert revoke(server.client(bearer), key="p_456").json()["version"] == 2
    eventually(lambda: live(refdata_db) == 0)
    assert agree(refdata_db) == 2
    assert refdata_db.value("select count(*) from entitlement.idempotency_keys") == 2


def test_c7_without_postgres_503_and_nothing_half_done(serve, own_postgres, token):
    database = own_postgres.create_database()
    server = serve(database, FAST, args=ROLE)
    bearer = token("demo", subject="shop", scope=SCOPES)
    with server.client(bearer) as client:
        assert grant(client, key="k1").status == 200
        own_postgres.stop("immediate")
        refused = grant(client, "u_2", key="k2")
        assert (refused.status, refused.code) == (503, "UNAVAILABLE") and "retry-after" in refused.headers
        assert listed(client, "u_123").status == 503
        eventually(lambda: client.get("/actuator/health").json()["roles"]["entitlement"]["status"] == "DOWN")
        own_postgres.start()
        eventually(lambda: grant(client, "u_2", key="k2").status == 200)
        assert grant(client, key="k1").headers["idempotency-replayed"] == "true"
        eventually(lambda: client.get("/actuator/health").json()["roles"]["entitlement"]["status"] == "UP")
    eventually(lambda: live(database) == 0)
    assert agree(database) == 2


def test_o1_a_crash_that_takes_what_was_published_takes_its_mark_too(serve, own_postgres, token):
    """The claim is on the disk, the message is not: the verdict must not be written by a server that never heard of it."""
    database = own_postgres.create_database()
    own_postgres.execute("alter system set wal_writer_delay = '10s'")
    own_postgres.execute("select pg_reload_conf()")
    failpoints = "entitlement.after_claim=sleep-2000#1,entitlement.after_publish=sleep-4000#1"
    server = serve(database, {"entitlement": {"outbox": {"lease": "60s"}}}, args=ROLE, env={"FRESHET_FAILPOINTS": failpoints})
    assert grant(server.client(token("demo", subject="shop", scope=SCOPES))).status == 200
    eventually(lambda: '"failpoint":"entitlement.after_claim"' in server.log())
    own_postgres.execute("create table flushed ()")
    eventually(lambda: '"failpoint":"entitlement.after_publish"' in server.log())
    own_postgres.stop("immediate")
    own_postgres.start()
    eventually(lambda: live(database) == 0)
    assert agree(database) == 1


def test_c10_it_starts_before_its_postgres_and_comes_up_by_itself(serve, own_postgres, token):
    database = own_postgres.create_database()
    own_postgres.stop()
    server = serve.make(database, FAST, args=ROLE).start(ready=False)
    eventually(lambda: "serving" in server.log())
    with server.client(token("demo", subject="shop", scope=SCOPES)) as client:
        assert grant(client).status == 503
        own_postgres.start()
        eventually(lambda: grant(client, key=new_key()).status in (200, 409))
    eventually(lambda: len(published(database)) >= 1)
