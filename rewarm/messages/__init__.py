"""Everything that crosses Redis or a pipe between our processes, as typed msgpack.

Each message is a frozen :class:`msgspec.Struct` with a schema version ``v``; :func:`decode` refuses a version it does
not know (:class:`UnknownSchema`) instead of guessing. Times called ``*_ms`` are milliseconds of Redis ``TIME`` unless
said otherwise; durations are ``*_s``; sizes ``*_bytes``.
"""

from __future__ import annotations

from rewarm.messages.codec import SCHEMA_VERSION, Message, UnknownSchema, decode, encode, to_json
from rewarm.messages.leader import Canary, Command, Explanation, ModelStatus, PlaceStatus, Want
from rewarm.messages.loads import Failure, PhaseHistory, PhaseTiming, Progress
from rewarm.messages.models import AdapterSpec, Capabilities, CatalogueEntry, ModelPolicy, RemoteSpec, ReplicaSpec
from rewarm.messages.receipts import Receipt, Waiter, Wake, WakeRecord
from rewarm.messages.requests import GatewayEvent, Grant, Ticket, TicketFailed, decode_gateway_event
from rewarm.messages.workers import DeviceReport, PoolReport, PreparedReport, ReplicaReport, WorkerBeat

__all__ = [
    "SCHEMA_VERSION",
    "AdapterSpec",
    "Canary",
    "Capabilities",
    "CatalogueEntry",
    "Command",
    "DeviceReport",
    "Explanation",
    "Failure",
    "GatewayEvent",
    "Grant",
    "Message",
    "ModelPolicy",
    "ModelStatus",
    "PhaseHistory",
    "PhaseTiming",
    "PlaceStatus",
    "PoolReport",
    "PreparedReport",
    "Progress",
    "Receipt",
    "RemoteSpec",
    "ReplicaReport",
    "ReplicaSpec",
    "Ticket",
    "TicketFailed",
    "UnknownSchema",
    "Waiter",
    "Wake",
    "WakeRecord",
    "Want",
    "WorkerBeat",
    "decode",
    "decode_gateway_event",
    "encode",
    "to_json",
]
