"""A dictionary in the memory of this process, kept up to date by a thread.

It is read as one JSON stream and followed from that version on. A reader sees whole versions only: the changes that lead to one are
applied together. What a reader gets is the object that is stored: do not change it.
"""
from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Type

from .errors import ApiError, Closed, ConvertFailed, FreshetError, Unavailable
from .streams import LOG, Batch, Watch
from .transport import Transport, is_repeatable, pause_s

_MISSING = object()


class Snapshot(NamedTuple):
    """All items of one version."""

    version: int
    items: Dict[str, Any]


class Copy(Mapping[str, Any]):
    """The items of one dictionary by their keys. Made by Client.follow(), which returns it loaded."""

    def __init__(self, transport: Transport, path: str, *, min_version: int, idle_timeout: float, patience: float,
                 convert: Optional[Callable[[Any], Any]], on_change: Optional[Callable[[Batch], None]]) -> None:
        self._path, self._convert, self._on_change = path, convert, on_change
        self._condition = threading.Condition()
        self._items: Dict[str, Any] = {}
        self._version = min_version
        self._is_closed = False
        self._failure: Optional[Exception] = None
        self.reloads = 0  # since the first load
        self._watch = Watch(transport, path, min_version, idle_timeout, self._reload)
        self._first_load(patience)
        self._watch.version = self._version
        self._thread = threading.Thread(target=self._run, name=f"freshet {path}", daemon=True)
        self._thread.start()

    # ---- reading ----

    @property
    def version(self) -> int:
        return self._version

    @property
    def error(self) -> Optional[Exception]:
        """Why the copy is not connected at the moment; None while it is."""
        return self._failure or self._watch.error

    @property
    def reconnects(self) -> int:
        return self._watch.reconnects

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        with self._condition:
            return iter(list(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def many(self, keys: Iterable[str]) -> Snapshot:
        """These items, as far as they are there, all of one version."""
        with self._condition:
            found = {key: self._items.get(key, _MISSING) for key in keys}
            return Snapshot(self._version, {key: value for key, value in found.items() if value is not _MISSING})

    def snapshot(self) -> Snapshot:
        """All items of one version. This copies the map, not the items."""
        with self._condition:
            return Snapshot(self._version, dict(self._items))

    def wait_for(self, version: int, timeout: Optional[float] = 30.0) -> int:
        """Returns when the copy has this version or a later one. TimeoutError, or Closed."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._version >= version or self._is_closed, timeout):
                raise TimeoutError(f"version {version} did not arrive within {timeout} s; the copy has {self._version}")
            if self._version < version:
                raise Closed("the copy is closed") from self._failure
            return self._version

    # ---- life ----

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._watch.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def _run(self) -> None:
        try:
            for batch in self._watch:
                self._apply(batch)
        except Closed:
            pass
        except Exception as error:  # pylint: disable=broad-except # ConvertFailed: the next versions cannot be held either
            LOG.error("freshet: the copy has ended: %s", error, exc_info=not isinstance(error, ConvertFailed))
            with self._condition:
                self._failure, self._is_closed = error, True
                self._condition.notify_all()
            self._watch.close()

    def _apply(self, batch: Batch) -> None:
        upserts = batch.upserts
        if self._convert:
            upserts = {key: self._converted(key, payload) for key, payload in upserts.items()}
        with self._condition:
            self._items.update(upserts)
            for key in batch.deletes:
                self._items.pop(key, None)
            self._version = batch.version
            self._condition.notify_all()
        self._tell(Batch(batch.version, upserts, batch.deletes))

    def _converted(self, key: str, payload: Any) -> Any:
        if not self._convert:
            return payload
        try:
            return self._convert(payload)
        except Exception as error:  # pylint: disable=broad-except
            raise ConvertFailed(key, error) from error

    def _tell(self, batch: Batch) -> None:
        if self._on_change:
            try:
                self._on_change(batch)
            except Exception:  # pylint: disable=broad-except
                LOG.exception("freshet: on_change failed")

    # ---- loading ----

    def _first_load(self, patience: float) -> None:
        deadline, attempt = time.monotonic() + patience, 0
        while True:
            try:
                self._take_over(*self._load(self._version))
                return
            except Exception as error:  # pylint: disable=broad-except
                if not is_repeatable(error):
                    raise
                pause = pause_s(attempt, error.retry_after if isinstance(error, ApiError) else None)
                if time.monotonic() + pause >= deadline:
                    if isinstance(error, FreshetError):
                        raise
                    raise Unavailable(f"not loaded: {error!r}") from error
                time.sleep(pause)
                attempt += 1

    def _load(self, min_version: int) -> "tuple[int, Dict[str, Any]]":
        headers = {"Accept": "application/x-ndjson"}
        if min_version > 0:
            headers["X-Min-Version"] = str(min_version)
        stream = self._watch.stream(f"{self._path}/all", headers)
        try:
            items: Dict[str, Any] = {}
            lines: List[bytes] = []
            for batch in stream.batches():
                lines += batch
                if len(lines) >= 1000:
                    self._parse(lines, items)
                    lines = []
            self._parse(lines, items)
            return int(stream.headers["x-dict-version"]), items
        finally:
            stream.close()

    def _parse(self, lines: List[bytes], items: Dict[str, Any]) -> None:
        """Many lines at once, so that the names of members are shared. What did not change stays the object that it was."""
        if self._is_closed:
            raise Closed("the copy is closed")
        for item in json.loads(b"[" + b",".join(lines) + b"]"):
            payload = self._converted(item["key"], item["payload"])
            before = self._items.get(item["key"], _MISSING)
            items[item["key"]] = before if before is not _MISSING and before == payload else payload

    def _take_over(self, version: int, items: Dict[str, Any]) -> None:
        with self._condition:
            self._items, self._version = items, version
            self._condition.notify_all()

    def _reload(self, gap: ApiError) -> int:
        """The changes since our version can't be had: everything is read anew. Never a lower version, unless the database itself
        went back. Tries until it succeeds, the copy is closed, or `convert` fails."""
        min_version = 0 if gap.code == "VERSION_NOT_COMMITTED" else self._version
        while True:
            try:
                version, items = self._load(min_version)
                break
            except (Closed, ConvertFailed):
                raise
            except Exception as error:  # pylint: disable=broad-except
                if isinstance(error, ApiError) and error.code == "VERSION_NOT_COMMITTED":
                    min_version = 0
                self._watch.pause(error)
        before = self._items
        self._take_over(version, items)
        self.reloads += 1
        if self._on_change:
            upserts = {key: value for key, value in items.items() if before.get(key, _MISSING) is not value}
            self._tell(Batch(version, upserts, [key for key in before if key not in items]))
        return version
