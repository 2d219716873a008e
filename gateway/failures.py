"""Answers that failed after their status line said 200: remembered, so that the client's retry gets the true status."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

KEPT_S = 60.0
_MAX = 1000
_MAX_BODY_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Failed:
    status: int
    headers: dict[str, str]
    body: bytes
    code: str | None
    until: float


class FailedAnswers:
    """By the digest of (tenant, path, body). Each is told once."""

    def __init__(self) -> None:
        self._by_digest: dict[str, Failed] = {}
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def remember(self, digest: str, status: int, headers: dict[str, str], body: bytes, code: str | None) -> None:
        if len(body) > _MAX_BODY_BYTES:
            return
        while len(self._by_digest) >= _MAX:
            del self._by_digest[next(iter(self._by_digest))]
        self._by_digest[digest] = Failed(status, headers, body, code, self._loop.time() + KEPT_S)

    def take(self, digest: str) -> Failed | None:
        failed = self._by_digest.pop(digest, None)
        return failed if failed is not None and failed.until > self._loop.time() else None


def digest_of(tenant: str, path: str, body: bytes) -> str:
    """Names a request by who sends it and what it says: a retry has the same one."""
    hasher = hashlib.sha256(f"{tenant}\0{path}\0".encode())
    hasher.update(body)
    return hasher.hexdigest()[:40]
