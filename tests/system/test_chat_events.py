"""M4, O4, O6: event_log as a read model of the caller's own, what is kept of it, and events that can't be published."""
import uuid
from datetime import datetime, timedelta, timezone

import pytest

from lib.chat import CHAT, FAST, Session, effects, fresh, states
from lib.config import merge
from lib.wait import eventually
from lib.wire import Client

LABELS = '{module="chat",event_type="message_created"}'
AGENTS = {"chat": {"agents": [{"name": "a", "keywords": ["aa"], "reply": "a"}, {"name": "b", "keywords": ["bb"], "reply": "b"}]}}


@pytest.fixture(scope="module")
def server(module_serve, module_database):
    return module_serve(module_database, merge(FAST, AGENTS), args=CHAT)


@pytest.fixture
def chat(server, token, module_database):
    """aa, bb, aa: six messages and two switches, all of them in the log."""
    with Session(server, token("demo")) as one:
        for content in ("aa", "bb", "aa"):
            one.say(content)
        eventually(lambda: effects(module_database, one.session)[3] == 8)
        yield one


def ask(chat, query=""):
    answer = chat.client.get(f"/my/projects/{chat.project}/events{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def today():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def test_m4_events_are_those_of_the_stream_with_counts(chat):
    found = ask(chat)
    with chat.stream() as stream:
        assert found["events"] == stream.until(8)
    assert found["counts"] == {"agent_switched": 2, "message_created": 6}
    assert found["next_cursor"] is None
    day = found["events"][0]["created_at"][:10]
    if day == found["events"][-1]["created_at"][:10]:
        assert found["days"] == [{"day": day, "event_type": "agent_switched", "count": 2},
                                 {"day": day, "event_type": "message_created", "count": 6}]


def test_m4_filters(chat, module_database):
    switches = ask(chat, "?event_type=agent_switched")
    assert [event["sequence"] for event in switches["events"]] == [4, 7] and switches["counts"] == {"agent_switched": 2}
    assert ask(chat, "?event_type=none") == {"events": [], "next_cursor": None, "counts": {}, "days": []}
    times = [event["created_at"] for event in ask(chat)["events"]]
    part = ask(chat, f"?from={times[2]}&to={times[5]}")
    assert [event["sequence"] for event in part["events"]] == [3, 4, 5]
    assert part["counts"] == {"agent_switched": 1, "message_created": 2}
    module_database.query("update chat.event_log set created_at = created_at - interval '1 day' where session_id = %s"
                          " and sequence < 3", (chat.session,))
    days = ask(chat)["days"]
    assert sum(day["count"] for day in days) == 8 and len({day["day"] for day in days}) >= 2
    for extreme in ("?from=0000-01-01T00:00:00Z", "?to=9999-12-31T23:59:59Z"):
        assert len(ask(chat, extreme)["events"]) == 8


def test_m4_pages(chat):
    whole = ask(chat)["events"]
    for limit in (1, 3, 7, 8):
        events, cursor = [], ""
        while cursor is not None:
            page = ask(chat, f"?limit={limit}{cursor}")
            assert len(page["events"]) <= limit and ("counts" in page) == (cursor == "")
            events += page["events"]
            cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
        assert events == whole


def test_m4_a_page_is_bounded_in_bytes(server, token, module_database):
    with Session(server, token("demo", subject="long")) as chat:
        for number in range(20):
            chat.say(f"{number:02}" + "x" * 32000)
        eventually(lambda: states(module_database, chat.session) == ["published"] * 40)
        page = ask(chat)
        assert 32 <= len(page["events"]) < 36 and page["counts"] == {"message_created": 40}
        rest = ask(chat, f"?cursor={page['next_cursor']}")
        assert [event["sequence"] for event in page["events"] + rest["events"]] == list(range(1, 41))
        assert rest["next_cursor"] is None


def test_m4_only_the_callers_sessions(chat, server, token):
    for tenant, subject in (("demo", "bob"), ("other", "alice")):
        with Session(server, token(tenant, subject=subject), chat.project) as other:
            assert ask(other)["events"] == []
            other.say("theirs")
            eventually(lambda: len(ask(other)["events"]) == 2)  # pylint: disable=cell-var-from-loop
    assert len(ask(chat)["events"]) == 8
    with Session(server, token("demo")) as elsewhere:
        assert ask(elsewhere)["events"] == []


@pytest.mark.parametrize("query, field", [("from=x", "from"), ("to=2026-01-01", "to"), ("limit=0", "limit"), ("limit=1001", "limit"),
                                          ("cursor=x", "cursor"), ("cursor=1.x", "cursor"), ("cursor=-1.7b0a1d4e-3c52-4f68-9a1b-2d3e4f5a6b7c", "cursor"),
                                          ("cursor=9223372036854775807.7b0a1d4e-3c52-4f68-9a1b-2d3e4f5a6b7c", "cursor"), ("x=1", "x")])
def test_c6_bad_questions(server, token, query, field):
    with Client(server.port, token("demo")) as client:
        answer = client.get(f"/my/projects/{fresh()}/events?{query}")
        assert (answer.status, answer.json()["field"]) == (400, field)
        assert client.get("/my/projects/x/events").json()["field"] == "project_id"


def test_o4_a_payload_that_is_no_event_fails_at_once_and_holds_up_nobody(server, token, module_database):
    with Session(server, token("demo")) as chat:
        with module_database.connect() as connection, connection.cursor() as cursor:
            # What is written by nobody of ours: its session is locked, so that all three come at once.
            cursor.execute("insert into chat.chat_sessions (tenant_id, session_id, project_id, user_id, last_sequence, last_at,"
                           " created_at) values ('demo', %s, %s, %s, 3, now(), now())",
                           (chat.session, chat.project, str(uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_OID, "demo"), "alice"))))
            for sequence, payload in ((1, "[]"), (2, '{"event_id":"x"}'), (3, None)):
                event_id = fresh()
                cursor.execute("insert into chat.event_outbox (id, aggregate_type, aggregate_id, project_id, user_id, event_type,"
                               " payload, created_at, tenant_id, sequence) select %s, 'chat_session', session_id, project_id,"
                               " user_id, 'message_created', %s, now(), tenant_id, %s from chat.chat_sessions where session_id = %s",
                               (event_id, payload or f'{{"event_id":"{event_id}"}}', sequence, chat.session))
        eventually(lambda: states(module_database, chat.session) == ["failed", "failed", "published"])
        assert module_database.query("select distinct retry_count, last_error from chat.event_outbox where status = 'failed'"
                                     " and aggregate_id = %s", (chat.session,)) == [(1, "the payload is not an event")]
        eventually(lambda: len(server.logs(event="outbox_event_dead_lettered", module="chat", sessionId=chat.session)) == 2)
        assert server.metrics()["outbox_dead_lettered_total" + LABELS] >= 2
        chat.say("goes on")
        with chat.stream() as stream:
            assert [event["sequence"] for event in stream.until(5)] == [3, 4, 5]
        with chat.stream(1) as stream:  # between two of what there is
            assert [event["sequence"] for event in stream.until(5)] == [3, 4, 5]


