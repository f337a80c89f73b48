"""Grants and revokes under trouble, and what must be true of them afterwards (E2, E3, O1, O3, N1, N3).

Every writer has users of its own and turns one entitlement on and off, each time with a new Idempotency-Key, which it sends
until it is answered: so it knows every version that must exist. Whoever is told is a receiver of webhooks, which keeps the
key of each call.
"""
import itertools

from lib.entitlement import GRANTS, REVOKES, agree, body, live, new_key
from lib.notification import webhook
from lib.wait import eventually
from lib.writers import Patient

ROLES = ["--roles", "entitlement,notification"]
USERS = 5  # of a writer


def settings(receiver):
    """Leases that a test can outlive; an event is never given up for having been in the hands of many that died. Nobody here
    owns items: who waits for a title in vain stands in the handler for longer than these processes live, and what five of them
    died with is a dead letter."""
    lease = {"lease": "1s", "max-attempt": 1000}
    changes = webhook(receiver, **lease, webhook={"timeout": "500ms"})
    changes["notification"]["hydration"] = {"enabled": False}
    changes["notification"]["audit-after"] = "500ms"  # the auditor publishes nothing again that is carried
    return {**changes, "entitlement": {"outbox": {"poll-interval": "50ms", "backoff-base": "10ms", **lease}}}


class Grants:
    """The workload: `sent` has (user, version) of every change that was answered."""

    def __init__(self, servers, bearer, pause=0, patient=Patient):
        self.servers, self.bearer, self.pause, self.patient = servers, bearer, pause, patient
        self.sent = []
        self.refusals = 0

    def start(self, threads, writers=4, first=0):
        for number in range(first, first + writers):
            threads.add(self.write, number)

    def write(self, stopping, number):
        client = self.patient(self.servers, self.bearer, first=number)
        versions = {f"w{number}-u{i}": 0 for i in range(USERS)}
        for user in itertools.cycle(versions):
            if stopping.wait(self.pause):
                break
            is_grant = versions[user] % 2 == 0
            answer = client.request("POST", GRANTS if is_grant else REVOKES, body(user),
                                    {"Idempotency-Key": new_key(), "Content-Type": "application/json"})
            versions[user] += 1
            assert answer.status == 200, (user, versions[user], answer.body)
            assert answer.json()["version"] == versions[user], "a change was lost, or came twice"
            self.sent.append((user, versions[user]))
        self.refusals += client.refusals
        client.close()


def is_settled(database, changes, is_exact):
    sent = database.value("select count(*) from notification.notifications where status = 'SENT'")
    return live(database) == 0 and (sent == changes or (sent > changes and not is_exact))


def audit(database, workload, receiver, is_exact=True):
    """Waits until everything is told, then compares it all, to the last row. The number of changes. Not `is_exact`: the
    receiver and the bus may know of more, which a database that lost its last commits does not."""
    changes = len(workload.sent)
    eventually(lambda: is_settled(database, changes, is_exact), timeout=120)
    assert agree(database, is_exact=is_exact) == changes, "changes that nobody was answered for"
    wrong = database.query("select event_id, status, attempt_count, last_error from entitlement.outbox_events"
                           " where status <> 'PUBLISHED' or claim_id is not null or lease_until is not null")
    assert not wrong
    events = database.query("select event_id::text from entitlement.entitlement_audit order by 1")
    for table in ("notifications", "processed_events"):
        handled = database.query(f"select event_id::text from notification.{table} order by 1")
        assert handled == events or (not is_exact and set(handled) > set(events)), table
    assert database.value("select count(*) from notification.notification_dlq") == 0
    assert database.value("select count(*) from notification.notification_nats_dlq") == 0
    told = {call["key"] for call in receiver.calls}
    rows = {row for row, in database.query("select notification_id::text from notification.notifications")}
    assert told == rows or (not is_exact and told > rows)
    return changes
