"""A pod that answers as a test tells it to: for what a command does when a real one stumbles.

It keeps updates as R1, R2 and R8 say, in memory, and can be told to refuse, to break off, or to forget.
"""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stumble(self, request):
        """What the test put in the way of this request; True when it was answered, or will never be."""
        with self.server.lock:
            self.server.requests.append(request)
            trouble = self.server.troubles.pop(0) if self.server.troubles else None
        if trouble == "break":
            self.close_connection = True
            return True
        if trouble:
            self.answer(*trouble)
        return trouble is not None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.stumble(("POST", self.path, body)):
            return
        status, state = self.server.take(body, "WAIT_COMMIT" in self.path)
        self.answer(status, state)

    def do_GET(self):
        if self.stumble(("GET", self.path, None)):
            return
        path = urlsplit(self.path).path
        if path.endswith(("/watch", "/stream")):
            self.stream()
        elif path.endswith("/version"):
            self.answer(200, {"version": self.server.version})
        elif (state := self.server.events.get(path.rsplit("/", 1)[1])) is not None:
            self.answer(200, state)
        else:
            self.answer(404, {"code": "UNKNOWN_UPDATE", "message": "there is no update with this eventId"})

    def stream(self):
        """The next script of lines, then the connection is cut in the middle of the body."""
        with self.server.lock:
            lines = self.server.streams.pop(0)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = line if isinstance(line, bytes) else (json.dumps(line) + "\n").encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
        self.close_connection = True


class FakePod(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.requests, self.troubles, self.streams = [], [], []
        self.connection_count = 0
        self.events, self.chunks, self.version = {}, {}, 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    def get_request(self):
        self.connection_count += 1
        return super().get_request()

    def take(self, body, waits):
        """R1 and R8: the same again has no second effect; a snapshot is committed with its last chunk."""
        with self.lock:
            event = body["eventId"]
            is_new = event not in self.events
            if is_new:
                self.events[event] = {"eventId": event, "status": "PENDING"}
                self.chunks.setdefault(body.get("snapshotId"), {})[body.get("chunkIndex", 1)] = body
                got = self.chunks[body.get("snapshotId")]
                if len(got) == body.get("chunksTotal", 1):
                    self.version += 1
                    for chunk in got.values():
                        self.events[chunk["eventId"]].update(status="COMMITTED", committedVersion=self.version)
            if is_new and not waits:
                return 202, {"eventId": event, "status": "PENDING", "statusUrl": f"/v1/tenants/demo/updates/{event}"}
            state = self.events[event]
            return (200 if state["status"] == "COMMITTED" else 202), state

    def posts(self):
        return [body for method, _, body in self.requests if method == "POST"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()
