"""The runbook is true (P3): every alert has its section, and the commands of sections and procedures run on an installation of two
processes, a writer and a pod. Failover itself is run by tests/failover."""
import contextlib
import re

import pytest
import yaml

from conftest import ROOT
from lib import tokens
from lib.freshet import run
from lib.notification import letters, publish
from lib.operator import MARK, Operator
from lib.pages import Page
from lib.refdata import item_path, path
from lib.wait import eventually, free_port
from lib.writers import Threads, commit, delta, updates_path

PAGE = Page(ROOT, ROOT / "docs/RUNBOOK.md")
RULES = ROOT / "deploy/prometheus/freshet.rules.yml"
PARTS = ["Meaning", "First look", "Commands", "Cannot be lost"]


def sections():
    """{name: text} of the alerts."""
    part = PAGE.text[PAGE.text.index("\n# Alerts\n"):PAGE.text.index("\n# Procedures\n")]
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", part, re.M | re.S))


# ---- alerts ----

def test_every_section_of_an_alert_has_its_four_parts():
    assert len(sections()) > 40
    wrong = {name for name, text in sections().items() if re.findall(r"^\*\*([^*]+)\.\*\*", text, re.M) != PARTS}
    assert wrong == set()


def test_every_alert_has_its_section_and_every_section_its_alert():
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == set(sections())
    anchors = PAGE.anchors()
    assert [rule["alert"] for rule in alerts if rule["annotations"]["runbook_url"].rpartition("#")[2] not in anchors] == []


# ---- an installation ----

class Installation:
    """A process with all roles and a pod beside it, on a database of their own, and an operator's shell."""

    def __init__(self, serve, database, folder):
        self.database, self.keys = database, [tokens.Key("EdDSA"), tokens.Key("ES256")]
        config = (ROOT / "config/freshet.yaml").read_text(encoding="utf-8")
        self.writer = serve.make(database, config=config)
        # the same file: a change of it reaches both
        self.pod = serve.make(database, config=config, args=["--roles", "query"],
                              env={"FRESHET_VAR": str(self.writer.folder)})
        self.pod.config_path = self.writer.config_path
        self.key_folder = self.writer.folder / "keys"
        self.key_folder.mkdir(mode=0o700)
        self.trust(self.keys[0])
        tokens.write_jwks(self.key_folder / "new.json", [self.keys[1]])
        assert run("migrate", "--config", self.writer.config_path, env=self.writer.env).returncode == 0
        database.run_file(ROOT / "config/demo.sql")
        for server in (self.writer, self.pod):
            server.own_port = free_port()
            server.start()
        self.bearer = tokens.mint(self.keys[0], ttl=3600, scope="entitlement:write")
        (folder / "backup").mkdir(parents=True)
        self.operator = Operator(
            folder / "operator", database, {"freshet": self.writer, "freshet@query": self.pod},
            f"http://127.0.0.1:{self.writer.port}", FRESHET_TOKEN=self.bearer, BACKUP=folder / "backup", KEYS=self.key_folder,
            NEW_TOKEN=tokens.mint(self.keys[1], ttl=3600), TENANT_TOKEN=tokens.mint(self.keys[0], "acme", ttl=3600))

    def trust(self, *keys):
        tokens.write_jwks(self.key_folder / "jwks.json", keys)

    def follow(self, title, **variables):
        self.operator.env.update({name: str(value) for name, value in variables.items()})
        return self.operator.run(PAGE, PAGE.under(title, MARK))


@pytest.fixture(scope="module")
def here(module_serve, postgres, tmp_path_factory):
    database = postgres.create_database()
    made = Installation(module_serve, database, tmp_path_factory.mktemp("installation"))
    yield made
    made.operator.close()
    module_serve.stop()
    database.drop()


def test_the_commands_of_every_alert_run(here):
    here.follow("First look")
    here.follow("Alerts")


