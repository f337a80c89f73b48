"""M2: who answers is decided by keywords before anything is written; an agent that fails loses no message."""
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.chat import CHAT, FAST, Session, effects, fresh, states
from lib.config import merge
from lib.freshet import run
from lib.wait import PATIENCE, eventually, free_port

FAILURES = {
    "status": lambda handler: handler.answer(500, b"{}"),
    "no json": lambda handler: handler.answer(200, b"<html>"),
    "no reply": lambda handler: handler.answer(200, b'{"answer":"x"}'),
    "a number": lambda handler: handler.answer(200, b'{"reply":7}'),
    "empty": lambda handler: handler.answer(200, b'{"reply":""}'),
    "nul": lambda handler: handler.answer(200, b'{"reply":"a\\u0000b"}'),
    "too long": lambda handler: handler.answer(200, json.dumps({"reply": "x" * 32769}).encode()),
    "endless": lambda handler: handler.answer(200, b"x" * 1_000_000),
    "slow": lambda handler: time.sleep(1.5),  # asked as the hasty one, which has less
    "cut": lambda handler: None,
    "redirect": lambda handler: handler.answer(302, b"", ("Location", "/elsewhere")),
}


class Agent(BaseHTTPRequestHandler):
    """Answers as the content says: one of FAILURES, or a reply to it."""

    def do_POST(self):  # pylint: disable=invalid-name
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        if "hang" in asked["content"]:
            self.server.released.wait(20)
        name = asked["content"].partition(": ")[2]
        if name in FAILURES:
            with contextlib.suppress(OSError):
                FAILURES[name](self)
        else:
            if name == "when told":
                self.server.told.wait(PATIENCE)
            self.answer(200, json.dumps({"reply": f"{name} {asked['user_id']}", "more": [1]}).encode())

    def answer(self, status, body, *headers):
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@pytest.fixture(scope="module")
def remote():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.asked, server.released, server.told = [], threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(module_serve, module_database, remote):
    url = f"http://127.0.0.1:{remote.server_port}/answer"
    agents = [
        {"name": "billing", "keywords": ["invoice", "refund"], "reply": "Billing: {content}"},
        {"name": "remote", "keywords": ["remote"], "url": url, "timeout": "20s"},
        {"name": "hasty", "keywords": ["hasty"], "url": url, "timeout": "500ms"},
        {"name": "away", "keywords": ["away"], "url": f"http://127.0.0.1:{free_port()}/", "timeout": "1s"},
    ]
    return module_serve(module_database, merge(FAST, {"chat": {"agents": agents, "default-agent": "billing"}}), args=CHAT)


@pytest.fixture
def chat(server, token):
    with Session(server, token("demo")) as one:
        yield one


def test_m2_keywords_and_score(chat):
    said = chat.say("an Invoice, please")
    assert (said["agent"], said["routing_score"], said["reply"]) == ("billing", 0.5, "Billing: an Invoice, please")
    said = chat.say("hello")
    assert (said["agent"], said["routing_score"]) == ("billing", 0)
    assert [(each["agent"], each["routing_score"]) for each in chat.history()] == [
        (None, None), ("billing", 0.5), (None, None), ("billing", 0)]


def test_m2_agent_switched_between_the_messages(chat):
    """An event when another agent answers than before; the first is no switch."""
    for content in ("invoice", "remote: a", "remote: b", "refund"):
        last = chat.say(content)["sequence"] + 1
    last += 1
    with chat.stream() as stream:
        events = stream.until(last)
    assert [(event["sequence"], event["event_type"]) for event in events] == [
        (1, "message_created"), (2, "message_created"),
        (3, "message_created"), (4, "agent_switched"), (5, "message_created"),
        (6, "message_created"), (7, "message_created"),
        (8, "message_created"), (9, "agent_switched"), (10, "message_created")]
    switches = [event for event in events if event["event_type"] == "agent_switched"]
    assert [event["payload"] for event in switches] == [
        {"event_id": switches[0]["event_id"], "from": "billing", "to": "remote", "routing_score": 1},
        {"event_id": switches[1]["event_id"], "from": "remote", "to": "billing", "routing_score": 0.5}]
    times = [event["created_at"] for event in events]
    assert times == sorted(times) and len(set(times)) == 10
    assert [each["sequence"] for each in chat.history()] == [1, 2, 3, 5, 6, 7, 8, 10]


