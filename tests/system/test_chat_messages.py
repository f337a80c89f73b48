"""M1, M4: a message, its answer and their events are committed together; the history is in the order of the sequence."""
import re
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.chat import CHAT, FAST, Session, effects, fresh, path, refusing, states
from lib.wait import eventually
from lib.wire import Client

UUID = "7b0a1d4e-3c52-4f68-9a1b-2d3e4f5a6b7c"  # always the same: tests have the names of their parameters
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
OID_SPACE = uuid.NAMESPACE_OID


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, FAST, args=CHAT)


@pytest.fixture
def chat(server, token):
    with Session(server, token("demo")) as one:
        yield one


# ---- M1 ----

def test_a_token_without_sub_is_no_user_and_has_no_chats(server, token):
    """C5: two of them would read each other's sessions."""
    with Session(server, token("demo", subject=None)) as nobody:
        answers = [nobody.post(), nobody.page(), nobody.client.get(path(nobody.project, nobody.session, "/stream")),
                   nobody.client.get(f"/my/projects/{nobody.project}/events")]
    for answer in answers:
        assert (answer.status, answer.code) == (403, "INSUFFICIENT_SCOPE")
        assert "sub" in answer.json()["message"]


@pytest.mark.tsan
def test_m1_a_message_is_answered_and_kept(chat, module_database):
    said = chat.say("Привет, \"мир\" \n 🌍")
    assert list(said) == ["message_id", "session_id", "sequence", "created_at", "agent", "routing_score", "reply"]
    assert uuid.UUID(said["message_id"]) and TIME.fullmatch(said["created_at"])
    assert (said["session_id"], said["sequence"], said["agent"], said["routing_score"]) == (chat.session, 1, "assistant", 0)
    assert said["reply"] == "Привет, \"мир\" \n 🌍"
    mine, answer = chat.history()
    assert mine == {"message_id": said["message_id"], "sequence": 1, "role": "user", "content": said["reply"], "agent": None,
                    "routing_score": None, "created_at": said["created_at"]}
    assert (answer["role"], answer["sequence"], answer["agent"]) == ("assistant", 2, "assistant")
    assert answer["created_at"] > mine["created_at"]
    eventually(lambda: states(module_database, chat.session) == ["published"] * 2)
    assert effects(module_database, chat.session) == (1, 2, 2, 2)


def test_m1_rows_carry_who_and_where(chat, module_database):
    chat.say()
    user = str(uuid.uuid5(uuid.uuid5(OID_SPACE, "demo"), "alice"))
    row = (chat.project, user, "demo")
    for table, session in (("messages", "session_id"), ("chat_sessions", "session_id"), ("event_outbox", "aggregate_id")):
        assert module_database.query(f"select distinct project_id::text, user_id::text, tenant_id from chat.{table}"
                                     f" where {session} = %s", (chat.session,)) == [row]
    assert module_database.query("select distinct aggregate_type, event_type, retry_count, payload ->> 'event_id' = id::text"
                                 " from chat.event_outbox where aggregate_id = %s", (chat.session,)) == [
        ("chat_session", "message_created", 0, True)]


def test_m1_a_subject_that_is_a_uuid_is_the_user(server, token, module_database):
    me = str(uuid.uuid4())
    with Session(server, token("demo", subject=me.upper())) as chat:
        chat.say()
        assert module_database.value("select user_id::text from chat.chat_sessions where session_id = %s", (chat.session,)) == me


def test_m1_the_seeds_indexes_are_there(module_database, server):
    found = {re.search(r"\((.*?)\)", row[0])[1] for row in module_database.query(
        "select indexdef from pg_indexes where schemaname = 'chat' and tablename = 'event_outbox'")}
    assert {"status, next_retry_at, created_at", "aggregate_id, created_at", "project_id, created_at",
            "user_id, created_at"} <= found


