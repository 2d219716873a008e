"""What a worker kept as an engine's answer. Pure."""

from __future__ import annotations

import msgspec


def as_json(result: bytes | None) -> bytes | None:
    """As it is, where it is JSON. None for anything else: an engine may answer with an error page, and that must not
    be spliced into JSON, nor be sent as if it were some."""
    if not result:
        return None
    try:
        msgspec.json.decode(result, type=msgspec.Raw)  # megabytes: looked at, not made into objects
        result.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return result
