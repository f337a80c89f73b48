"""What goes on while something breaks, and what must be true of it afterwards.

Three dictionaries, each with a way of its own to show an effect that is missing, doubled or out of order:

    PLAIN    built-in. Every writer has a key that counts its updates up: the last one must win.
    COUNTED  by SQL that counts how often it wrote a key, and a key is an eventId. A payload "bad" breaks a constraint.
    WHOLE    built-in, written by chunked snapshots only: all items must be of one generation.
"""
import random
import uuid
from dataclasses import dataclass

from lib.freshet import run
from lib.refdata import TENANT, path
from lib.wait import eventually
from lib.writers import Patient, chunks, delta, status_path

WHOLE_KEYS = [f"w{i}" for i in range(9)]
GOOD, BAD = "COMMITTED", "FAILED"

TABLES = """
create table counted (
    tenant_id text not null, k text not null, v jsonb not null check (v <> '"bad"'), n integer not null,
    primary key (tenant_id, k));
"""
COUNTED = {
    "code": "COUNTED",
    "loadSql": "select k, jsonb_build_object('v', v, 'n', n) as v from counted where tenant_id = :tenantId",
    "loadKeysSql": "select k, jsonb_build_object('v', v, 'n', n) as v from counted"
                   " where tenant_id = :tenantId and k = any(:keys)",
    "apply": {
        "upsertSql": "insert into counted values (:tenantId, :key, :payload, 1)"
                     " on conflict (tenant_id, k) do update set v = excluded.v, n = counted.n + 1",
        "deleteSql": "delete from counted where tenant_id = :tenantId and k = :key",
    },
}
DICTIONARIES = ["PLAIN", COUNTED, "WHOLE"]
CODES = ["PLAIN", "COUNTED", "WHOLE"]


@dataclass
class Sent:
    """One accepted update."""

    event_id: str
    code: str
    expected: str
    version: int = None  # when its answer said so
    generation: int = None


class Workload:
    """Writers over `servers`; everything accepted is in `sent`."""

    def __init__(self, servers, token, pause=0.002, patient=Patient):
        self.servers, self.token, self.pause, self.patient = servers, token, pause, patient
        self.sent = []
        self.last = {}  # PLAIN: the last value of every writer's key
        self.generation = 0  # WHOLE: the last that was accepted whole
        self.refusals = 0

    def start(self, threads, plain=2, counted=2, whole=1, readers=1):
        for number in range(plain):
            threads.add(self._plain, number)
        for number in range(counted):
            threads.add(self._counted, number)
        for _ in range(whole):
            threads.add(self._whole)
        for number in range(readers):
            threads.add(self._read, number)

    def _client(self, number):
        return self.patient(self.servers, self.token, first=number)

    def _post(self, client, body, mode, expected, generation=None):
        """Sends until it is accepted, and notes what must become of it."""
        answer = client.post(body, mode)
        assert answer.status in ((200, 202) if expected == GOOD else (202, 409, 422)), (answer.status, answer.body)
        update = answer.json()
        version = update.get("committedVersion") if answer.status == 200 else None
        assert answer.status != 200 or version >= 1, update
        self.sent.append(Sent(body["eventId"], body["dictCode"], expected, version, generation))
        return version

    def _plain(self, stopping, number):
        client, key, version = self._client(number), f"writer{number}", 0
        choice = random.Random(number)
        for value in range(1, 1 << 30):
            if stopping.wait(self.pause):
                break
            items = {key: {"value": value, "writer": number}, f"{key}-{value % 50}": None if value % 7 == 0 else value}
            mode = choice.choice(["ASYNC", "WAIT_COMMIT"])
            known = self._post(client, delta("PLAIN", items), mode, GOOD)
            self.last[key] = value
            if known is not None:
                assert known > version, f"version {known} after {version}"
                version = known
        self.refusals += client.refusals
        client.close()

    def _counted(self, stopping, number):
        client, choice = self._client(number), random.Random(number)
        while not stopping.wait(self.pause):
            body = delta("COUNTED", {})
            expected = BAD if choice.random() < 0.1 else GOOD
            payload = "bad" if expected == BAD else {"writer": number}
            body["items"] = [{"key": body["eventId"], "op": "UPSERT", "payload": payload}]
            self._post(client, body, choice.choice(["ASYNC", "WAIT_COMMIT"]), expected)
        self.refusals += client.refusals
        client.close()

    def _whole(self, stopping):
        client, choice = self._client(0), random.Random(9)
        while not stopping.wait(10 * self.pause):
            generation = self.generation + 1
            bodies = chunks("WHOLE", {key: {"generation": generation} for key in WHOLE_KEYS}, 3)
            choice.shuffle(bodies)
            bodies.append(choice.choice(bodies))  # a chunk may come twice
            for body in bodies:
                answer = client.post(body, "ASYNC")
                assert answer.status in (200, 202), (answer.status, answer.body)
                self.sent.append(Sent(body["eventId"], "WHOLE", GOOD, generation=generation))
            self.generation = generation
        self.refusals += client.refusals
        client.close()


    def _read(self, stopping, number):
        """Demands versions that writers were told of, at whichever server there is: never less, never 409 (R7)."""
        client = self._client(number)
        while not stopping.wait(5 * self.pause):
            known = next((each for each in reversed(self.sent[-50:]) if each.version is not None), None)
            if known is None:
                continue
            answer = client.request("GET", path(known.code, "/version"), headers={"X-Min-Version": str(known.version)})
            assert answer.status == 200, (answer.status, answer.body)
            assert answer.json()["version"] >= known.version, (known, answer.body)
        client.close()


