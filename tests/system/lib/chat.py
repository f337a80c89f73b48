"""Chats: posting messages, reading histories, and readers of streams that check what they are given."""
import contextlib
import json
import socket
import uuid

from .wire import Client, RawConnection, request_bytes

CHAT = ("--roles", "chat")
FAST = {"chat": {"outbox": {"poll-interval": "50ms", "lease": "1s", "backoff-base": "1ms"}}}


def fresh():
    return str(uuid.uuid4())


def path(project, session, rest=""):
    return f"/my/projects/{project}/chat/{session}{rest}"


class Session:
    """One user's chat over one connection."""

    def __init__(self, server, bearer, project=None, session=None):
        self.server, self.bearer = server, bearer
        self.project, self.session = project or fresh(), session or fresh()
        self.client = Client(server.port, bearer)

    def post(self, content="hello", key=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            headers["Idempotency-Key"] = key
        body = content if isinstance(content, (dict, list)) else {"content": content}
        return self.client.request("POST", path(self.project, self.session, "/message"), body, headers)

    def say(self, content="hello", **options):
        answer = self.post(content, **options)
        assert answer.status == 200, answer.body
        return answer.json()

    def page(self, query=""):
        return self.client.get(path(self.project, self.session, "/messages" + query))

    def history(self, limit=100):
        messages, cursor = [], None
        while True:
            answer = self.page(f"?limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
            assert answer.status == 200, answer.body
            value = answer.json()
            assert len(value["messages"]) <= limit
            messages += value["messages"]
            cursor = value["next_cursor"]
            if cursor is None:
                return messages

    def stream(self, after=None, server=None, **options):
        return Stream((server or self.server).port, self.bearer, self.project, self.session, after, **options)

    def close(self):
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Stream:
    """A raw reader of one stream; `seen` has every event's sequence."""

    def __init__(self, port, bearer, project, session, after=None, method="GET", receive_buffer=None, **headers):
        query = "" if after is None else f"?after={after}"
        self.raw = RawConnection.__new__(RawConnection)
        self.raw.socket = socket.socket()
        if receive_buffer:
            self.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.raw.socket.settimeout(30)
        self.raw.socket.connect(("127.0.0.1", port))
        self.raw.buffer = b""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.raw.send(request_bytes(method, path(project, session, "/stream" + query),
                                    {"Authorization": f"Bearer {bearer}", **headers}))
        self.head = self.raw.read_head()
        self.is_sse = self.head.headers.get("content-type") == "text/event-stream"
        self.text = b""
        self.seen = []
        self.position = None

    def refusal(self):
        """The body of an answer that is no stream."""
        return json.loads(self.raw.read_exactly(int(self.head.headers["content-length"])))

    def block(self):
        """The next line, or SSE block; None at the stream's proper end. EOFError when it was cut."""
        end = b"\n\n" if self.is_sse else b"\n"
        assert self.head.status == 200, self.head
        while end not in self.text:
            chunk = self.raw.read_chunk()
            if not chunk:
                assert self.text == b"", "the last line is not whole"
                return None
            self.text += chunk
        block, self.text = self.text.split(end, 1)
        return block.decode()

    def event(self):
        """The next one as an object; for SSE its id must be its sequence."""
        block = self.block()
        if block is None:
            return None
        if not self.is_sse:
            value = json.loads(block)
        else:
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            value = json.loads(fields["data"])
            assert fields.get("id", "") == str(value.get("sequence", "")), block
        if "event_id" in value:
            self.seen.append(value["sequence"])
            assert value["payload"]["event_id"] == value["event_id"]
        return value

    def until(self, sequence):
        """All events up to this one."""
        events = []
        while not events or events[-1]["sequence"] < sequence:
            value = self.event()
            assert value is not None, "the stream ended"
            if "event_id" in value:
                events.append(value)
        return events

    def caught_up(self):
        """(events up to up_to_date, its sequence)"""
        events = []
        while True:
            value = self.event()
            assert value is not None, "the stream ended"
            if value["event_type"] == "up_to_date":
                return events, value["sequence"]
            if value["event_type"] != "heartbeat":
                events.append(value)

    def close(self):
        self.raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def effects(database, session):
    """(sessions, messages, events, logged) of it."""
    return database.query(
        "select (select count(*) from chat.chat_sessions where session_id = %(s)s),"
        " (select count(*) from chat.messages where session_id = %(s)s),"
        " (select count(*) from chat.event_outbox where aggregate_id = %(s)s),"
        " (select count(*) from chat.event_log where session_id = %(s)s)", {"s": session})[0]


def states(database, session):
    return [row[0] for row in database.query(
        "select status from chat.event_outbox where aggregate_id = %s order by sequence", (session,))]


@contextlib.contextmanager
def refusing(database, table, condition="true"):
    """Every insert into the table that meets the condition fails, as a full disk would make it."""
    database.query(f"create or replace function public.refuse() returns trigger language plpgsql as"
                   f" $$ begin if {condition} then raise exception 'boom'; end if; return new; end $$")
    database.query(f"create trigger refuse before insert or update on {table} for each row execute function public.refuse()")
    try:
        yield
    finally:
        database.query(f"drop trigger refuse on {table}")
