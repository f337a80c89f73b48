"""The answers of the server as types. Written by tools/client_types.py from api/openapi.yaml: do not edit."""
from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union


class MessageCreated(TypedDict):
    event_id: str
    message_id: str
    role: Literal['user', 'assistant', 'system']
    content: str


AgentSwitched = TypedDict('AgentSwitched', {
    'event_id': 'str',
    'from': 'str',
    'to': 'str',
    'routing_score': 'float',
})


class ChatEvent(TypedDict):
    event_id: str
    event_type: Literal['message_created', 'agent_switched']
    sequence: int
    session_id: str
    created_at: str
    payload: Union[MessageCreated, AgentSwitched]


class ChatMessage(TypedDict):
    message_id: str
    sequence: int
    role: Literal['user', 'assistant', 'system']
    content: str
    agent: Optional[str]
    routing_score: Optional[float]
    created_at: str


class CreatedItem(TypedDict):
    id: str
    sku: str
    title: str
    created_at: str


class _Dictionary(TypedDict):
    dictCode: str
    version: Optional[int]
    held: bool
    available: bool


class Dictionary(_Dictionary, total=False):
    itemCount: int
    updatedAt: str
    loadedAt: str


class Entitlement(TypedDict):
    stock_keeping_unit: str
    status: Literal['ACTIVE', 'REVOKED']
    version: int
    updated_at: str


class EntitlementChanged(TypedDict):
    user_id: str
    stock_keeping_unit: str
    status: Literal['ACTIVE', 'REVOKED']
    version: int
    updated_at: str


class _Entity(TypedDict):
    entity_type: str
    entity_id: str
    source_module: Optional[str]
    data: Dict[str, Any]


class Entity(_Entity, total=False):
    degraded: Literal[True]


class Item(TypedDict):
    key: str
    payload: Any


class Items(TypedDict):
    version: int
    items: List[Item]
    missing: List[str]


class _Notification(TypedDict):
    notification_id: str
    event_id: str
    event_type: Literal['EntitlementGranted', 'EntitlementRevoked']
    stock_keeping_unit: str
    status: Literal['PENDING', 'PROCESSING', 'SENT', 'FAILED']
    created_at: str
    sent_at: Optional[str]


class Notification(_Notification, total=False):
    item_title: str


class _Page(TypedDict):
    version: int
    items: List[Item]
    nextCursor: Optional[str]


class Page(_Page, total=False):
    versionChanged: Literal[True]


class PostedMessage(TypedDict):
    message_id: str
    session_id: str
    sequence: int
    created_at: str
    agent: str
    routing_score: float
    reply: Optional[str]


class UpdateStatePending(TypedDict):
    eventId: str
    dictCode: str
    status: Literal['PENDING']
    requestedBy: Optional[str]
    createdAt: str
    updatedAt: str


class UpdateStateCommitted(TypedDict):
    eventId: str
    dictCode: str
    status: Literal['COMMITTED']
    committedVersion: int
    requestedBy: Optional[str]
    createdAt: str
    updatedAt: str


class UpdateStateFailed(TypedDict):
    eventId: str
    dictCode: str
    status: Literal['FAILED']
    errorCode: Literal['STALE_SOURCE_REVISION', 'UPDATE_REFUSED', 'SNAPSHOT_INCOMPLETE', 'COMMAND_LOST', 'UNKNOWN_DICTIONARY', 'DICTIONARY_READ_ONLY', 'CHUNK_CONFLICT', 'EVENT_ID_CONFLICT', 'BAD_REQUEST']
    errorMessage: str
    requestedBy: Optional[str]
    createdAt: str
    updatedAt: str


UpdateState = Union[UpdateStatePending, UpdateStateCommitted, UpdateStateFailed]


class Version(TypedDict):
    tenantId: str
    dictCode: str
    version: int
    itemCount: int
    digest: str
    loadedAt: str
