"""A TCP proxy between a client and a server that breaks on command: cuts, loses answers, stalls, is slow."""
import asyncio
import socket
import struct
import threading


class FaultyLine:
    """Forwards connections to 127.0.0.1:`target`, which may change."""

    def __init__(self, target):
        self.target = target
        self.delay_s = 0.0  # before each piece of an answer
        self.answers_to_lose = 0  # so many connections are reset when the first byte of their answer comes
        self.bytes_to_cut_after = None  # of each answer, from the next connection on
        self.stalled = False  # what the server sends is not forwarded, and connections stay open
        self.connections = 0
        self._cuts = 0
        self._open = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    # ---- faults ----

    @staticmethod
    def _reset(writer):
        """Not a proper end: the client's read fails."""
        try:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass  # it is closed already
        writer.transport.abort()

    def cut(self):
        """All connections, in the middle of whatever they carry; also those that are being made."""
        def everything():
            self._cuts += 1
            for writer in list(self._open):
                self._reset(writer)
        asyncio.run_coroutine_threadsafe(self._call(everything), self._loop).result(30)

    @staticmethod
    async def _call(function):
        function()

    # ---- forwarding ----

    @staticmethod
    async def _requests(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def _answers(self, reader, writer):
        left = self.bytes_to_cut_after
        while data := await reader.read(65536):
            if self.answers_to_lose > 0:
                self.answers_to_lose -= 1
                raise ConnectionError
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while self.stalled:
                await asyncio.sleep(0.01)
            if left is not None:
                data, left = data[:left], left - len(data)
            writer.write(data)
            await writer.drain()
            if left is not None and left <= 0:
                raise ConnectionError
        writer.write_eof()

    async def _serve(self, reader, writer):
        self.connections += 1
        there, cuts = None, self._cuts
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
            if cuts != self._cuts:
                raise ConnectionError
            self._open |= {writer, there[1]}
            done, rest = await asyncio.wait({asyncio.ensure_future(self._requests(reader, there[1])),
                                             asyncio.ensure_future(self._answers(there[0], writer))},
                                            return_when=asyncio.FIRST_EXCEPTION)
            for task in rest:
                task.cancel()
            for task in done:
                task.result()
            writer.close()
        except (OSError, asyncio.CancelledError):
            self._reset(writer)
        finally:
            if there:
                there[1].close()
                self._open -= {writer, there[1]}

    # ---- life ----

    def _run(self):
        asyncio.set_event_loop(self._loop)
        listener = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = listener.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        listener.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))

    def __enter__(self):
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
