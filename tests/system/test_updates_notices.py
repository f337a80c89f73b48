"""Decisions travel between processes as notices of PostgreSQL, which every role that can connect may send (R1)."""
import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg2

from lib.refdata import TENANT, own_refdata_db, pod  # noqa: F401
from lib.writers import delta, updates_path


def test_a_decision_notice_of_another_role_answers_nobody(serve, own_refdata_db, own_postgres, token):  # noqa: F811
    """No process applies: whatever is sent for as long as the update waits, it is not decided."""
    own_postgres.execute("create role stranger login password 'stranger'")
    client = serve(own_refdata_db, pod("B"), args=("--roles", "command")).client(token(TENANT))
    body = delta("B", {"a": 1})
    with contextlib.closing(psycopg2.connect(own_refdata_db.url, user="stranger", password="stranger")) as stranger, \
            ThreadPoolExecutor() as threads:
        stranger.autocommit = True
        sent = threads.submit(client.post, updates_path("WAIT_COMMIT", timeout_ms=1000), body)
        while not sent.done():
            stranger.cursor().execute("select pg_notify('freshet_refdata_decided', %s)",
                                      (f"{TENANT}/{body['eventId']}/COMMITTED/1000",))
    assert (sent.result().status, sent.result().json()["status"]) == (202, "PENDING")
