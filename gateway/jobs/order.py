"""What a client asks of a job, from the request to ``/v1/jobs``. Pure: bytes and headers in, an :class:`Order` out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from gateway.parse import ENDPOINTS, Endpoint, not_json, peek
from rewarm.config import Priority
from rewarm.errors import InvalidHeader, InvalidRequest, JobBodyTooLarge, UnknownEndpoint
from rewarm.jobs import HOOK_EVENTS, WebhookSpec
from rewarm.units import format_bytes

DEFAULT_ENDPOINT = "/v1/chat/completions"

ENVELOPE_BYTES = 64 * 2**10
"""What the job's own fields may add to the engine's body."""

MAX_DEADLINE_S = 30 * 86400.0
MAX_WAIT_S = 60.0
"""The most that ``Prefer: wait=n`` may ask for; more is understood as this."""

_OWN = frozenset(("endpoint", "priority", "webhook", "start_deadline_s", "metadata"))
"""Taken out of the body: the engine never sees them."""

_Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
_Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
_Deadline = Annotated[float, msgspec.Meta(gt=0, le=MAX_DEADLINE_S)]


class _Webhook(msgspec.Struct, forbid_unknown_fields=True):
    url: _Url
    events: tuple[str, ...] | None = None
    secret_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "default"  # noqa: S105 -- a name of one


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One job to be done. ``body`` is what the engine will see."""

    endpoint: Endpoint
    model: str  # as the client named it
    body: bytes
    stream: bool = False
    priority: Priority | None = None  # None: the key's own
    webhook: WebhookSpec | None = None
    start_deadline_s: float | None = None  # from now
    metadata: dict[str, str] = {}


def read_order(data: bytes, max_body: int) -> Order:
    """Two forms: the endpoint's own body with the job's fields beside its own, or these with the body under ``body``.

    Raise InvalidJson, InvalidRequest, UnknownEndpoint or JobBodyTooLarge.
    """
    fields = _fields(data)
    own = {name: fields[name] for name in _OWN & fields.keys()}
    if "body" in fields:
        strange = fields.keys() - _OWN - {"body"}
        if strange:
            name = min(strange)
            raise InvalidRequest(f"`{name}` has no place beside `body`: put it inside", param=name)
        body = bytes(fields["body"])
    elif own:
        body = msgspec.json.encode({name: value for name, value in fields.items() if name not in own})
    else:
        body = data
    if len(body) > max_body:
        raise JobBodyTooLarge(f"the body has {len(body)} bytes, and a job's may have {format_bytes(max_body)}")
    endpoint = _endpoint(own)
    seen = peek(body, endpoint)
    return Order(
        endpoint=endpoint,
        model=seen.model,
        body=body,
        stream=bool(seen.stream),
        priority=_read(own, "priority", Priority | None),
        webhook=_webhook(own),
        start_deadline_s=_read(own, "start_deadline_s", _Deadline | None),
        metadata=_read(own, "metadata", _Metadata | None) or {},
    )


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise InvalidRequest("the body must be a JSON object") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(data, error) from error


T = TypeVar("T")


def _read(own: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
    """The field as ``kind``; None where it was not given."""
    raw = own.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"`{name}`: {error}", param=name) from error


def _endpoint(own: Mapping[str, msgspec.Raw]) -> Endpoint:
    path = _read(own, "endpoint", str | None)
    endpoint = ENDPOINTS.get(DEFAULT_ENDPOINT if path is None else path)
    if endpoint is None:
        raise UnknownEndpoint(f"{path!r} is none of {', '.join(ENDPOINTS)}", param="endpoint")
    return endpoint


def _webhook(own: Mapping[str, msgspec.Raw]) -> WebhookSpec | None:
    """A URL alone, or with the events it wants to hear of."""
    given = _read(own, "webhook", _Url | _Webhook | None)
    if given is None:
        return None
    if isinstance(given, str):
        return WebhookSpec(url=given)
    if given.events is None:
        return WebhookSpec(url=given.url, secret_id=given.secret_id)
    for event in given.events:
        if event not in HOOK_EVENTS:
            raise InvalidRequest(f"`webhook.events`: {event!r} is none of {', '.join(HOOK_EVENTS)}", param="webhook")
    if not given.events:
        raise InvalidRequest("`webhook.events` must name at least one event", param="webhook")
    return WebhookSpec(url=given.url, events=given.events, secret_id=given.secret_id)


# --- headers ---------------------------------------------------------------------------------------------------------


def idempotency(headers: Mapping[str, str], data: bytes) -> tuple[str, str] | None:
    """(key, digest of the whole body) where the client sent ``Idempotency-Key``. Raise InvalidHeader."""
    key = headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise InvalidHeader("Idempotency-Key must be 1 to 255 printable ASCII characters", param="Idempotency-Key")
    return key, hashlib.sha256(data).hexdigest()


def preferred_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Prefer: wait=n`` (RFC 7240), at most a minute; None without it. What cannot be read is not preferred
    at all, as the RFC has it."""
    for preference in headers.get("Prefer", "").split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            value = value.strip().strip('"')
            if value.isascii() and value.isdigit():
                return min(float(value), MAX_WAIT_S)
    return None
