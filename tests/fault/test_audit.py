"""The audit itself: what it is there to find, it finds. A clean run is tampered with, one thing at a time."""
import contextlib

import pytest

from cluster import Cluster
from lib.refdata import migrated
from lib.wait import eventually
from lib.writers import Threads
from workload import CODES, Workload, check_decisions, check_effects, check_versions, is_settled

DAMAGES = {
    "an accepted update that is not there":
        "delete from refdata.update_request where event_id = (select min(event_id::text)::uuid from refdata.update_request)",
    "an update that is still pending":
        "update refdata.update_request set status = 'PENDING' where event_id ="
        " (select min(event_id::text)::uuid from refdata.update_request)",
    "a version that nobody was told of": "delete from refdata.outbox_event where dict_code = 'PLAIN' and version = 2",
    "a version without an update":
        "update refdata.dictionary_meta set version = version + 1 where dict_code = 'COUNTED'",
    "an effect that came twice": "update counted set n = 2 where k = (select min(k) from counted)",
    "an effect that is missing": "delete from counted where k = (select min(k) from counted)",
    "an update that overtook a later one":
        "update refdata.dictionary_item set payload = '{\"value\": 1}' where dict_code = 'PLAIN' and item_key = 'writer0'",
    "a snapshot of two generations":
        "update refdata.dictionary_item set payload = '{\"generation\": 0}' where dict_code = 'WHOLE' and item_key = 'w3'",
    "a change that was not published": "update refdata.outbox_event set published = false where version = 1",
}


@pytest.fixture(scope="module")
def clean(module_serve, postgres, jwks_path, tmp_path_factory, token):
    """(database, workload) after some seconds without any trouble; the servers are stopped."""
    database = migrated(postgres, jwks_path, tmp_path_factory.mktemp("audit"))
    cluster = Cluster(module_serve, database, [[]]).start()
    workload = Workload(cluster.writable, token("demo"))
    with Threads() as threads:
        workload.start(threads, readers=0)
        eventually(lambda: threads.errors or (len(workload.sent) > 100 and workload.generation > 1))
    eventually(lambda: is_settled(database))
    cluster.servers[0].stop()
    return database, workload


def audit_rows(database, workload):
    is_settled(database)
    check_decisions(database, workload.sent)
    for code in CODES:
        check_versions(database, code)
    check_effects(database, workload)


def test_a_clean_run_passes(clean):
    audit_rows(*clean)


class Tampered:
    """The database as one transaction sees it, which is rolled back at the end."""

    def __init__(self, database):
        self.connection = database.connect()
        self.connection.autocommit = False

    def query(self, sql, args=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else None

    def value(self, sql, args=None):
        return self.query(sql, args)[0][0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(clean, damage):
    database, workload = clean
    tampered = Tampered(database)
    with contextlib.closing(tampered.connection):
        tampered.query(DAMAGES[damage])
        with pytest.raises(AssertionError):
            audit_rows(tampered, workload)
