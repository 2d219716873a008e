"""Small JSON requests to a gateway on this machine."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:  # http only
        out: dict[str, Any] = json.loads(answer.read())
        return out


def post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # http only
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # http only
        out: dict[str, Any] = json.loads(answer.read() or b"{}")
        return out
