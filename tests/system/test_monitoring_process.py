"""C8, O5, I7: metrics of a process as a whole, and of what others have or have not done."""
import pytest

from lib import items
from lib.config import base_config, merge
from lib.refdata import own_refdata_db, pod, refdata_db  # noqa: F401
from lib.wait import eventually

REFUSED = 'freshet_config_reloads_total{result="refused"}'
ACCEPTED = 'freshet_config_reloads_total{result="accepted"}'
IN_FORCE_SINCE = "freshet_config_last_reload_success_timestamp_seconds"


def lag(server, database):
    """Commands that wait in a database."""
    address = database.jdbc_url.split("://")[1].split("?")[0]
    return server.metrics().get(f'bus_lag{{topic="refdata.commands",group="refdata-apply",database="{address}"}}')


def post_updates(client, code, count):
    for number in range(count):
        update = {"dictCode": code, "eventType": "DELTA", "items": [{"key": "k", "op": "UPSERT", "payload": number}]}
        eventually(lambda u=update: client.post("/v1/tenants/demo/updates", u).status == 202)  # 503: not migrated yet


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
        assert sum(name.startswith("freshet_role_up{") for name in samples) == len(roles) == 11
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
    post_updates(commands.client(token()), "D", 3)
    for server in (commands, *others):
        eventually(lambda server=server: lag(server, refdata_db) == 3)
    serve(refdata_db, pod("D"), args=("--roles", "apply"))
    for server in (commands, *others):
        eventually(lambda server=server: lag(server, refdata_db) == 0)


def test_each_of_several_databases_has_its_own_lag(serve, refdata_db, postgres, token):
    """R15, R20: commands wait in one of two databases, and the empty one does not hide it."""
    other = postgres.create_database()
    block = {"username": other.user, "passwordFromEnv": "FRESHET_TEST_PG_PASSWORD"}
    settings = pod("D", {"code": "E", "postgres": "other"})
    settings["refdata"]["postgres"] = [{"name": "main", "jdbcUrl": refdata_db.jdbc_url, **block},
                                       {"name": "other", "jdbcUrl": other.jdbc_url, **block}]
    server = serve(refdata_db, settings, args=("--roles", "command"))
    client = server.client(token())
    post_updates(client, "D", 3)
    post_updates(client, "E", 1)
    eventually(lambda: (lag(server, refdata_db), lag(server, other)) == (3, 1))
    server.stop()
    other.drop()


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
