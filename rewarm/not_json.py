"""Why a text is not JSON, in words that help. Pure."""

from __future__ import annotations

import re

_HALF = re.compile(
    rb"(?<!\\)(?:\\\\)*"  # no backslash that is itself escaped
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def why_not_json(data: bytes, error: Exception) -> str:
    """``error`` is what msgspec raised for ``data``.

    Of half a UTF-16 pair, which some languages escape as a character of its own, it says that the data end early,
    wherever it stands.
    """
    half = _HALF.search(data)
    if half is None:
        return str(error)
    return f"{half[1].decode()} (byte {half.start(1)}) is one half of a character, without the other"
