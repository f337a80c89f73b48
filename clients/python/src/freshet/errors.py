"""What can go wrong. Everything that this package raises by itself is a FreshetError."""
from __future__ import annotations

from typing import Any, Mapping, Optional


class FreshetError(Exception):
    """The base of all errors of this package."""


class ApiError(FreshetError):
    """An answer of 400 or more. `code` is for programs and does not change, `message` is for people and may."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Optional[Mapping[str, str]] = None) -> None:
        self.status = status
        self.body = dict(body)
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}
        self.code: str = str(body.get("code") or body.get("error_code") or "")
        self.message: str = str(body.get("message") or body.get("detail") or "")
        self.field: Optional[str] = body.get("field")
        super().__init__(f"{status} {self.code}: {self.message}")

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds after which it makes sense to try again, where the server says so."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdigit() else None


class UpdateFailed(ApiError):
    """The update was accepted, then refused: nothing was changed. `code` says why. It needs a new event id to be tried again."""

    @property
    def event_id(self) -> str:
        return str(self.body.get("eventId", ""))


class SequenceTooOld(ApiError):
    """The stream's next events are no longer kept: read the history, then follow from `oldest_sequence - 1`."""

    @property
    def oldest_sequence(self) -> int:
        return int(self.body["oldest_sequence"])


class Unavailable(FreshetError):
    """There was no usable answer within `patience`. `event_id` (of an update) or `key` repeats the request without a second effect."""

    def __init__(self, message: str, event_id: Optional[str] = None, key: Optional[str] = None) -> None:
        self.event_id = event_id
        self.key = key
        super().__init__(message)


class UpdatePending(FreshetError):
    """The update is accepted and not lost, but was not decided within `patience`: `Client.update_state(event_id)` has its state."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(f"update {event_id} is not decided yet")


class ConvertFailed(FreshetError):
    """Your `convert` raised `__cause__` for the item `key`: the copy has ended, since it cannot hold this version."""

    def __init__(self, key: str, error: Exception) -> None:
        self.key = key
        super().__init__(f"convert failed for the item {key!r}: {error!r}")


class Closed(FreshetError):
    """It was closed meanwhile."""
