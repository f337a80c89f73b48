"""Streams that go on: a broken one is opened again where it ended, without a loss and without repetition.

A stream is read in the caller's own thread, or in that of a Copy. `close()` may be called from any thread.
"""
from __future__ import annotations

import http.client
import json
import logging
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, cast

from .errors import ApiError, Closed, SequenceTooOld
from .transport import LineStream, Transport, is_repeatable, pause_s
from .types import ChatEvent

LOG = logging.getLogger("freshet")


class Batch(NamedTuple):
    """What leads from one version to another: all of it, or nothing."""

    version: int
    upserts: Dict[str, Any]
    deletes: List[str]


class Reopening:
    """One stream after another, with growing pauses between those that bring nothing."""

    def __init__(self, transport: Transport, idle_timeout: float) -> None:
        self._transport, self._idle_timeout = transport, idle_timeout
        self._current: Optional[LineStream] = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._attempt = 0
        self.error: Optional[Exception] = None  # why there is no stream at the moment
        self.reconnects = -1

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._current:
                self._current.wake()

    def stream(self, target: str, headers: Mapping[str, str]) -> LineStream:
        """One that close() wakes up. Closed when it was called already."""
        stream = self._transport.stream(target, headers, self._idle_timeout)
        with self._lock:
            if self.closed:
                stream.close()
                raise Closed()
            self._current = stream
        return stream

    def open(self, target: str) -> LineStream:
        stream = self.stream(target, {"Accept": "application/x-ndjson"})
        self.reconnects += 1
        self.error = None
        return stream

    def lines(self, stream: LineStream) -> Iterator[Any]:
        """Every line, parsed. Returns at the end of the stream, proper or not."""
        try:
            for batch in stream.batches():
                self._attempt = 0
                yield from json.loads(b"[" + b",".join(batch) + b"]")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = error
        finally:
            stream.close()

    def pause(self, error: Optional[Exception] = None) -> None:
        """Before the next try. Closed when close() is called meanwhile."""
        self.error = error or self.error
        if error:
            LOG.info("freshet: %s; the stream is opened again", error)
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        if self._closed.wait(pause_s(self._attempt, retry_after)):
            raise Closed()
        self._attempt += 1


class Watch(Reopening):
    """The changes of one dictionary, as batches that each lead to a version. `on_gap` is called when changes are no longer kept, or
    the database went back, and returns the version to go on from."""

    def __init__(self, transport: Transport, path: str, after: int, idle_timeout: float,
                 on_gap: Callable[[ApiError], int]) -> None:
        super().__init__(transport, idle_timeout)
        self._path, self._on_gap = path, on_gap
        self.version = after

    def __iter__(self) -> Iterator[Batch]:
        try:
            while not self.closed:
                yield from self._stream()
        except Closed:
            return

    def _stream(self) -> Iterator[Batch]:
        try:
            stream = self.open(f"{self._path}/watch?after={self.version}")
        except ApiError as error:
            if error.code in ("VERSION_TOO_OLD", "VERSION_NOT_COMMITTED"):
                self.version = self._on_gap(error)
            else:  # what is refused now may be allowed later: the copy goes on being readable meanwhile
                self.pause(error)
            return
        except Closed:
            raise
        except Exception as error:  # pylint: disable=broad-except # also those of the caller's token function
            self.pause(error)
            return
        yield from self._batches(self.lines(stream))
        self.pause()

    def _batches(self, lines: Iterator[Any]) -> Iterator[Batch]:
        """Changes count when their `upToDate` comes; those of a stream that broke before it come again."""
        changes: Dict[str, Any] = {}
        for line in lines:
            if "key" in line:
                changes[line["key"]] = line
            elif "upToDate" in line:
                version = int(line["upToDate"])
                if version > self.version or changes:
                    upserts = {key: each["payload"] for key, each in changes.items() if each["op"] == "UPSERT"}
                    deletes = [key for key, each in changes.items() if each["op"] == "DELETE"]
                    self.version = version
                    yield Batch(version, upserts, deletes)
                changes = {}


class Chat(Reopening):
    """The events of one session, each once, in the order of `sequence`; an iterator without an end. `position` is the last one."""

    def __init__(self, transport: Transport, path: str, after: Optional[int], idle_timeout: float, skip_lost: bool) -> None:
        super().__init__(transport, idle_timeout)
        self._path, self._skip_lost = path, skip_lost
        self.position = after
        self._events = self._run()

    def __iter__(self) -> Iterator[ChatEvent]:
        return self._events

    def __next__(self) -> ChatEvent:
        return next(self._events)

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Iterator[ChatEvent]:
        try:
            while not self.closed:
                stream = self._open()
                if stream:
                    yield from self._new(self.lines(stream))
                    self.pause()
        except Closed:
            return

    def _open(self) -> Optional[LineStream]:
        query = "" if self.position is None else f"?after={self.position}"
        try:
            return self.open(self._path + query)
        except SequenceTooOld as error:
            if not self._skip_lost:
                raise
            self.position = error.oldest_sequence - 1
        except Exception as error:  # pylint: disable=broad-except
            if self.closed:
                raise Closed() from None
            if not is_repeatable(error):
                raise
            self.pause(error)
        return None

    def _new(self, lines: Iterator[Any]) -> Iterator[ChatEvent]:
        for line in lines:
            if "event_id" in line and (self.position is None or line["sequence"] > self.position):
                self.position = int(line["sequence"])
                yield cast(ChatEvent, line)