@pytest.mark.parametrize("table, condition", [
    ("chat.chat_sessions", "true"),
    ("chat.messages", "new.role = 'user'"),
    ("chat.messages", "new.role = 'assistant'"),
    ("chat.event_outbox", "new.status = 'pending' and new.sequence % 2 = 1"),
    ("chat.event_outbox", "new.status = 'pending' and new.sequence % 2 = 0"),
    ("chat.idempotency_keys", "true"),
])
@pytest.mark.parametrize("is_first", [True, False])
def test_m1_a_failure_at_any_step_leaves_nothing(server, token, module_database, table, condition, is_first):
    with Session(server, token("demo")) as chat:
        if not is_first:
            chat.say("before")
            eventually(lambda: states(module_database, chat.session) == ["published"] * 2)
        before = effects(module_database, chat.session)
        with refusing(module_database, table, condition):
            refused = chat.post("lost", key="k1")
            assert (refused.status, refused.code) == (500, "INTERNAL_ERROR")
            assert b"boom" not in refused.body
        assert effects(module_database, chat.session) == before
        assert chat.say("kept", key="k1")["sequence"] == (1 if is_first else 3)
        assert [each["content"] for each in chat.history()] == ([] if is_first else ["before"] * 2) + ["kept"] * 2


@pytest.mark.parametrize("place, kept", [("before_commit", False), ("after_commit", True)])
def test_m1_a_process_that_dies_leaves_all_or_nothing(serve, database, token, place, kept):
    armed = serve(database, FAST, args=CHAT, env={"FRESHET_FAILPOINTS": f"chat.{place}=kill#1"})
    with Session(armed, token("demo")) as chat:
        with pytest.raises(OSError):
            chat.post("hello", key="once")
        assert effects(database, chat.session)[:3] == ((1, 2, 2) if kept else (0, 0, 0))
        heir = serve(database, FAST, args=CHAT)
        with Session(heir, token("demo"), chat.project, chat.session) as again:
            assert again.say("hello", key="once")["sequence"] == 1
            eventually(lambda: states(database, chat.session) == ["published"] * 2)
            assert effects(database, chat.session) == (1, 2, 2, 2)


def test_m1_a_session_is_its_first_users(server, token, chat, module_database):
    """Others get 404, whatever they ask for; nothing of theirs is written."""
    chat.say("mine")
    others = [(token("demo", subject="bob"), chat.project), (token("demo"), fresh())]
    for bearer, project in others:
        with Session(server, bearer, project, chat.session) as other:
            for answer in (other.post("yours"), other.page()):
                assert (answer.status, answer.json()) == (404, {"code": "SESSION_NOT_FOUND", "message": "no such session"})
            with other.stream() as stream:
                assert (stream.head.status, stream.refusal()["code"]) == (404, "SESSION_NOT_FOUND")
    assert [each["content"] for each in chat.history()] == ["mine", "mine"]
    assert effects(module_database, chat.session)[:3] == (1, 2, 2)


def test_c11_tenants_may_have_the_same_session(server, token, chat):
    chat.say("demo's")
    with Session(server, token("other"), chat.project, chat.session) as other:
        assert other.page().status == 404
        assert other.say("other's")["sequence"] == 1
        assert [each["content"] for each in other.history()] == ["other's"] * 2
    assert [each["content"] for each in chat.history()] == ["demo's"] * 2


@pytest.mark.parametrize("body, field", [
    ({}, "content"), ({"content": ""}, "content"), ({"content": 1}, "content"), ({"content": None}, "content"),
    ({"content": "a\x00b"}, "content"), ({"content": "x" * (32 * 1024 + 1)}, "content"), ([], None), ({"content": "ж" * 16385}, "content"),
])
def test_c6_what_is_no_message(chat, module_database, body, field):
    answer = chat.post(body)
    assert (answer.status, answer.code, answer.json().get("field")) == (400, "BAD_REQUEST", field), answer.body
    assert effects(module_database, chat.session) == (0, 0, 0, 0)


