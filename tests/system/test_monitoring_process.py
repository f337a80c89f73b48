"""C8, O5, I7: metrics of a process as a whole, and of what others have or have not done."""
import pytest

from lib import items
from lib.config import base_config, merge
from lib.refdata import own_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually

LAG = 'bus_lag{topic="refdata.commands",group="refdata-apply"}'
REFUSED = 'freshet_config_reloads_total{result="refused"}'
ACCEPTED = 'freshet_config_reloads_total{result="accepted"}'
IN_FORCE_SINCE = "freshet_config_last_reload_success_timestamp_seconds"


@pytest.mark.tsan
def test_a_refused_configuration_is_counted_and_shown_until_one_is_accepted(serve, refdata_db, jwks_path):
    server = serve(refdata_db, pod("D"))
    first = server.metrics()
    assert (first[ACCEPTED], first[REFUSED], first["freshet_config_last_reload_successful"]) == (0, 0, 1)
    server.write_config("http: [this is not a configuration")
    eventually(lambda: server.metrics()[REFUSED] == 1)
    refused = server.metrics()
    assert refused["freshet_config_last_reload_successful"] == 0
    assert refused[IN_FORCE_SINCE] == first[IN_FORCE_SINCE]
    server.write_config(merge(base_config(refdata_db, jwks_path), pod("D", "E")))
    eventually(lambda: server.metrics()[ACCEPTED] >= 1)
    accepted = server.metrics()
    assert accepted["freshet_config_last_reload_successful"] == 1 and accepted[REFUSED] == 1
    assert accepted[IN_FORCE_SINCE] > first[IN_FORCE_SINCE]


def test_roles_and_components_are_shown_as_in_health(serve, own_postgres, own_refdata_db):
    """C8: while PostgreSQL is down, and again."""
    server = serve(own_refdata_db, pod("D"))

    def shown():
        with server.client() as client:
            health = client.get("/actuator/health").json()
        samples = server.metrics()
        roles = {role: samples[f'freshet_role_up{{role="{role}"}}'] for role in health["roles"]}
        components = {name: samples[f'freshet_component_up{{component="{name}"}}'] for name in health["components"]
                      if not name.startswith("dictionary:")}
        assert roles == {name: float(value["status"] == "UP") for name, value in health["roles"].items()}
        assert components == {name: float(health["components"][name]["status"] == "UP") for name in components}
        assert sum(name.startswith("freshet_role_up{") for name in samples) == len(roles) == 10
        return set(roles.values()), components

    eventually(lambda: shown() == ({1.0}, {"postgres:main": 1.0, "postgres:store": 1.0, "auth:keys": 1.0}))
    own_postgres.stop()
    eventually(lambda: shown()[1] == {"postgres:main": 0.0, "postgres:store": 0.0, "auth:keys": 1.0})
    assert server.metrics()['freshet_role_up{role="apply"}'] == 0
    own_postgres.start()
    eventually(lambda: shown()[0] == {1.0})


def test_the_lag_of_a_topic_is_seen_from_any_process_also_when_nobody_applies(serve, refdata_db, token):
    """R20: three commands wait; a process that accepts, one that reads and one of another module show them."""
    commands = serve(refdata_db, pod("D"), args=("--roles", "command"))
    others = [serve(refdata_db, pod("D"), args=("--roles", role)) for role in ("query", "intake")]
    client = commands.client(token())
    for number in range(3):
        answer = client.post("/v1/tenants/demo/updates", {
            "dictCode": "D", "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": number}]})
        assert answer.status == 202, answer.body
    for server in (commands, *others):
        eventually(lambda server=server: server.metrics().get(LAG) == 3)
    serve(refdata_db, pod("D"), args=("--roles", "apply"))
    for server in (commands, *others):
        eventually(lambda server=server: server.metrics().get(LAG) == 0)


def test_the_size_of_a_table_of_keys_is_shown(serve, refdata_db, token):
    """I7: by the server's statistics, which a process reads when it starts and every half minute."""
    first = serve(refdata_db)
    client = first.client(token(subject="u_1"))
    for _ in range(7):
        assert items.post(client, items.item(), items.fresh("key")).status == 201
    first.stop()  # a connection that ends reports its statistics
    counted = "select pg_stat_get_live_tuples('intake.idempotency_keys'::regclass)"
    eventually(lambda: refdata_db.query(counted) == [(7,)])
    second = serve(refdata_db, args=("--roles", "intake"))
    eventually(lambda: second.metrics().get('idempotency_keys{table="intake.idempotency_keys"}') == 7)
    assert second.metrics()['idempotency_table_bytes{table="intake.idempotency_keys"}'] > 0
