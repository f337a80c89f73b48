"""A TCP balancer that follows readiness, as Kubernetes does: new connections go to processes that are ready, one after the other;
those that are open stay where they are, whatever happens to their process.

It passes bytes and the end of either side on, and knows no HTTP. A client whose connection no process takes is disconnected."""
import asyncio
import itertools
import threading

from .wait import eventually
from .wire import Client

POLL_S = 0.02


class Balancer:
    def __init__(self, servers):
        self.servers = servers
        self.ready = []
        self.turns = itertools.count()
        self.loop = asyncio.new_event_loop()
        self.port = None
        self.listening = threading.Event()
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True), threading.Thread(target=self._poll, daemon=True)]

    # ---- readiness ----

    @staticmethod
    def _is_ready(server):
        try:
            with Client(server.port) as client:
                return client.get("/actuator/health/readiness").status == 200
        except Exception:  # pylint: disable=broad-except # whatever it is, it is not ready
            return False

    def _poll(self):
        while not self.stopped.wait(POLL_S):
            self.ready = [server for server in self.servers if server.port and self._is_ready(server)]

    # ---- connections ----

    @staticmethod
    async def _pump(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()  # a reset on one side is one on the other

    async def _serve(self, reader, writer):
        ready = self.ready
        try:
            assert ready, "no process is ready"
            server = ready[next(self.turns) % len(ready)]
            there = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
            there[1].close()
            writer.close()
        except (OSError, AssertionError):
            writer.transport.abort()

    def _run(self):
        asyncio.set_event_loop(self.loop)
        listener = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256))
        self.port = listener.sockets[0].getsockname()[1]
        self.listening.set()
        self.loop.run_forever()
        listener.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))

    # ---- life ----

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        assert self.listening.wait(30)
        eventually(lambda: len(self.ready) == len(self.servers))
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        for thread in self.threads:
            thread.join(30)
