"""The client: one method for each route, with repetition where it has no second effect."""
from __future__ import annotations

import json
import ssl
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union, cast
from urllib.parse import quote

from .copy import Copy
from .errors import ApiError, Unavailable, UpdateFailed, UpdatePending
from .streams import Batch, Chat
from .transport import Response, TokenSource, Transport
from .types import (ChatEvent, ChatMessage, CreatedItem, Dictionary, Entitlement, EntitlementChanged, Entity, Items,
                    Notification, PostedMessage, UpdateState, Version)

CHUNK_ITEMS, CHUNK_BYTES = 5_000, 4 << 20  # the server takes 10,000 and 8 MiB
POLL_MIN_S, POLL_MAX_S = 0.02, 1.0


class UpdateResult(NamedTuple):
    event_id: str
    status: str  # COMMITTED, or PENDING where nobody waited
    version: Optional[int]


def _encoded(text: str) -> str:
    return quote(text, safe="")


def _query(**values: Any) -> str:
    """Lists are one parameter each; None is left out."""
    pairs = [(name, each) for name, value in values.items() if value is not None
             for each in (value if isinstance(value, (list, tuple)) else [value])]
    return ("?" if pairs else "") + "&".join(f"{name}={_encoded(str(value))}" for name, value in pairs)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Client:
    """All methods may be called by many threads at once.

    token      a bearer token, or a function that returns one; the function is called again before the token expires and when the
               server refuses it
    timeout    seconds for one try of a request
    patience   seconds in which a request that may be repeated is repeated
    read_your_writes  reads demand the version of this client's own last update of the dictionary (X-Min-Version)
    """

    def __init__(self, url: str, tenant: str, token: TokenSource = None, *, timeout: float = 10.0, patience: float = 30.0,
                 read_your_writes: bool = True, tls: Optional[ssl.SSLContext] = None,
                 headers: Optional[Mapping[str, str]] = None) -> None:
        self.tenant, self._patience, self._read_your_writes = tenant, patience, read_your_writes
        self._transport = Transport(url, token, timeout=timeout, patience=patience, tls=tls, headers=headers)
        self._lock = threading.Lock()
        self._written: Dict[str, int] = {}

    def close(self) -> None:
        """Copies and streams have a close() of their own."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def request(self, method: str, target: str, body: Any = None, *, headers: Optional[Mapping[str, str]] = None,
                repeat: Optional[bool] = None) -> Response:
        """Any other route. Without `repeat` only GET is repeated."""
        return self._transport.request(method, target, body=None if body is None else _json(body), headers=headers, repeat=repeat)

    # ---- reading dictionaries ----

    def _path(self, dictionary: str) -> str:
        return f"/v1/tenants/{_encoded(self.tenant)}/dictionaries/{_encoded(dictionary)}"

    def _read(self, dictionary: str, rest: str, min_version: Optional[int]) -> Response:
        headers = {}
        least = self.min_version(dictionary) if min_version is None else min_version
        if least > 0:
            headers["X-Min-Version"] = str(least)
        return self._transport.request("GET", self._path(dictionary) + rest, headers=headers)

    def min_version(self, dictionary: str) -> int:
        """What a read demands by itself: the version of the last own update, or 0."""
        with self._lock:
            return self._written.get(dictionary, 0) if self._read_your_writes else 0

    def get(self, dictionary: str, key: str, default: Any = None, *, min_version: Optional[int] = None) -> Any:
        """The payload, or `default` where there is no such item."""
        try:
            return self._read(dictionary, f"/items/{_encoded(key)}", min_version).json()["payload"]
        except ApiError as error:
            if error.code == "ITEM_NOT_FOUND":
                return default
            raise

    def get_many(self, dictionary: str, keys: Sequence[str], *, min_version: Optional[int] = None) -> Items:
        """Up to 1,000 items, all of one version: {"version", "items", "missing"}."""
        return cast(Items, self._read(dictionary, "/items" + _query(keys=list(keys)), min_version).json())

    def version(self, dictionary: str, *, min_version: Optional[int] = None) -> Version:
        return cast(Version, self._read(dictionary, "/version", min_version).json())

    def follow(self, dictionary: str, *, convert: Optional[Callable[[Any], Any]] = None,
               on_change: Optional[Callable[[Batch], None]] = None, idle_timeout: float = 45.0) -> Copy:
        """A local copy, loaded, and kept up to date until it is closed.

        convert    what to keep of a payload: a function of it
        on_change  called after each change, with a Batch, in the copy's thread
        idle_timeout  seconds without a byte (there are heartbeats) after which the connection counts as dead
        """
        return Copy(self._transport, self._path(dictionary), min_version=self.min_version(dictionary), idle_timeout=idle_timeout,
                    patience=self._patience, convert=convert, on_change=on_change)

    # ---- updates ----

    def update(self, dictionary: str, upserts: Optional[Mapping[str, Any]] = None, deletes: Iterable[str] = (), *,
               event_id: Optional[str] = None, source_revision: Optional[int] = None, wait: bool = True) -> UpdateResult:
        """Changes items, as one version. Waits until it is committed, unless `wait` is false.

        It is repeated with the same event id until it is answered. UpdateFailed: refused, nothing was changed. UpdatePending and
        Unavailable: not known yet; call again with their `event_id` and the same content.
        """
        items: List[Dict[str, Any]] = [{"key": key, "op": "UPSERT", "payload": payload} for key, payload in (upserts or {}).items()]
        items += [{"key": key, "op": "DELETE"} for key in deletes]
        event_id = event_id or str(uuid.uuid4())
        body: Dict[str, Any] = {"eventId": event_id, "dictCode": dictionary, "eventType": "DELTA", "items": items}
        if source_revision is not None:
            body["sourceRevision"] = source_revision
        return self._post_update(dictionary, event_id, _json(body), wait)

    def replace(self, dictionary: str, items: Mapping[str, Any], *, source_revision: Optional[int] = None,
                wait: bool = True) -> UpdateResult:
        """Makes these all items there are, as one version, in as many requests as are needed."""
        texts = [_json({"key": key, "payload": payload}) for key, payload in items.items()]
        chunks, event_id, snapshot_id = _chunks(texts), str(uuid.uuid4()), str(uuid.uuid4())
        head: Dict[str, Any] = {"eventId": event_id, "dictCode": dictionary, "eventType": "SNAPSHOT"}
        if source_revision is not None:
            head["sourceRevision"] = source_revision
        result = UpdateResult(event_id, "PENDING", None)
        for number, chunk in enumerate(chunks, 1):
            if len(chunks) > 1:
                head.update(snapshotId=snapshot_id, chunkIndex=number, chunksTotal=len(chunks))
            body = _json(head)[:-1] + b',"items":[' + b",".join(chunk) + b"]}"
            result = self._post_update(dictionary, event_id, body, wait and number == len(chunks))
        return result

    def _post_update(self, dictionary: str, event_id: str, body: bytes, wait: bool) -> UpdateResult:
        deadline = time.monotonic() + self._patience
        mode = "?consistencyMode=WAIT_COMMIT&timeoutMs=1000" if wait else ""
        try:
            response = self._transport.request("POST", f"/v1/tenants/{_encoded(self.tenant)}/updates{mode}", body=body, repeat=True)
            state = response.json()
            attempt = 0
            while wait and state["status"] == "PENDING":
                if time.monotonic() >= deadline:
                    raise UpdatePending(event_id)
                time.sleep(min(POLL_MAX_S, POLL_MIN_S * 2 ** attempt))
                attempt += 1
                state = self.update_state(event_id)
        except Unavailable as error:
            error.event_id = event_id
            raise
        return self._decided(dictionary, event_id, state)

    def _decided(self, dictionary: str, event_id: str, state: Mapping[str, Any]) -> UpdateResult:
        if state["status"] == "FAILED":
            raise UpdateFailed(422, {"code": state["errorCode"], "message": state["errorMessage"], "eventId": event_id})
        version = state.get("committedVersion")
        if version is not None:
            with self._lock:
                self._written[dictionary] = max(version, self._written.get(dictionary, 0))
        return UpdateResult(event_id, state["status"], version)

    def update_state(self, event_id: str) -> UpdateState:
        response = self._transport.request("GET", f"/v1/tenants/{_encoded(self.tenant)}/updates/{_encoded(event_id)}")
        return cast(UpdateState, response.json())

    # ---- POST with an Idempotency-Key ----

    def _post(self, target: str, body: Any, key: Optional[str]) -> Any:
        """Repeated with the same key until it is answered."""
        key = key or str(uuid.uuid4())
        try:
            return self._transport.request("POST", target, body=_json(body), headers={"Idempotency-Key": key}, repeat=True).json()
        except Unavailable as error:
            error.key = key
            raise

    def create_item(self, sku: str, title: str, *, key: Optional[str] = None, **members: Any) -> CreatedItem:
        return cast(CreatedItem, self._post("/api/v1/items", {"sku": sku, "title": title, **members}, key))

    def read_item(self, sku: str) -> CreatedItem:
        return cast(CreatedItem, self._transport.request("GET", f"/api/v1/items/{_encoded(sku)}").json())

    def grant(self, user_id: str, sku: str, *, reason: str, purchase_id: str, key: Optional[str] = None) -> EntitlementChanged:
        return self._entitle("grants", user_id, sku, reason, purchase_id, key)

    def revoke(self, user_id: str, sku: str, *, reason: str, purchase_id: str, key: Optional[str] = None) -> EntitlementChanged:
        return self._entitle("revokes", user_id, sku, reason, purchase_id, key)

    def _entitle(self, route: str, user_id: str, sku: str, reason: str, purchase_id: str, key: Optional[str]) -> EntitlementChanged:
        body = {"user_id": user_id, "stock_keeping_unit": sku, "reason": reason, "purchase_id": purchase_id}
        return cast(EntitlementChanged, self._post(f"/v1/entitlements/{route}", body, key))

    # ---- lists, page after page ----

    def _pages(self, path: str, member: str, **query: Any) -> Iterator[Any]:
        cursor: Optional[str] = None
        while True:
            page = self._transport.request("GET", path + _query(**query, cursor=cursor)).json()
            yield from page[member]
            cursor = page.get("next_cursor", page.get("nextCursor"))
            if cursor is None:
                return

    def dictionaries(self) -> Iterator[Dictionary]:
        """Those that the token may read, with their versions."""
        return self._pages(f"/v1/tenants/{_encoded(self.tenant)}/dictionaries", "dictionaries")

    def entitlements(self, user_id: str) -> Iterator[Entitlement]:
        return self._pages(f"/v1/users/{_encoded(user_id)}/entitlements", "entitlements")

    def notifications(self, user_id: str) -> Iterator[Notification]:
        """Newest first."""
        return self._pages(f"/v1/users/{_encoded(user_id)}/notifications", "notifications")

    # ---- chats ----

    @staticmethod
    def _session(project_id: str, session_id: str, rest: str) -> str:
        return f"/my/projects/{_encoded(project_id)}/chat/{_encoded(session_id)}/{rest}"

    def post_message(self, project_id: str, session_id: str, content: str, *, key: Optional[str] = None) -> PostedMessage:
        return cast(PostedMessage, self._post(self._session(project_id, session_id, "message"), {"content": content}, key))

    def messages(self, project_id: str, session_id: str) -> Iterator[ChatMessage]:
        """The history, oldest first."""
        return self._pages(self._session(project_id, session_id, "messages"), "messages")

    def events(self, project_id: str, **query: Any) -> Iterator[ChatEvent]:
        """Of the caller's sessions; `event_type`, `from`, `to` as in the route."""
        return self._pages(f"/my/projects/{_encoded(project_id)}/events", "events", **query)

    def chat(self, project_id: str, session_id: str, *, after: Optional[int] = None, skip_lost: bool = False,
             idle_timeout: float = 45.0) -> Chat:
        """Every event of a session after `after`, each once, for as long as it is read: `for event in client.chat(…)`.

        skip_lost  goes on where events are no longer kept, instead of raising SequenceTooOld
        """
        return Chat(self._transport, self._session(project_id, session_id, "stream"), after, idle_timeout, skip_lost)

    # ---- hydration ----

    def entity(self, entity_type: str, entity_id: Union[str, Tuple[str, str]], *, fields: Optional[Sequence[str]] = None,
               failure_mode: Optional[str] = None) -> Optional[Entity]:
        """An entity of any module, or None where there is none. With `fields` only these members of its data."""
        parts = (entity_id,) if isinstance(entity_id, str) else entity_id
        path = "/".join(_encoded(part) for part in (entity_type, *parts))
        query = _query(mode="partial" if fields else None, fields=list(fields) if fields else None, failure_mode=failure_mode)
        try:
            return cast(Entity, self._transport.request("GET", f"/v1/hydration/{path}{query}").json())
        except ApiError as error:
            if error.code == "ENTITY_NOT_FOUND":
                return None
            raise


def _chunks(texts: List[bytes]) -> List[List[bytes]]:
    """At least one, even of nothing: an empty snapshot clears the dictionary."""
    chunks: List[List[bytes]] = [[]]
    size = 0
    for text in texts:
        if chunks[-1] and (len(chunks[-1]) == CHUNK_ITEMS or size + len(text) > CHUNK_BYTES):
            chunks.append([])
            size = 0
        chunks[-1].append(text)
        size += len(text) + 1
    return chunks
