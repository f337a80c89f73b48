"""C5, R2: scopes of dictionaries, for all and one by one, and who asked for an update."""
import pytest

from lib import on_engines
from lib.apply import command, publish
from lib.config import merge
from lib.refdata import TENANT, item_path, module_refdata_db, path, pod, write_builtin  # noqa: F401
from lib.wait import eventually
from lib.writers import chunks, delta, status_path, updates_path

DICTIONARIES = ["PLAIN", {"code": "OPEN", "readScope": "", "writeScope": ""},
                {"code": "OWN", "readScope": "own:read", "writeScope": "own:write"}]
FOR_ALL = {"refdata": {"security": {"readScope": "refdata:read", "writeScope": "refdata:write"}}}
ROUTES = ["/items/a", "/items/nobody", "/items?keys=a", "/all", "/all?limit=1", "/version", "/watch"]


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):  # noqa: F811
    for code in ["PLAIN", "OPEN", "OWN"]:
        write_builtin(module_refdata_db, code, {"a": "secret"}, 1)
    return module_serve(module_refdata_db, merge(pod(*DICTIONARIES), FOR_ALL))


def refused(answer, scope):
    assert (answer.status, answer.code) == (403, "INSUFFICIENT_SCOPE"), answer.body
    assert scope in answer.json()["message"] and b"secret" not in answer.body
    assert "x-dict-version" not in answer.headers
    return True


@pytest.mark.parametrize("rest", ROUTES)
def test_every_read_needs_the_dictionarys_scope_loaded_or_not(server, token, rest):
    """C5: 403 without a byte of data; X-Min-Version, which may read from PostgreSQL, changes nothing."""
    with server.client(token(scope="refdata:write own:write refdata:rea refdata:read2")) as stranger:
        for code, scope in [("PLAIN", "refdata:read"), ("OWN", "own:read")]:
            assert refused(stranger.get(path(code, rest)), scope)
            assert refused(stranger.get(path(code, rest), X_Min_Version="99"), scope)
        if rest != "/watch":
            assert stranger.get(path("OPEN", rest)).status in (200, 404)
    if rest == "/watch":
        return
    with server.client(token(scope="other refdata:read own:read")) as reader:
        for code in ["PLAIN", "OWN", "OPEN"]:
            assert reader.get(path(code, rest)).status in (200, 404)


def test_updates_and_their_status_need_the_write_scope(server, token):
    """C5: refused before the rest of the body, whether it is parsed at once or by a worker; nothing is written."""
    large = delta("OWN", {f"k{number}": "x" * 1000 for number in range(100)})
    with server.client(token(scope="own:read refdata:write")) as stranger:
        for body in [delta("OWN", {"b": 1}), large, {"dictCode": "OWN"}]:
            assert refused(stranger.post(updates_path(), body), "own:write")
        assert stranger.post(updates_path(), delta("PLAIN", {"b": 1})).status == 202
        assert stranger.post(updates_path(), delta("OPEN", {"b": 1})).status == 202
    with server.client(token(scope="own:write")) as writer:
        made = writer.post(updates_path(), large)
        assert made.status == 202
        there = status_path(made.json()["eventId"])
        assert writer.get(there).status == 200
    with server.client(token(scope="own:read refdata:write")) as stranger:
        assert refused(stranger.get(there), "own:write")


def test_hydration_does_not_read_around_the_scope(server, token):
    """H6: a question carries no scopes, so a dictionary that needs one is not found, whoever asks."""
    with server.client(token(scope="refdata:read own:read")) as client:
        assert client.get("/v1/hydration/dictionary_item/OPEN/a").status == 200
        for code in ["PLAIN", "OWN"]:
            assert client.get(f"/v1/hydration/dictionary_item/{code}/a").code == "ENTITY_NOT_FOUND"


def test_a_reload_changes_the_scope_of_a_dictionary_in_memory(serve, module_refdata_db, token):  # noqa: F811
    server = serve(module_refdata_db, pod({"code": "PLAIN", "readScope": "scope:one"}), args=("--roles", "query"))
    one, two = server.client(token(scope="scope:one")), server.client(token(scope="scope:two"))
    assert one.get(item_path("PLAIN", "a")).status == 200
    assert refused(two.get(item_path("PLAIN", "a")), "scope:one")
    server.write_config(server.config_path.read_text().replace("scope:one", "scope:two"))
    server.sighup()
    eventually(lambda: two.get(item_path("PLAIN", "a")).status == 200)
    assert refused(one.get(item_path("PLAIN", "a")), "scope:two")


# ---- who asked (R2) ----

def asked_by(client, event_id):
    return client.get(status_path(event_id)).json()["requestedBy"]


@pytest.mark.parametrize("mode", ["ASYNC", "WAIT_COMMIT"])
@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "who"}])
def test_an_update_says_who_asked_for_it(server, token, mode, headers):
    with server.client(token(subject="ann")) as ann:
        headers = {name: f"{value}-{mode}" for name, value in headers.items()}
        made = ann.post(updates_path(mode), delta("OPEN", {"by": "ann"}), **headers)
        assert made.status in (200, 202), made.body
        made = made.json()["eventId"]
        part = chunks("OPEN", {"a": 1, "b": 2}, 2)[0]
        assert ann.post(updates_path(), part).status == 202
        assert (asked_by(ann, made), asked_by(ann, part["eventId"])) == ("ann", "ann")
    with server.client(token(subject=None)) as nobody:
        made = nobody.post(updates_path(mode), delta("OPEN", {"by": None})).json()["eventId"]
        assert asked_by(nobody, made) is None


def test_a_command_that_nobody_posted_says_how_it_came(server, module_refdata_db, token):  # noqa: F811
    sent = command("OPEN", [{"key": "a", "op": "UPSERT", "payload": 1}])
    publish(module_refdata_db, [sent], requests=False)
    topic = on_engines.topic(module_refdata_db.name) if on_engines.carries_commands() else "refdata.commands"
    with server.client(token()) as client:
        eventually(lambda: client.get(status_path(sent["eventId"])).status == 200)
        assert asked_by(client, sent["eventId"]) == f"kafka:{topic}"
