"""The runbook's failover, as it is written, on a real standby that was cut off (P3, R14)."""
import uuid

import pytest

from cluster import Cluster
from lib.fixtures import ROOT
from lib.operator import MARK, Operator
from lib.pages import Page
from lib.refdata import item_path, migrated
from lib.wait import eventually
from lib.writers import commit, delta, status_path

pytestmark = [pytest.mark.whole, pytest.mark.embedded]
PAGE = Page(ROOT, ROOT / "docs/RUNBOOK.md")


def test_r14_a_failover_with_a_lost_tail_by_its_procedure(serve, make_pair, jwks_path, tmp_path, token):
    pair = make_pair("jdbc hosts")
    database = migrated(pair, jwks_path, tmp_path)
    cluster = Cluster(serve, database, [[], ["--roles", "query"]]).start()
    writer, pod = cluster.servers
    bearer = token("demo", ttl=3600)
    client, reader = writer.client(bearer), pod.client(bearer)
    assert commit(client, delta("PLAIN", {"kept": 1})).status == 200
    pair.catch_up()
    pair.cut()
    lost = delta("PLAIN", {"lost": 1})
    assert commit(client, lost).status == 200
    eventually(lambda: reader.get(item_path("PLAIN", "lost")).status == 200)
    operator = Operator(tmp_path / "operator", database, {"freshet": writer}, f"http://127.0.0.1:{writer.port}", FRESHET_TOKEN=bearer,
                        OLD=pair.primary.data, STANDBY=pair.standby.data, STANDBY_PORT=pair.standby.port, LOST_EVENT=lost["eventId"])
    try:
        examples = PAGE.under("Failover with a lost tail", MARK)
        for block, _ in examples:  # the dictionaries of this installation
            block.text = block.text.replace("demo/COUNTRY demo/FEATURE", "demo/PLAIN demo/COUNTED")
        printed = operator.run(PAGE, examples)
    finally:
        operator.close()
    assert 'dict_version_regressions_total{dict_code="PLAIN"} 1' in printed and "not there: send it again" in printed
    assert (pair.primary.data / "standby.signal").exists()
    assert (reader.get(item_path("PLAIN", "lost")).status, reader.get(item_path("PLAIN", "kept")).status) == (404, 200)
    assert commit(client, lost).status == 200  # sent again by its eventId
    eventually(lambda: reader.get(item_path("PLAIN", "lost")).status == 200)
    assert client.get(status_path(uuid.uuid4())).status == 404
    pair.now = pair.standby
    pair.primary.start()  # as a standby of the new primary: it has the update too
    eventually(lambda: pair.ask(pair.primary, "select pg_is_in_recovery()"))
    pair.primary, pair.standby = pair.standby, pair.primary
    pair.catch_up()
