"""HTTP by the standard library: connections that are reused, tokens that are renewed, requests that are repeated.

A request is repeated only where that has no second effect: GET, an update with its eventId, a POST with its Idempotency-Key.
"""
from __future__ import annotations

import base64
import http.client
import json
import random
import socket
import ssl
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import urlsplit

from .errors import ApiError, Closed, FreshetError, SequenceTooOld, Unavailable, UpdateFailed

TokenSource = Union[None, str, Callable[[], str]]

IDLE_CONNECTION_S = 60.0  # the server closes one after 75
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
RENEW_BEFORE_S = 30.0
REPEATED = {408, 429, 500, 502, 503, 504}


class Tokens:
    """Asks `source` for a token when there is none, when it expires soon, and when the server refused it."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._token: Optional[str] = None
        self._until = 0.0

    def get(self) -> Optional[str]:
        if not callable(self._source):
            return self._source
        with self._lock:
            if self._token is None or time.time() >= self._until:
                self._token = self._source()
                self._until = _usable_until(self._token)
            return self._token

    def refused(self, token: Optional[str]) -> bool:
        """True when another one may be had."""
        with self._lock:
            if self._token == token:
                self._token = None
        return callable(self._source)


def _usable_until(token: str) -> float:
    """A little before the `exp` of a JWT; of anything else nothing is known."""
    try:
        part = token.split(".")[1]
        expires = float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return float("inf")
    left = expires - time.time()
    return expires - min(RENEW_BEFORE_S, left / 5)


class Response:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> ApiError:
        try:
            body = self.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            body = {"message": self.body[:200].decode("utf-8", "replace")}
        kind = UpdateFailed if body.get("status") == "FAILED" else \
            SequenceTooOld if body.get("code") == "SEQUENCE_TOO_OLD" else ApiError
        return kind(self.status, body, self.headers)


def pause_s(attempt: int, retry_after: Optional[float] = None) -> float:
    """Growing, with jitter, so that clients that failed together do not return together; never less than Retry-After."""
    if retry_after is not None:
        return retry_after * (1 + random.random() / 4)
    return random.uniform(PAUSE_MIN_S / 4, min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(attempt, 16)))


def is_repeatable(error: Exception) -> bool:
    """Would the same request, sent later, perhaps be answered? For requests that have no second effect."""
    if isinstance(error, ApiError):
        return error.status in REPEATED or error.code == "IDEMPOTENCY_KEY_PROCESSING"
    return isinstance(error, (OSError, http.client.HTTPException)) and not isinstance(error, ssl.SSLCertVerificationError)


class Transport:
    def __init__(self, url: str, token: TokenSource, *, timeout: float, patience: float,
                 tls: Optional[ssl.SSLContext], headers: Optional[Mapping[str, str]]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the URL of a server: {url!r}")
        self.timeout, self.patience = timeout, patience
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = dict(headers or {})
        self._tokens = Tokens(token)
        self._lock = threading.Lock()
        self._idle: List[Tuple[float, http.client.HTTPConnection]] = []

    # ---- connections ----

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _take(self) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < IDLE_CONNECTION_S:
                    return connection
                connection.close()
        return self._connect(self.timeout)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop()[1].close()

    # ---- one exchange ----

    def _head(self, headers: Mapping[str, str], token: Optional[str]) -> Dict[str, str]:
        head = {**self._headers, **headers}
        if token is not None:
            head["Authorization"] = f"Bearer {token}"
        return head

    def _exchange(self, method: str, target: str, body: Optional[bytes], headers: Mapping[str, str]) -> Response:
        connection = self._take()
        try:
            connection.request(method, self._path + target, body, dict(headers))
            answer = connection.getresponse()
            response = Response(answer.status, dict(answer.getheaders()), answer.read())
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        return response

    def _answer(self, method: str, target: str, body: Optional[bytes], headers: Mapping[str, str]) -> Response:
        """As _exchange, with a new token where the server refuses the one it was given."""
        token = self._tokens.get()
        response = self._exchange(method, target, body, self._head(headers, token))
        if response.status == 401 and self._tokens.refused(token):
            response = self._exchange(method, target, body, self._head(headers, self._tokens.get()))
        return response

    # ---- requests ----

    def request(self, method: str, target: str, *, body: Optional[bytes] = None, headers: Optional[Mapping[str, str]] = None,
                repeat: Optional[bool] = None, patience: Optional[float] = None) -> Response:
        """An answer below 400. ApiError is the server's refusal, Unavailable no usable answer within `patience`."""
        head = {"Content-Type": "application/json", **(headers or {})} if body is not None else dict(headers or {})
        repeat = method in ("GET", "HEAD") if repeat is None else repeat
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        attempt = 0
        while True:
            failure: Exception
            try:
                response = self._answer(method, target, body, head)
                if response.status < 400:
                    return response
                failure = response.error()
            except (OSError, http.client.HTTPException) as error:
                failure = error
            is_limited = isinstance(failure, ApiError) and failure.status == 429  # nothing was done
            if not is_repeatable(failure) or not (repeat or is_limited):
                self._raise(failure)
            pause = pause_s(attempt, failure.retry_after if isinstance(failure, ApiError) else None)
            if time.monotonic() + pause >= deadline:
                self._raise(failure)
            time.sleep(pause)
            attempt += 1

    @staticmethod
    def _raise(failure: Exception) -> None:
        if isinstance(failure, FreshetError):
            raise failure
        raise Unavailable(f"no answer: {failure!r}") from failure

    def stream(self, target: str, headers: Mapping[str, str], idle_timeout: float) -> "LineStream":
        """One try: what is to be done when it fails, or ends, is the caller's to decide."""
        token = self._tokens.get()
        for _ in range(2):
            connection = self._connect(idle_timeout)
            try:
                connection.request("GET", self._path + target, headers=self._head(headers, token))
                answer = connection.getresponse()
                if answer.status == 200:
                    return LineStream(connection, answer)
                response = Response(answer.status, dict(answer.getheaders()), answer.read())
            except BaseException:
                connection.close()
                raise
            connection.close()
            if response.status != 401 or not self._tokens.refused(token):
                break
            token = self._tokens.get()
        raise response.error()


class LineStream:
    """The lines of an answer as they come. A line that was cut off is not one."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self._connection, self._answer = connection, answer
        self._socket = connection.sock
        self._is_closed = False

    def batches(self) -> Iterator[List[bytes]]:
        """The whole lines of each piece that arrives, until the proper end. OSError or HTTPException when it was cut off."""
        tail, left = b"", int(self.headers.get("content-length", -1))
        while True:
            try:
                piece = self._answer.read1(1 << 16)
            except (OSError, http.client.HTTPException):
                if self._is_closed:
                    raise Closed() from None
                raise
            if self._is_closed:
                raise Closed()
            if not piece:
                if left > 0 or tail:
                    raise http.client.IncompleteRead(tail)
                return
            left -= len(piece)
            lines = (tail + piece if tail else piece).split(b"\n")
            tail = lines.pop()
            if lines:
                yield lines

    def wake(self) -> None:
        """From any thread: the reader, if it waits, wakes up and finds the stream closed."""
        self._is_closed = True
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """By the reader itself."""
        self._is_closed = True
        self._connection.close()
        self._answer.close()
