"""The breakers of this gateway, one a model: what requests met there decides whether the next one is sent."""

from __future__ import annotations

import asyncio
import logging

from gateway.metrics import Metrics
from rewarm import breaker
from rewarm.breaker import CLOSED, Breaker, State
from rewarm.errors import BreakerOpen, RewarmError
from rewarm.fallback import BROKE
from rewarm.remote import Paused

_log = logging.getLogger("rewarm.gateway.breakers")

_LEVELS = {State.CLOSED: 0.0, State.HALF_OPEN: 1.0, State.OPEN: 2.0}


class Breakers:
    """Models that are well have no entry, so that the hot path looks into an empty dictionary."""

    def __init__(self, metrics: Metrics) -> None:
        self._breakers: dict[str, Breaker] = {}
        self._now = asyncio.get_running_loop().time
        metrics.gauge(
            "rewarm_breaker_state",
            "Breakers of models that failed: 0 closed, 1 half-open, 2 open",
            ("model",),
            lambda: {(m,): _LEVELS[breaker.state(b, self._now())] for m, b in self._breakers.items()},
        )

    def admit(self, model: str) -> None:
        """Raise BreakerOpen. Otherwise one of the others must follow, once."""
        if not self._breakers:
            return
        one = self._breakers.get(model)
        if one is not None:
            let_in = breaker.admit(one, self._now())
            if let_in is None:
                raise self._refusal(model, one)
            self._breakers[model] = let_in

    def obstacle(self, model: str) -> str:
        """Why nothing may be sent there now; empty where it may."""
        one = self._breakers.get(model)
        if one is None or not breaker.opens_in_s(one, self._now()):
            return ""
        return f"its breaker is open ({one.reason})"

    def told(self, model: str) -> dict[str, object] | None:
        """For the model's description; None while all is well."""
        one = self._breakers.get(model)
        if one is None:
            return None
        now = self._now()
        in_s = round(breaker.opens_in_s(one, now), 1)
        return {
            "state": breaker.state(one, now).value,
            "failures": one.failures,
            "code": one.reason,
            "retry_in_s": in_s,
        }

    def succeeded(self, model: str) -> None:
        if self._breakers and self._breakers.pop(model, None) not in (None, CLOSED):
            _log.info("breaker closed model=%s", model)

    def failed(self, model: str, code: str, error: RewarmError | None = None) -> None:
        wait_s = error.wait_s if isinstance(error, Paused) else None
        before = self._breakers.get(model, CLOSED)
        now = self._now()
        after = self._breakers[model] = breaker.failed(before, code, now, retry_after_s=wait_s)
        if after.trips != before.trips:
            _log.warning(
                "breaker open model=%s code=%s failures=%d for_s=%.0f",
                *(model, code, after.failures, breaker.opens_in_s(after, now)),
            )

    def ended(self, model: str, code: str | None, error: RewarmError | None = None) -> None:
        """A request that was let in ended with this error; None: with nothing that says anything of the model."""
        if code in BROKE:  # not for a load that failed: the leader remembers that one
            self.failed(model, code, error)
        elif self._breakers and model in self._breakers:
            self._breakers[model] = breaker.given_up(self._breakers[model])

    def _refusal(self, model: str, one: Breaker) -> BreakerOpen:
        wait_s = breaker.opens_in_s(one, self._now())
        return BreakerOpen(
            f"{model!r} failed {one.failures} requests in a row (the last: {one.reason}); tried again in {wait_s:.0f} s"
        )
