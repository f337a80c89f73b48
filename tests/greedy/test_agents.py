"""An agent that hangs for one tenant leaves calls to the others (M2, C7)."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from blocked import TENANTS, Flood
from lib.chat import CHAT, Session, fresh, path
from lib.config import merge
from lib.wait import PATIENCE, eventually

GREEDY, MODEST = TENANTS
CALLS = 2


class Agent(BaseHTTPRequestHandler):
    """Does not answer greedy before it is released."""

    def do_POST(self):  # pylint: disable=invalid-name
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["tenant_id"] == GREEDY:
            self.server.hanging.append(asked)
            self.server.released.wait(PATIENCE)
        body = b'{"reply":"here"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@pytest.fixture
def agent():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.hanging, server.released = [], threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def test_calls_that_hang_leave_one_to_another_tenant(serve, database, token, agent):
    agents = [{"name": "remote", "url": f"http://127.0.0.1:{agent.server_port}/", "timeout": "20s"}]
    settings = merge({"http": {"limits": {"requestTimeout": "120s"}}},
                     {"chat": {"agents": agents, "default-agent": "remote", "agent-calls": CALLS}})
    server = serve(database, settings, args=CHAT)
    with Flood(server, token(GREEDY)) as flood, Session(server, token(MODEST)) as session:
        for _ in range(2 * CALLS + 1):
            flood.post(path(fresh(), fresh(), "/message"), {"content": "hello"})
        eventually(lambda: len(agent.hanging) == CALLS and flood.answered())  # as many wait, and one was refused
        for _ in range(3):
            assert session.say()["reply"] == "here"
        assert len(agent.hanging) == CALLS
        agent.released.set()
        eventually(lambda: len(flood.answered()) == 2 * CALLS + 1)
