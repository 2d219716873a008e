"""A patient client of the jobs API: it waits where the gateway asks for it, and through restarts.

Everything sent here may be sent twice: a job is submitted under an idempotency key.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from rewarm.cli.api import TOKEN_HEADER, Gateway
from rewarm.errors import EngineBadResponse, NothingRunning

_TIMEOUT_S = 90.0  # beyond what `Prefer: wait` may take
_LATER = frozenset((408, 425, 429, 502, 503, 504))
_MAX_DELAY_S = 8.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def later(self) -> bool:
        """Worth asking again. A result that is no JSON stays what it is, whatever its status says of other requests."""
        return self.status in _LATER and self.error()[0] != EngineBadResponse.code

    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def error(self) -> tuple[str, str]:
        """(code, message)."""
        said = self.json().get("error")
        if not isinstance(said, dict):
            return "unknown", f"the gateway answers {self.status}"
        return str(said.get("code")), str(said.get("message"))


class JobsClient:
    """``trouble`` is what is waited for just now, for a person; '' when nothing is.

    ``patience_s`` bounds how long nobody may answer. A gateway that answers that it is full is waited for without end.
    """

    def __init__(self, gateway: Gateway, patience_s: float, connections: int) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if gateway.key:
            headers["Authorization"] = f"Bearer {gateway.key}"
        if gateway.token:
            headers[TOKEN_HEADER] = gateway.token
        self._url = gateway.url
        self._patience_s = patience_s
        self._http = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=connections),
            trust_env=True,
        )
        self._not_before = 0.0
        self._heard = time.monotonic()
        self.trouble = ""

    async def __aenter__(self) -> JobsClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def once(self, method: str, path: str) -> Answer:
        """Raise NothingRunning."""
        try:
            return (await self._send(method, path, None, {}))[0]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NothingRunning(f"no gateway answers at {self._url}: {error}") from error

    async def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """The first answer that is not "later". Raise NothingRunning when nobody answered for the whole patience."""
        failures = 0
        while True:
            await self._held_back()
            try:
                answer, retry_after = await self._send(method, path, body, headers or {})
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failures += 1
                why = str(error) or type(error).__name__
                if time.monotonic() - self._heard > self._patience_s:
                    raise NothingRunning(f"no gateway has answered for {self._patience_s:g} s: {why}") from error
                self._hold_back(_backoff_s(failures), f"no answer from {self._url}, trying again")
                continue
            self._heard = time.monotonic()
            if not answer.later:
                self.trouble = ""
                return answer
            failures += 1
            code, message = answer.error()
            self._hold_back(_backoff_s(failures) if retry_after is None else retry_after, f"{code}: {message}")

    def _hold_back(self, seconds: float, why: str) -> None:
        """All calls wait, not only the one that was told."""
        self.trouble = why
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    async def _held_back(self) -> None:
        while True:
            left_s = self._not_before - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s * random.uniform(1.0, 1.2))

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[Answer, float | None]:
        async with self._http.request(method, self._url + path, data=body, headers=headers) as response:
            data = await response.read()
            return Answer(response.status, data), _seconds(response.headers.get("Retry-After"))


def _backoff_s(failures: int) -> float:
    return float(min(0.25 * 2.0 ** min(failures - 1, 10), _MAX_DELAY_S))


def _seconds(text: str | None) -> float | None:
    return float(text[:4]) if text is not None and text.isascii() and text.isdigit() else None
