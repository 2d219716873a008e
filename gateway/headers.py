"""Which headers pass the gateway, in both directions."""

from __future__ import annotations

from typing import Protocol

from gateway.calls import Call
from rewarm.states import ReplicaState
from rewarm.upstream import HOP_BY_HOP
from rewarm.wakes import words

_NOT_TO_ENGINE = HOP_BY_HOP | frozenset(
    (
        b"host",
        b"content-length",
        b"content-type",  # the body was read as JSON; `curl -d` alone calls it a form, and engines would refuse that
        b"content-encoding",  # the server side has decoded the body
        b"accept-encoding",  # streams must not be compressed, and nothing here could look into them
        b"authorization",  # the client's secret is ours to check, not the engine's to know
        b"x-api-key",
        b"api-key",
        b"cookie",
        b"expect",
        b"x-request-id",  # ours is sent instead
    )
)

_NOT_TO_CLIENT = HOP_BY_HOP | frozenset((b"server", b"date", b"content-length", b"x-request-id"))

_MAX_KNOWN = 4096
_known: dict[bytes, bool] = {}
"""Header name as written → passes to the engine. Clients write few different ones; the bound is against those who
do."""


def _passes(name: bytes) -> bool:
    known = _known.get(name)
    if known is None:
        lower = name.lower()
        known = lower not in _NOT_TO_ENGINE and not lower.startswith(b"x-rewarm-")
        if len(_known) < _MAX_KNOWN:
            _known[name] = known
    return known


def to_engine(call: Call, endpoint: str, grant: str | None, secret: bytes | None) -> list[tuple[bytes, bytes]]:
    headers = [header for header in call.request.raw_headers if _passes(header[0])]
    if call.trace is not None:  # the engine's spans hang below ours
        headers = [header for header in headers if header[0].lower() not in (b"traceparent", b"tracestate")]
        headers += call.trace.headers
    headers.append((b"Content-Type", b"application/json"))
    headers.append((b"X-Request-Id", call.id.encode()))
    if grant is not None:
        headers.append((b"X-Rewarm-Grant", grant.encode()))
    else:
        headers.append((b"X-Rewarm-Band", b"%d" % call.caller.band))
    if call.keep_alive_s is not None:
        headers.append((b"X-Rewarm-Keep-Alive", b"%g" % call.keep_alive_s))
    if secret is not None and endpoint.startswith("tcp:"):
        headers.append((b"X-Rewarm-Secret", secret))
    return headers


class Headed(Protocol):
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...


_known_back: dict[bytes, bool] = {}
"""The same for the engines' headers."""


def _passes_back(name: bytes) -> bool:
    known = _known_back.get(name)
    if known is None:
        lower = name.lower()
        known = lower not in _NOT_TO_CLIENT and not lower.startswith(b"x-rewarm-")
        if len(_known_back) < _MAX_KNOWN:
            _known_back[name] = known
    return known


def fallback_of(call: Call) -> str:
    """``asked; reason=code``: instead of whom ``X-Rewarm-Model`` answers, and why."""
    return f"{call.asked}; reason={call.fallback}"


def to_client(call: Call, answer: Headed, now: float) -> list[bytes]:
    """Header lines ready to be sent: the engine's own bytes, which the HTTP parser has checked, and ours."""
    lines = [b"%b: %b\r\n" % header for header in answer.headers if _passes_back(header[0])]
    lines.append(
        f"Server: rewarm\r\nX-Request-Id: {call.id}\r\nX-Rewarm-Model: {call.entry.model}\r\n"
        f"X-Rewarm-Start: {call.start}\r\nServer-Timing: {server_timing(call, now)}\r\n".encode()
    )
    if call.fallback:
        lines.append(f"X-Rewarm-Fallback: {fallback_of(call)}\r\n".encode())
    if call.charge is not None:
        told = call.caller.limits.headers(call.created_ms)
        lines += [f"{name}: {value}\r\n".encode() for name, value in told]
    if call.attempts > 1:
        lines.append(b"X-Rewarm-Attempts: %d\r\n" % call.attempts)
    return lines


def server_timing(call: Call, now: float) -> str:
    """Milliseconds: time held; where this request waited for a wake, the wake with what it was made of, and its phases;
    time to the engine's answer."""
    engine_s = now - call.started_at - call.waited_s
    if call.start == "warm":
        return f"engine;dur={engine_s * 1000:.1f}"
    parts = [f"queue;dur={call.waited_s * 1000:.1f}"]
    if call.wake is not None:
        parts.append(f'wake;dur={call.wake.duration_s * 1000:.0f};desc="{_quotable(words(call.wake))}"')
    parts += [f"{ReplicaState(t.phase).value};dur={t.duration_s * 1000:.0f}" for t in call.timings]
    parts.append(f"engine;dur={engine_s * 1000:.1f}")
    return ", ".join(parts)


def _quotable(text: str) -> str:
    """What may stand in a quoted string of a header: the reasons in it are others' words."""
    return "".join(sign if " " <= sign <= "~" and sign not in '"\\' else "_" for sign in text)[:200]