@pytest.mark.parametrize("content", ["", "x" * (32 * 1024 + 1)])
def test_c6_a_message_that_is_too_long_is_refused_in_one_way(chat, content):
    assert chat.post({"content": content}).json()["message"] == "must be 1 to 32768 bytes"


def test_c6_the_longest_message(chat):
    assert chat.say("x" * 32 * 1024)["reply"] == "x" * 32 * 1024


@pytest.mark.parametrize("project, session, field", [("x", UUID, "project_id"), (UUID, "1", "session_id"), (UUID, UUID[:-1], "session_id")])
def test_c6_ids_are_uuids(server, token, project, session, field):
    with Client(server.port, token("demo")) as client:
        for answer in (client.post(path(project, session, "/message"), {"content": "x"}),
                       client.get(path(project, session, "/messages")), client.get(path(project, session, "/stream"))):
            assert (answer.status, answer.code, answer.json()["field"]) == (400, "BAD_REQUEST", field)


def test_i2_keys_are_a_sessions_own(server, token, chat):
    first = chat.post("hello", key="k")
    again = chat.post("hello", key="k")
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")
    conflict = chat.post("other", key="k")
    assert (conflict.status, conflict.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")
    with Session(server, token("demo"), chat.project) as other:
        assert other.say("hello", key="k")["message_id"] != first.json()["message_id"]
    assert len(chat.history()) == 2


# ---- M4: history ----

def test_m4_pages_make_the_whole_history(chat):
    for number in range(7):
        chat.say(str(number))
    whole = chat.history()
    assert [each["content"] for each in whole] == [str(number // 2) for number in range(14)]
    for limit in (1, 2, 3, 13, 14):
        assert chat.history(limit) == whole
    assert chat.page("?limit=14").json()["next_cursor"] is None
    assert chat.page("?cursor=999").json() == {"messages": [], "next_cursor": None}


def test_m4_a_page_is_bounded_in_bytes(chat):
    for _ in range(20):
        chat.say("x" * 32000)
    first = chat.page("?limit=1000").json()
    assert 30 <= len(first["messages"]) < 40 and first["next_cursor"]
    assert len(chat.history(1000)) == 40


@pytest.mark.parametrize("query, field", [("?limit=0", "limit"), ("?limit=1001", "limit"), ("?limit=x", "limit"),
                                          ("?cursor=-1", "cursor"), ("?cursor=a", "cursor"), ("?x=1", "x")])
def test_m4_bad_pages(chat, query, field):
    chat.say()
    answer = chat.page(query)
    assert (answer.status, answer.json()["field"]) == (400, field)
    assert "9223372036854775807" not in answer.json()["message"]


def test_m4_an_unknown_session_is_404(chat):
    assert (chat.page().status, chat.page().code) == (404, "SESSION_NOT_FOUND")


def test_m1_writers_at_once_have_one_order(server, token, module_database):
    project, session = fresh(), fresh()

    def write(number):
        with Session(server, token("demo"), project, session) as chat:
            return [chat.say(f"{number}.{turn}")["sequence"] for turn in range(8)]
    with ThreadPoolExecutor(8) as pool:
        mine = list(pool.map(write, range(8)))
    assert sorted(sum(mine, [])) == list(range(1, 129, 2))
    with Session(server, token("demo"), project, session) as chat:
        whole = chat.history()
    assert [each["sequence"] for each in whole] == list(range(1, 129))
    times = [each["created_at"] for each in whole]
    assert times == sorted(times) and len(set(times)) == 128
    assert [whole[at]["content"] for at in range(0, 128, 2)] == [whole[at]["content"] for at in range(1, 128, 2)]
    eventually(lambda: states(module_database, session) == ["published"] * 128)
    assert [row[0] for row in module_database.query("select sequence from chat.event_log where session_id = %s"
                                                    " order by sequence", (session,))] == list(range(1, 129))
