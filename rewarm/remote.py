"""How an upstream's API is spoken to: where, with which headers, and what its refusals mean for us. Pure.

Only what the request itself says goes there, and the upstream's key. Neither the key nor what the upstream says about
it comes into a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec

from rewarm import __version__
from rewarm.errors import (
    RemoteBadAnswer,
    RemoteFailed,
    RemoteRateLimited,
    RemoteRedirected,
    RemoteRefusedKey,
    RewarmError,
)
from rewarm.splice import splice_model

OUR_BASE = "/v1"

_OWN_FIELDS = ("keep_alive",)
"""Of rewarm's own: others refuse fields that they do not know."""

_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Address:
    """``endpoint`` is one of :mod:`rewarm.upstream`; ``base`` comes before the path of each request."""

    endpoint: str
    base: str

    @classmethod
    def of(cls, url: str) -> Address:
        """``url`` is one that the configuration let pass."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if ":" in host:
            host = f"[{host}]"
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(f"{'tls' if tls else 'tcp'}:{host}:{port}", parts.path.rstrip("/"))

    def target(self, path: str) -> str:
        """``path`` is ours, as ``/v1/chat/completions``."""
        return self.base + path.removeprefix(OUR_BASE)


def headers(key: str | None, *, stream: bool) -> list[tuple[bytes, bytes]]:
    out = [
        (b"Content-Type", b"application/json"),
        (b"Accept", b"text/event-stream" if stream else b"application/json"),
        (b"Accept-Encoding", b"identity"),
        (b"User-Agent", f"rewarm/{__version__}".encode()),
    ]
    if key:
        out.append((b"Authorization", b"Bearer " + key.encode()))
    return out


def body_for(body: bytes, upstream_model: str) -> bytes:
    """The client's body with the upstream's name for the model, and without what only rewarm understands."""
    if any(f'"{name}"'.encode() in body for name in _OWN_FIELDS):
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        body = msgspec.json.encode({name: value for name, value in fields.items() if name not in _OWN_FIELDS})
    return splice_model(body, upstream_model)


# --- what it answers -------------------------------------------------------------------------------------------


def refusal(model: str, status: int, answer: Mapping[str, str], now: datetime | None = None) -> RewarmError | None:
    """What an answer of that status and those headers (names in lower case) amounts to; None for one that is the
    client's to see: the answer itself, or what is wrong with the request."""
    kind = answer.get("content-type", "").partition(";")[0].strip().lower()
    if status in (401, 403):
        return RemoteRefusedKey(f"the upstream of {model!r} does not take our key ({status})")
    if status == 429:
        wait_s = retry_after_s(answer.get("retry-after"), now)
        after = "" if wait_s is None else f", for {wait_s:.0f} s"
        return Paused(f"the upstream of {model!r} takes no more requests for now{after}", wait_s)
    if 300 <= status < 400:
        where = urlsplit(answer.get("location", "")).hostname
        to = f" to {where}" if where else ""
        return RemoteRedirected(f"the upstream of {model!r} redirects{to} ({status})")
    if status >= 500 or status == 408:
        return RemoteFailed(f"the upstream of {model!r} answered {status}")
    if status in (404, 405, 410):
        return RemoteBadAnswer(f"the upstream of {model!r} has no such path or model ({status})")
    if kind not in ("application/json", "text/event-stream"):
        return RemoteBadAnswer(f"the upstream of {model!r} answered {status} with {kind or 'something without a type'}")
    return None


class Paused(RemoteRateLimited):
    """``wait_s``: what the upstream asks for, None where it does not say."""

    def __init__(self, message: str, wait_s: float | None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def retry_after_s(value: str | None, now: datetime | None = None) -> float | None:
    """``Retry-After``: seconds or a date. What cannot be read is as if it were not there."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def error_in_event(model: str, data: bytes) -> RewarmError | None:
    """``{"error": …}`` in the place of a chunk, as a typed error."""
    if b'"error"' not in data:
        return None
    try:
        said = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict | str) or not error:
        return None
    fields = error if isinstance(error, dict) else {"message": error}
    codes = {str(fields.get(name)) for name in ("status", "code", "type")}
    if codes & {"429", "rate_limit_exceeded", "rate_limit_error", "too_many_requests"}:
        return Paused(f"the upstream of {model!r} takes no more requests for now", None)
    if codes & {"401", "403", "invalid_api_key", "authentication_error"}:
        return RemoteRefusedKey(f"the upstream of {model!r} does not take our key")
    message = " ".join(str(fields.get("message") or "an error without a message").split())
    return RemoteFailed(f"the upstream of {model!r} broke off: {message[:_MESSAGE_CHARS]}")


def renamed_event(event: bytes, model: str) -> bytes:
    """A whole event with our name for the model, in a chunk or in a response inside an event of the Responses API."""
    if b'"model"' not in event:
        return event
    lines = event.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(b"data:") and b'"model"' in line:
            text = line[5:].rstrip(b"\r\n")
            lines[number] = b"data: " + renamed(text.strip(), model) + line[len(line.rstrip(b"\r\n")) :]
    return b"".join(lines)


def renamed(text: bytes, model: str) -> bytes:
    """A chunk or a whole answer, as JSON."""
    if b'"response"' in text:
        try:
            told = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
        inner = told.get("response") if isinstance(told, dict) else None
        if isinstance(inner, dict) and "model" in inner:
            inner["model"] = model
            return msgspec.json.encode(told)
    return splice_model(text, model)
