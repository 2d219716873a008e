"""Answers that a proxy has cut off and ended as if they were whole."""

from __future__ import annotations

TAIL_BYTES = 64
_TIMEOUT_TEXT = b"request timeout"


def cut_off(tail: bytes) -> bool:
    """Whether a body that ends like this was ended by Knative: at ``timeoutSeconds`` its queue-proxy writes ``request
    timeout`` after what was there, and its activator ``activator request timeout``, both with a clean end and under
    the status that was sent before. An answer in JSON never ends in letters.
    """
    return tail.rstrip().endswith(_TIMEOUT_TEXT)


def tail_of(before: bytes, chunk: bytes) -> bytes:
    """The end of a body so far."""
    return chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (before + chunk)[-TAIL_BYTES:]
