"""Replace the value of the top-level ``model`` in a JSON body, byte for byte, and nothing else.

Never parsed and written again: that would reorder nothing but still change numbers, escapes and duplicate keys of a
body that is the client's. Nested ``model`` keys are left alone. The scan jumps over strings in C, so that a body with
images inside costs what its structure costs, not its size.
"""

from __future__ import annotations

import json
import re

# A whole string (possessive: a damaged one fails at once instead of backtracking), or one structural character.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]', re.DOTALL)


def splice_model(body: bytes, name: str) -> bytes:
    """``body`` with every top-level ``model`` naming ``name``; unchanged when there is none or it is no JSON object."""
    spans = _spans(body)
    if not spans:
        return body
    value = json.dumps(name).encode()
    parts: list[bytes] = []
    at = 0
    for start, stop in spans:
        parts += (body[at:start], value)
        at = stop
    parts.append(body[at:])
    return b"".join(parts)


def _spans(body: bytes) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    depth = 0
    key: bytes | None = None  # of the top-level pair that is being read
    value_from: int | None = None  # where the value of a `model` key begins
    last: re.Match[bytes] | None = None
    for token in _TOKEN.finditer(body):
        char = token[0][:1]
        if char == b'"':
            last = token
            continue
        if char in b"{[":
            depth += 1
        elif depth == 1 and char == b":" and key is None and last is not None:
            key = last[0]
            value_from = token.end() if _is_model(key) else None
        elif depth == 1 and char in b",}":
            if value_from is not None:
                out.append(_trim(body, value_from, token.start()))
            key = value_from = None
        if char in b"}]":
            depth -= 1
            if depth <= 0:
                return out if depth == 0 and char == b"}" else []
        last = None
    return []  # it never closed


def _is_model(key: bytes) -> bool:
    if key == b'"model"':
        return True
    if b"\\" not in key:
        return False
    try:
        return bool(json.loads(key) == "model")
    except ValueError:
        return False


def _trim(body: bytes, start: int, stop: int) -> tuple[int, int]:
    while start < stop and body[start] in b" \t\r\n":
        start += 1
    while stop > start and body[stop - 1] in b" \t\r\n":
        stop -= 1
    return start, stop