def test_m2_an_agent_behind_a_url(chat, remote, module_database):
    said = chat.say("remote: hello")
    asked = remote.asked[-1]
    user = module_database.value("select user_id::text from chat.chat_sessions where session_id = %s", (chat.session,))
    assert asked == {"agent": "remote", "tenant_id": "demo", "project_id": chat.project, "session_id": chat.session,
                     "user_id": user, "content": "remote: hello"}
    assert (said["agent"], said["reply"]) == ("remote", f"hello {user}")


@pytest.mark.parametrize("name", [f"{'hasty' if name == 'slow' else 'remote'}: {name}" for name in FAILURES]
                         + ["away"])
def test_m2_an_agent_that_fails_loses_no_message(server, chat, module_database, name):
    said = chat.say(name)
    agent = name.split(":")[0]
    assert (said["agent"], said["reply"], said["sequence"]) == (agent, None, 1)
    mine, system = chat.history()
    assert (mine["role"], mine["content"]) == ("user", name)
    assert (system["role"], system["content"], system["agent"]) == ("system", f"The agent {agent} did not answer.", agent)
    eventually(lambda: states(module_database, chat.session) == ["published"] * 2)
    with chat.stream() as stream:
        assert [event["payload"]["role"] for event in stream.until(2)] == ["user", "system"]
    assert server.logs(event="chat_agent_failed", sessionId=chat.session)
    assert name.encode() not in server.log_path.read_bytes() or name == "away"  # C9: what is said is not logged


def test_m2_a_slow_agent_holds_no_lock(chat, server, remote, token):
    """It is asked before the transaction: others write in the session meanwhile."""
    done = []
    slow = threading.Thread(target=lambda: done.append(Session(server, token("demo"), chat.project, chat.session)
                                                       .say("remote: when told")["sequence"]))
    chat.say("first")
    slow.start()
    eventually(lambda: any(asked["content"] == "remote: when told" for asked in remote.asked))
    quick = [chat.say("refund")["sequence"] for _ in range(3)]
    remote.told.set()
    slow.join()
    assert quick == [3, 5, 7] and done == [9]


def test_m2_agents_that_hang_hold_up_nobody_else(serve, database, token, remote):
    """C7: who waits for an agent elsewhere has no worker. One is asked, one waits, whoever comes then is told at once."""
    agents = [{"name": "remote", "keywords": ["remote"], "url": f"http://127.0.0.1:{remote.server_port}/", "timeout": "15s"}]
    server = serve(database, merge(FAST, {"http": {"workers": 1}, "chat": {"agents": agents, "agent-calls": 1}}), args=CHAT)
    answers, before = [], len(remote.asked)

    def hang():
        with Session(server, token("demo")) as own:
            answers.append(own.post("remote: hang").status)
    waiting = [threading.Thread(target=hang) for _ in range(3)]
    for thread in waiting:
        thread.start()
    eventually(lambda: len(remote.asked) > before and answers == [503])
    with Session(server, token("demo")) as chat:
        assert chat.say("plain")["reply"] == "plain"
        assert len(chat.history()) == 2
        with chat.stream() as stream:
            assert stream.until(2)
    remote.released.set()
    for thread in waiting:
        thread.join()
    assert answers == [503, 200, 200] and len(remote.asked) == before + 2


def test_m2_agents_in_the_file_are_checked(serve, database):
    for agents, default, field in [
        ([{"name": "a"}], "", "chat.agents.reply"),
        ([{"name": "a", "reply": "x", "url": "http://x"}], "", "chat.agents.reply"),
        ([{"name": "a", "url": "ftp://x"}], "", "chat.agents.url"),
        ([{"name": "a", "reply": "x"}, {"name": "a", "reply": "y"}], "", "chat.agents.name"),
        ([{"name": "a", "reply": "x", "keywords": [""]}], "", "chat.agents.keywords"),
        ([{"name": "a", "reply": "x"}], "b", "chat.default-agent"),
    ]:
        server = serve.make(database, {"chat": {"agents": agents, "default-agent": default}})
        told = run("config", "--config", server.config_path, env=server.env)
        assert told.returncode == 1 and field in told.stderr, told.stderr


def test_m1_nothing_is_asked_of_an_agent_for_what_is_no_message(chat, remote, module_database):
    before = len(remote.asked)
    assert chat.post({"content": "remote \x00"}).status == 400
    assert len(remote.asked) == before
    assert effects(module_database, chat.session) == (0, 0, 0, 0)
    assert fresh() != chat.session
