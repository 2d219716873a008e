"""The limits of one key: how much a minute, how large a request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.limits.usage import UsageTap
from gateway.limits.window import Window
from gateway.needs import Needs, needs_of
from rewarm.config import KeyConfig
from rewarm.errors import KeyLimitExceeded, RateLimitExceeded


@dataclass(slots=True)
class Charge:
    """What one request has been counted as, until its answer says better."""

    tokens: int
    second: int
    tap: UsageTap


class KeyLimits:
    """``requests`` and ``tokens`` are what may be spent a minute; None where that is not limited."""

    __slots__ = ("_max_context", "_max_output", "requests", "tenant", "tokens")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.requests: Window | None = None
        self.tokens: Window | None = None
        self._max_context: int | None = None
        self._max_output: int | None = None

    def configure(self, key: KeyConfig | None) -> None:
        """What was spent stays spent."""
        self.requests = _window(self.requests, key.requests_per_minute if key else None)
        self.tokens = _window(self.tokens, key.tokens_per_minute if key else None)
        self._max_context = key.max_context if key else None
        self._max_output = key.max_output_tokens if key else None

    @property
    def windows(self) -> dict[str, Window]:
        found = {"requests": self.requests, "tokens": self.tokens}
        return {name: window for name, window in found.items() if window is not None}

    @property
    def any(self) -> bool:
        return self.sized or self.requests is not None

    @property
    def sized(self) -> bool:
        """The body has to be read for them."""
        return self.tokens is not None or self._max_context is not None or self._max_output is not None

    def check(self, path: str, body: bytes) -> Needs | None:
        """Raise KeyLimitExceeded for a request that this key may not send at all. None: nothing had to be known."""
        if not self.sized:
            return None
        needs = needs_of(path, body)
        tokens = needs.prompt_tokens + needs.answer_tokens
        for name, limit, asked, what in (
            ("max_output_tokens", self._max_output, needs.answer_tokens, "an answer of up to"),
            ("max_context", self._max_context, tokens, "a context of about"),
            ("tokens_per_minute", self.tokens.limit if self.tokens else None, tokens, "about"),
        ):
            if limit is not None and asked > limit:
                raise KeyLimitExceeded(
                    f"the request asks for {what} {asked} tokens; the key {self.tenant!r} has {name} {limit}",
                    param="max_tokens" if name == "max_output_tokens" else None,
                )
        return needs

    def admit(self, path: str, body: bytes, now_ms: int) -> Charge | None:
        """Count the request. Raise KeyLimitExceeded, or RateLimitExceeded with the time after which it may pass."""
        if not self.any:
            return None
        needs = self.check(path, body)
        second = now_ms // 1000
        estimated = needs.prompt_tokens if needs is not None else 0
        tokens = estimated + (needs.answer_tokens if needs is not None else 0)
        amounts = {"requests": 1, "tokens": tokens}
        for name, window in self.windows.items():
            wait_s = window.wait_s(amounts[name], second)
            if wait_s:
                raise RateLimitExceeded(
                    f"the key {self.tenant!r} may spend {window.limit} {name} a minute; "
                    f"{window.left(second)} are left, this request takes {amounts[name]}",
                    retry_after_s=wait_s,
                    more=dict(self.headers(now_ms)),
                )
        for name, window in self.windows.items():
            window.spend(amounts[name], second)
        return Charge(tokens, second, UsageTap(estimated))

    def settle(self, charge: Charge, *, answered: bool, now_ms: int) -> None:
        """The answer has ended, or there is none: then it took no tokens."""
        if self.tokens is not None:
            total = charge.tap.total if answered else 0
            self.tokens.correct(total - charge.tokens, charge.second, now_ms // 1000)

    def headers(self, now_ms: int) -> Iterator[tuple[str, str]]:
        """Under the names that OpenAI's clients know."""
        second = now_ms // 1000
        for name, window in self.windows.items():
            yield f"x-ratelimit-limit-{name}", str(window.limit)
            yield f"x-ratelimit-remaining-{name}", str(window.left(second))
            yield f"x-ratelimit-reset-{name}", f"{window.reset_s(second)}s"


def _window(before: Window | None, limit: int | None) -> Window | None:
    if limit is None:
        return None
    if before is None:
        return Window(limit)
    before.limit = limit
    return before
