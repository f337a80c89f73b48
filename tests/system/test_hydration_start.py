"""H4, C7, C8: a process that hydrates: what it warns of at its start, its health, and what it cleans up."""
import re

import pytest

from lib.freshet import run
from lib.wait import eventually

ALONE = ["--roles", "hydration"]
SETTINGS = {"hydration": {"required": ["item", "ghost", "elsewhere", "dictionary_item"], "outside": ["elsewhere"],
                          "negative_rows_max": 20, "copy_rows_max": 30, "flight_rows_max": 40}}


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, SETTINGS, args=ALONE)


def test_a_required_type_that_nobody_provides_is_warned_about_with_what_to_do(server):
    """Issue 6: a log line for each, none for what freshet itself has; the process starts all the same."""
    told = {line["entity_type"]: line for line in server.logs(event="hydration_type_without_owner")}
    assert told.keys() == {"ghost", "elsewhere"} and {line["level"] for line in told.values()} == {"warn"}
    assert "hydration.outside" in told["ghost"]["advice"] and "bus.events" in told["elsewhere"]["advice"]
    assert server.client().get("/actuator/health").json()["roles"] == {"hydration": {"status": "UP"}}


@pytest.mark.parametrize("setting, name", [("required", "Item"), ("outside", "my-item"), ("outside", "a" * 65), ("required", "1st")])
def test_names_that_no_type_can_have_are_refused_with_their_line(serve, database, setting, name):
    made = serve.make(database, {"hydration": {setting: ["item", name]}})
    told = run("config", "--config", made.config_path, env=made.env)
    assert told.returncode == 1 and re.search(rf":\d+:\d+: hydration\.{setting}: .*'{name}'", told.stderr), told.stderr


def test_what_is_over_or_too_many_goes(server, module_database):
    """H4: the negative cache is bounded in PostgreSQL too, and so are copies and questions under way."""
    module_database.query("""
        insert into hydration.absences select 't', 'item', 'over' || i, '', 0, 0, 'm', now(), now(), now()
          from generate_series(1, 50) i;
        insert into hydration.absences select 't', 'item', i::text, '', 0, 0, 'm', now(), now() + i * interval '1 min',
               now() + i * interval '1 min' from generate_series(1, 50) i;
        insert into hydration.copies select 't', 'item', i::text, '', 1, 2, '{}', 'm', '{}', now(), now() + i * interval '1 min'
          from generate_series(1, 50) i;
        insert into hydration.flights (tenant_id, entity_type, entity_id, subject, begun_at, window_until, asked, mode, fields,
               correlation_ids, negative_ttl_ms, copy_ttl_ms)
        select 't', 'item', i::text, '', now(), now() + i * interval '1 min', 1, 0, '{}', '{}', 1, 1 from generate_series(1, 50) i
        """)
    for table, kept in (("absences", 20), ("copies", 30), ("flights", 40)):
        left = f"select min(entity_id::int), count(*) from hydration.{table} where entity_id !~ 'over'"
        eventually(lambda: module_database.query(left) == [(51 - kept, kept)])
    assert module_database.query("select count(*) from hydration.absences where entity_id ~ 'over'") == [(0,)]


@pytest.mark.parametrize("subject, data", [("", {"a": 1.5}), ("u_1", {"a": 1.5}), ("u_2", {})])
def test_a_copy_that_is_too_old_is_better_than_nothing_to_who_says_so(server, module_database, token, subject, data):
    """H5: degrade hands out what is known, to whom it is known; nobody answers for this type."""
    module_database.query("delete from hydration.copies where tenant_id = 't'")  # as many as are kept: an older one would go
    module_database.query("""
        insert into hydration.copies values ('demo', 'ghost', %s, %s, 3, 2, '{}', 'm', '{"a":1.5,"b":2}',
                                             now() - interval '9 min', now() - interval '1 min')""", ("of-" + subject, subject))
    with server.client(token("demo", subject="u_1")) as client:
        path = f"/v1/hydration/ghost/of-{subject}?mode=partial&fields=a"
        assert client.get(path).status == 503
        answer = client.get(path + "&failure_mode=degrade")
    assert (answer.status, answer.json()["data"], answer.json()["degraded"]) == (200, data, True)
