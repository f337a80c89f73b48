"""A load for the time in which commits get lost: every request stands for itself, so that one that is lost breaks no other.

Each thing that was accepted is noted with the moment of its answer. Afterwards it is there with all of its effects, or with none of
them, and then it was answered before the standby was promoted.
"""
import time

import workload
from lib import chat, entitlement, items, on_engines
from lib.refdata import TENANT, path
from lib.wait import eventually
from lib.writers import delta, updates_path
from mixed import Part

FOUND = {
    "update": "select event_id::text from refdata.update_request where tenant_id = %s and status = 'COMMITTED'",
    "grant": "select user_id from entitlement.entitlements where tenant_id = %s",
    "item": "select sku from intake.items where tenant_id = %s",
    "message": "select session_id::text from chat.chat_sessions where tenant_id = %s",
}


class Tail(Part):
    """`sent`: {kind: {name: the moment of its answer}}; `updates` keeps the bodies, to be sent again."""

    method_kinds = {"POST": "write in the tail", "GET": "read in the tail"}

    def __init__(self, servers, bearer, timeline, pause=0.02):
        super().__init__(servers, bearer, timeline, pause)
        self.sent = {kind: {} for kind in FOUND}
        self.updates, self.highest, self.projects, self.items = {}, 0, {}, {}

    def start(self, threads):
        for number, work in enumerate((self.update, self.grant, self.item, self.message, self.read)):
            threads.add(self._repeat, work, number)

    def _repeat(self, stopping, work, number):
        client = self.client(number)
        while not stopping.wait(self.pause):
            work(client)
        client.close()

    def note(self, kind, name):
        self.sent[kind][name] = self.timeline.now()

    def update(self, client):
        body = delta("COUNTED", {})
        body["items"] = [{"key": body["eventId"], "op": "UPSERT", "payload": {"writer": "tail"}}]
        answer = client.post(body, "WAIT_COMMIT")
        assert answer.status in (200, 202), (answer.status, answer.body)
        self.highest = answer.json().get("committedVersion") or self.highest
        self.updates[body["eventId"]] = body
        self.note("update", body["eventId"])

    def grant(self, client):
        user = f"tail-{entitlement.new_key()}"
        answer = self.keyed(client, entitlement.GRANTS, entitlement.body(user))
        assert (answer.status, answer.json().get("version")) == (200, 1), answer.body
        self.note("grant", user)

    def item(self, client):
        body = items.item()
        answer = self.keyed(client, items.PATH, body)
        assert answer.status == 201, answer.body
        self.items[body["sku"]] = answer.json()["id"]
        self.note("item", body["sku"])

    def message(self, client):
        project, session = chat.fresh(), chat.fresh()
        answer = self.keyed(client, chat.path(project, session, "/message"), {"content": "hello"})
        assert answer.status == 200, answer.body
        self.projects[session] = project
        self.note("message", session)

    def read(self, client):
        """R7: never less than what is demanded, also where that is lost."""
        version = self.highest
        answer = client.request("GET", path("COUNTED", "/version"), headers={"X-Min-Version": str(version)})
        if answer.status == 409:
            assert answer.code == "VERSION_NOT_COMMITTED" and answer.json()["committedVersion"] < version, answer.body
            self.highest = 0
        else:
            assert answer.status == 200 and answer.json()["version"] >= version, (version, answer.body)

    # ---- afterwards ----

    def settle(self, database, promoted):
        """Divides what was accepted into what is there and what is lost: {kind: (found, lost)}."""
        eventually(lambda: workload.is_settled(database))
        eventually(lambda: not on_engines.carries_commands() or on_engines.is_handled(database.name))
        result = {}
        for kind, sql in FOUND.items():
            there = {row for row, in database.query(sql, (TENANT,))}
            found, lost = (({name for name in self.sent[kind] if (name in there) == is_there}) for is_there in (True, False))
            late = [name for name in lost if self.sent[kind][name] >= promoted]
            assert not late, f"{len(late)} of {kind} were answered by the new primary and are lost, such as {late[:3]}"
            result[kind] = (found, lost)
        self._check_whole(database, result)
        return result

    @staticmethod
    def _check_whole(database, result):
        """Everything of it, or nothing (I5, E3, M1)."""
        effects = {key for key, in database.query("select k from counted where tenant_id = %s", (TENANT,))}
        assert result["update"][0] <= effects and not result["update"][1] & effects
        for sku in result["item"][0] | result["item"][1]:
            assert items.effects(database, sku) == ((1, 1, 1) if sku in result["item"][0] else (0, 0, 0)), sku
        for session in result["message"][1]:
            assert chat.effects(database, session) == (0, 0, 0, 0), session

    def send_again(self, client, lost):
        """The same updates, by their eventIds: what a careful client does after such a failover."""
        for event_id in sorted(lost):
            answer = client.request("POST", updates_path("WAIT_COMMIT"), self.updates[event_id])
            assert answer.status in (200, 202), (answer.status, answer.body)

    def absorb_into(self, load, result):
        """What it leaves in the tables belongs to the other load's accounts: all updates, once the lost ones were sent again."""
        load.updates.sent += [workload.Sent(event_id, "COUNTED", workload.GOOD) for event_id in self.updates]
        load.grants.sent += [(user, 1) for user in result["grant"][0]]
        load.items.sent.update({sku: self.items[sku] for sku in result["item"][0]})


def wait_for_loss(tail, since, times, threads, seconds=60):
    """Until each kind was answered so often since a moment."""
    deadline = time.monotonic() + seconds
    while any(sum(1 for at in sent.values() if at >= since) < times for sent in tail.sent.values()):
        assert not threads.errors, threads.errors[0]
        assert time.monotonic() < deadline, {kind: len(sent) for kind, sent in tail.sent.items()}
        time.sleep(0.05)
