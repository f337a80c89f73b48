"""A collector of traces that speaks OTLP/HTTP with JSON, keeps what it is sent, and misbehaves as it is told."""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


def _value(value):
    (kind, content), = value.items()
    return int(content) if kind == "intValue" else content


def _attributes(listed):
    found = {each["key"]: _value(each["value"]) for each in listed}
    assert len(found) == len(listed), listed
    return found


class Span:
    """One span, with its ids as text and its resource's attributes."""

    def __init__(self, raw, resource):
        self.trace, self.id, self.parent = raw["traceId"], raw["spanId"], raw.get("parentSpanId")
        assert len(self.trace) == 32 and int(self.trace, 16) and len(self.id) == 16 and int(self.id, 16), raw
        self.name, self.kind = raw["name"], KINDS[raw["kind"]]
        self.start, self.end = int(raw["startTimeUnixNano"]), int(raw["endTimeUnixNano"])
        assert 0 < self.start <= self.end, raw
        self.attributes, self.resource = _attributes(raw["attributes"]), resource
        self.failed = raw.get("status", {}).get("code") == 2

    @property
    def instance(self):
        return self.resource["service.instance.id"]

    def __repr__(self):
        return f"{self.name} ({self.kind}, {self.id}, parent {self.parent}, {self.attributes})"


class Collector:
    """Answers as `behave(count)` says, count = requests so far: a status, (status, headers), (status, headers, body), "hang" (until
    released), or None for 200."""

    def __init__(self, port=0):
        self.spans, self.requests, self.lock = [], [], threading.Lock()
        self.behave = lambda count: None
        self.release = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802  pylint: disable=invalid-name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self, body)

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # pylint: disable=arguments-differ
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def take(self, handler, body):
        with self.lock:
            self.requests.append({"at": time.monotonic(), "headers": dict(handler.headers), "path": handler.path,
                                  "body": body})
            what = self.behave(len(self.requests))
        if what == "hang":
            self.release.wait(30)
            what = None
        status, headers, *rest = what if isinstance(what, tuple) else (what or 200, {})
        text = rest[0] if rest else b"{}"
        if status == 200:
            self.keep(json.loads(body))
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def keep(self, request):
        fresh = []
        for of_resource in request["resourceSpans"]:
            resource = _attributes(of_resource["resource"]["attributes"])
            for scope in of_resource["scopeSpans"]:
                assert scope["scope"]["name"] == "freshet"
                fresh += [Span(raw, resource) for raw in scope["spans"]]
        with self.lock:
            self.spans += fresh

    def settings(self, **more):
        """Changes over a server's configuration: its spans come here, soon. Only requests that say so are traced."""
        return {"traces": {"endpoint": self.url, "interval": "20ms", "samplePercent": 0, **more}}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def of(self, trace, name=None):
        """The spans of a trace, the earliest first."""
        with self.lock:
            found = [span for span in self.spans if span.trace == trace and name in (None, span.name)]
        return sorted(found, key=lambda span: span.start)

    def one(self, trace, name):
        found = self.of(trace, name)
        assert len(found) == 1, f"{len(found)} spans {name} in {self.of(trace)}"
        return found[0]

    def way_to(self, span):
        """The span, its parent, and so on up to the first that is here; the first one first."""
        by_id = {each.id: each for each in self.of(span.trace)}
        way = [span]
        while way[0].parent in by_id:
            way.insert(0, by_id[way[0].parent])
        return way

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def context(trace, span="b7ad6b7169203331", sampled=True):
    """A traceparent."""
    return f"00-{trace}-{span}-{'01' if sampled else '00'}"
