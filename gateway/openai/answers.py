"""What the pages of OpenAI's conventions share: JSON, methods, parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.http import Request, Response
from rewarm.errors import InvalidRequest, MethodNotAllowed

_dump = msgspec.json.Encoder().encode


def json_answer(data: Any, status: int = 200) -> Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "Server": "rewarm"}
    return Response(body=_dump(data), status=status, headers=headers)


def only(request: Request, *methods: str) -> None:
    """Raise MethodNotAllowed."""
    method = "GET" if request.method == "HEAD" else request.method
    if method not in methods:
        raise MethodNotAllowed(f"{request.method} is not possible here; allowed: {', '.join(methods)}")


def page_limit(text: str | None, default: int = 20, most: int = 100) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise InvalidRequest(f"`limit` must be a number from 1 to {most}", param="limit")
    return int(text)


def truth(text: str | None, param: str) -> bool:
    if text is None or text.lower() in ("false", "0", ""):
        return False
    if text.lower() in ("true", "1"):
        return True
    raise InvalidRequest(f"`{param}` must be true or false", param=param)