def test_o6_what_is_old_goes(serve, database, token):
    """event_log by its own setting, the outbox by the engine's; messages stay."""
    server = serve(database, merge(FAST, {"chat": {"retention": {"event-log": "1h", "cleanup-interval": "20ms"},
                                                   "outbox": {"retention": "1h", "cleanup-interval": "20ms"}}}), args=CHAT)
    with Session(server, token("demo")) as chat:
        for number in range(3):
            chat.say(str(number))
        eventually(lambda: states(database, chat.session) == ["published"] * 6)
        old = datetime.now(timezone.utc) - timedelta(hours=2)
        database.query("update chat.event_log set created_at = %s where session_id = %s and sequence <= 4", (old, chat.session))
        database.query("update chat.event_outbox set published_at = %s where aggregate_id = %s and sequence <= 2", (old, chat.session))
        eventually(lambda: effects(database, chat.session) == (1, 6, 4, 2))
        assert database.value("select forgotten_sequence from chat.chat_sessions where session_id = %s", (chat.session,)) == 4
        assert [event["sequence"] for event in ask(chat)["events"]] == [5, 6]
        with chat.stream(4) as stream, chat.stream(3) as too_old:
            assert [event["sequence"] for event in stream.until(6)] == [5, 6]
            assert too_old.head.status == 410
        assert len(chat.history()) == 6
        assert server.metrics()['freshet_retention_deleted_total{table="chat.event_log"}'] == 4
