"""Identifiers: a short prefix that names the kind, then 80 random bits in lower-case base32 or hex, sortable by
nothing."""

from __future__ import annotations

import base64
import os


def _random() -> str:
    return base64.b32encode(os.urandom(10)).decode().lower()


_DRAWN_AT_ONCE = 4000
_pool = b""


def _drawn(size: int) -> bytes:
    """Random bytes out of a larger draw: a system call for every request is a tenth of what the gateway costs."""
    global _pool
    if len(_pool) < size:
        _pool = os.urandom(_DRAWN_AT_ONCE)
    drawn, _pool = _pool[:size], _pool[size:]
    return drawn


def _forget_drawn() -> None:
    global _pool
    _pool = b""


os.register_at_fork(after_in_child=_forget_drawn)  # parent and child would draw the same


def request_id() -> str:
    """Also the id of the ticket that the request becomes when it has to wait. Hex: made for every request, and
    cheap."""
    return "req-" + _drawn(10).hex()


def slug(model: str) -> str:
    """The start of a replica's id: names the model, and is safe in a file name."""
    return model.replace("/", "-").replace(":", "-")[:24]


def replica_id(model: str) -> str:
    """Names the model first, so that `ps`, log files and sockets can be read by a person."""
    return f"{slug(model)}-{_random()[:8]}"


def grant_id() -> str:
    return "grant-" + _random()


def boot_id(role: str) -> str:
    """A process's identity: new at every start, so that nothing of a dead one is taken for the living."""
    return f"{role}-{_random()}"


def job_id() -> str:
    """128 random bits: whoever knows the id of a job may not guess another's."""
    return "job_" + base64.b32encode(os.urandom(16)).decode().lower().rstrip("=")