def test_a_failed_event_is_published_by_the_outboxs_procedure(here):
    with here.writer.client(here.bearer) as client:
        assert commit(client, delta("FEATURE", {"failed": 1})).status == 200
    eventually(lambda: here.database.value("select count(*) from refdata.outbox_event where not published") == 0)
    here.database.query("update refdata.outbox_event set published = false, published_at = null, failed_at = now(),"
                        " last_error = 'too large' where id = (select max(id) from refdata.outbox_event)")
    printed = here.follow("Replay from the outbox")
    assert "too large" in printed
    eventually(lambda: here.database.value("select count(*) from refdata.outbox_event where not published") == 0)


def test_c5_a_key_is_rotated_by_its_procedure(here):
    """Both keys work, then only the new one; the pod beside it follows as well."""
    try:
        here.follow("Rotation of keys")
        with here.pod.client(here.bearer) as client:
            eventually(lambda: client.get(path("COUNTRY", "/version")).status == 401)
        with here.pod.client(here.operator.env["NEW_TOKEN"]) as client:
            assert client.get(path("COUNTRY", "/version")).status == 200
    finally:
        here.trust(*here.keys)
    for server in (here.writer, here.pod):
        with server.client(here.bearer) as client:
            eventually(lambda: client.get(path("COUNTRY", "/version")).status == 200)  # pylint: disable=cell-var-from-loop


def test_r15_a_dictionary_is_added_by_its_procedure(here):
    assert '"North"' in here.follow("A new dictionary")
    with here.pod.client(here.bearer) as client:
        eventually(lambda: client.get(item_path("REGION", "north")).status == 200)


def test_c11_a_tenant_is_added_by_its_procedure(here):
    printed = here.follow("A new tenant")
    assert "true" in printed and "no other tenant reads it" in printed


def test_the_commands_of_an_upgrade_and_of_a_full_disk_run(here):
    assert "freshet " in here.follow("Upgrade and rollback")
    here.follow("A full disk")


def test_n2_a_dead_letter_is_decided_by_its_procedure(here):
    publish(here.database, (b"k", {"event-id": "x"}, b"no event"))
    eventually(lambda: letters(here.database, status="DEAD"))
    assert "terminated" in here.follow("Poison message and dead letters")
    assert [row["status"] for row in letters(here.database)] == ["DISCARDED"]
    assert here.database.value("select note from notification.dlq_audit") == "not ours: no event of an entitlement"


def test_r10_a_stuck_update_is_freed_by_its_procedure(here):
    with contextlib.closing(here.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("set application_name = 'forgotten'; begin; select 1 from refdata.dictionary_meta"
                       " where tenant_id = 'demo' and dict_code = 'FEATURE' for update")
        body = delta("FEATURE", {"stuck": 1})
        with here.writer.client(here.bearer) as client:
            eventually(lambda: client.post(updates_path(), body).status == 202)
        assert "COMMITTED" in here.follow("A stuck update", STUCK_EVENT=body["eventId"], BLOCKER="forgotten")


def test_r14_a_backup_is_restored_by_its_procedure_while_a_pod_serves(here):
    """What is newer than the backup is lost, and the pod notices it; reads of it go on all the time."""
    page = PAGE.under("Backup and restore", MARK)
    with here.writer.client(here.bearer) as client:
        assert commit(client, delta("FEATURE", {"saved": 1})).status == 200
        here.operator.run(PAGE, page[:1])
        assert commit(client, delta("FEATURE", {"newer": 1})).status == 200
    with here.pod.client(here.bearer) as client:
        eventually(lambda: client.get(item_path("FEATURE", "newer")).status == 200)
    with Threads() as threads:
        threads.add(read_all_the_time, here)
        here.operator.run(PAGE, page[1:])
    with here.pod.client(here.bearer) as client:
        eventually(lambda: client.get(item_path("FEATURE", "newer")).status == 404)
        assert client.get(item_path("FEATURE", "saved")).status == 200
    assert here.pod.metrics()['dict_version_regressions_total{dict_code="FEATURE"}'] >= 1


def read_all_the_time(stopping, here):
    """At the pod: never an error, and never an empty dictionary."""
    with here.pod.client(here.bearer) as client:
        while not stopping.wait(0.01):
            answer = client.get(item_path("FEATURE", "saved"))
            assert answer.status == 200, (answer.status, answer.body)