# ---- afterwards ----

def is_settled(database):
    """Everything accepted is decided, and everybody was told."""
    pending = database.query("select event_id, dict_code, snapshot_id, created_at from refdata.update_request"
                             " where status = 'PENDING'")
    assert not pending, f"{len(pending)} updates are PENDING, such as {pending[:4]}"
    unpublished = database.value("select count(*) from refdata.outbox_event where not published")
    assert unpublished == 0, f"{unpublished} changes are not published"
    behind = database.query(
        "select c.group_name, c.topic, c.partition, c.position, p.next_offset from platform.bus_cursor c"
        " join platform.bus_partition p using (topic, partition) where c.position < p.next_offset")
    assert not behind, f"cursors are behind: {behind}"
    return True


def check_decisions(database, sent):
    """Every accepted update ended as it had to; what an answer said is what the table says."""
    rows = {str(event): (status, version) for event, status, version in database.query(
        "select event_id, status, committed_version from refdata.update_request where tenant_id = %s", (TENANT,))}
    wrong = [(each, rows.get(each.event_id)) for each in sent
             if rows.get(each.event_id, (None, None))[0] != each.expected
             or (each.version is not None and rows[each.event_id][1] != each.version)]
    assert not wrong, f"{len(wrong)} of {len(sent)} accepted updates, the first {wrong[:3]}"


def check_versions(database, code):
    """1, 2, 3 … without gaps or repeats, each one's change told once, each one somebody's update."""
    latest = database.value("select version from refdata.dictionary_meta where tenant_id = %s and dict_code = %s",
                            (TENANT, code))
    told = [version for version, in database.query(
        "select version from refdata.outbox_event where tenant_id = %s and dict_code = %s order by id", (TENANT, code))]
    assert told == list(range(1, latest + 1)), f"{code}: versions {_first_break(told)} of {latest}"
    updates = database.query(
        "select committed_version, count(*) from refdata.update_request where tenant_id = %s and dict_code = %s"
        " and status = 'COMMITTED' group by 1 order by 1", (TENANT, code))
    assert [version for version, _ in updates] == told, f"{code}: not every version is an update's"
    if code != "WHOLE":  # a snapshot's chunks share its version
        assert all(count == 1 for _, count in updates), f"{code}: one version, several updates"
    return latest


def _first_break(told):
    at = next((i for i, version in enumerate(told) if version != i + 1), len(told))
    return told[max(0, at - 2):at + 3]


def check_effects(database, workload):
    """Each committed update had its effect once and in order, a failed one none."""
    effects = dict(database.query("select k, n from counted where tenant_id = %s", (TENANT,)))
    assert set(effects.values()) <= {1}, [key for key, n in effects.items() if n != 1][:3]
    counted = [each for each in workload.sent if each.code == "COUNTED"]
    assert set(effects) == {each.event_id for each in counted if each.expected == GOOD}
    items = dict(database.query(
        "select item_key, payload from refdata.dictionary_item where tenant_id = %s and dict_code = 'PLAIN'"
        " and not deleted", (TENANT,)))
    last = {key: items[key]["value"] for key in workload.last}
    assert last == workload.last, "an update was overtaken by an earlier one"
    whole = dict(database.query(
        "select item_key, payload from refdata.dictionary_item where tenant_id = %s and dict_code = 'WHOLE'"
        " and not deleted", (TENANT,)))
    if workload.generation:
        generations = {payload["generation"] for payload in whole.values()}
        assert set(whole) == set(WHOLE_KEYS) and len(generations) == 1, whole
        assert generations == {workload.generation}


def found(answer):
    assert answer.status == 200, (answer.status, answer.body)
    return True


def check_books(server):
    """freshet verify --books: everything accepted is decided or carried, at any moment."""
    done = run("verify", "--books", "--config", server.config_path, env={**server.env, "FRESHET_FAILPOINTS": ""})
    assert done.returncode == 0, done.stdout + done.stderr


def check_pods(servers, token):
    """freshet verify: what pods hold is what the database holds."""
    for server in servers:
        with server.client(token) as client:
            for code in CODES:
                eventually(lambda: found(client.get(path(code, "/version"))))
    urls = [word for server in servers for word in ("--url", f"http://127.0.0.1:{server.port}")]
    done = run("verify", "--config", servers[0].config_path, "--patience", "30s", *urls,
               env={**servers[0].env, "FRESHET_TOKEN": token, "FRESHET_FAILPOINTS": ""})
    assert done.returncode == 0, done.stdout + done.stderr


def check_status_route(servers, token, sent):
    """R2 says what the table says, for some."""
    client = Patient(servers, token)
    for each in random.Random(1).sample(sent, min(30, len(sent))):
        answer = client.request("GET", status_path(each.event_id))
        assert (answer.status, answer.json()["status"]) == (200, each.expected), answer.body
    assert client.request("GET", status_path(uuid.uuid4())).status == 404
    client.close()


def audit(database, workload, servers, token):
    """Everything. `servers` are pods that run. Returns the versions reached, by dictionary."""
    eventually(lambda: is_settled(database))
    check_decisions(database, workload.sent)
    versions = {code: check_versions(database, code) for code in CODES}
    check_effects(database, workload)
    check_books(servers[0])
    check_pods(servers, token)
    check_status_route(workload.servers, token, workload.sent)
    return versions
