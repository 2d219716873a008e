"""Who may answer a request instead of the model that it asked for: one request's way down its chain.

The decision is in :mod:`rewarm.fallback`; here is what it is made from (how the links stand, as this gateway sees
them), and what follows from it for the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.breakers import Breakers
from gateway.calls import Call
from gateway.dispatch import Dispatcher
from gateway.keys import Caller
from gateway.metrics import Metrics
from gateway.needs import Needs, needs_of, obstacle
from gateway.remotes import Remotes
from gateway.view import View
from rewarm.errors import InvalidHeader, RewarmError
from rewarm.fallback import FALLS_BACK, Chain, Failed, FirstByte, GiveUp, Outlook, Stay, Step, Switch, Waits, decide
from rewarm.messages import CatalogueEntry

_log = logging.getLogger("rewarm.gateway.standby")

HEADER = "X-Rewarm-Fallback"
LOOK_EVERY_S = 0.5
"""How often a request that waits looks whether its model will be late."""


class Late(Exception):
    """The model is not waited for any longer: ``step`` says who answers."""

    def __init__(self, step: Switch) -> None:
        super().__init__(step.reason)
        self.step = step


class Fallbacks:
    """What all requests of a gateway look at."""

    def __init__(
        self, view: View, dispatcher: Dispatcher, breakers: Breakers, remotes: Remotes, metrics: Metrics
    ) -> None:
        self.view = view
        self.dispatcher = dispatcher
        self.breakers = breakers
        self.remotes = remotes
        self.metrics = metrics

    def of(self, call: Call) -> Standby | None:
        """None where nobody may answer instead. Raise InvalidHeader."""
        links = self.links(call.request.headers, call.entry)
        return Standby(call, links, self) if links else None

    def links(self, headers: Mapping[str, str], entry: CatalogueEntry) -> tuple[str, ...]:
        """The model's chain, or the part of it that the request allows: ``none``, or names out of it, in the client's
        order. Raise InvalidHeader."""
        chain = entry.policy.fallback
        asked = headers.get(HEADER)
        if asked is None:
            return chain
        names = [name.strip() for name in asked.split(",") if name.strip()]
        if names == ["none"]:
            return ()
        links: dict[str, None] = {}
        for name in names:
            found = self.view.entry(name)
            if found is None or found.model not in chain:
                allowed = ", ".join(("none", *chain))
                raise InvalidHeader(f"{HEADER}: {name[:96]!r} is none of {allowed}", param=HEADER)
            links[found.model] = None
        return tuple(links)

    def of_job(
        self, caller: Caller, entry: CatalogueEntry, headers: Mapping[str, str], path: str, body: bytes
    ) -> tuple[str, ...]:
        """Whoever may answer a job and can, whatever they are doing now. Raise InvalidHeader."""
        return self._able(self.links(headers, entry), path, body, caller.may_use)

    def of_line(self, models: Sequence[str] | None, entry: CatalogueEntry, path: str, body: bytes) -> tuple[str, ...]:
        """The same for a line of a batch, whose key may use ``models`` (None: all)."""

        def allowed(link: CatalogueEntry) -> bool:
            return models is None or not set(models).isdisjoint(link.spec.served_names)

        return self._able(entry.policy.fallback, path, body, allowed)

    def _able(
        self, links: tuple[str, ...], path: str, body: bytes, allowed: Callable[[CatalogueEntry], bool]
    ) -> tuple[str, ...]:
        if not links:
            return ()
        needs = needs_of(path, body)
        entries = (found for link in links if (found := self.view.entry(link)) is not None)
        return tuple(one.model for one in entries if allowed(one) and not obstacle(needs, one.capabilities))

    def outlook(self, entry: CatalogueEntry) -> Outlook:
        """How a model stands, for anybody's request."""
        model, view = entry.model, self.view
        why = self.breakers.obstacle(model)
        if why:
            return Outlook(obstacle=why)
        if entry.remote is not None:
            return self.remotes.outlook(entry)
        if broken := view.broken(model):
            return Outlook(obstacle=f"the adapter could not be loaded ({broken})")
        if view.ready(model) or view.asleep(model):
            return Outlook(0.0 if self.dispatcher.choose(model) is not None else None)
        failure = view.failure(model)
        if failure is not None:
            return Outlook(obstacle=f"it could not be loaded ({failure.reason.value})")
        if not view.available:
            return Outlook(obstacle="it is not ready, and Redis is out of reach")
        progress = view.progress(model)
        return Outlook(None if progress is None else progress.eta_s)


class Standby:
    """One request's chain. It is on ``call`` as long as the request lives."""

    def __init__(self, call: Call, links: tuple[str, ...], fallbacks: Fallbacks) -> None:
        self._call = call
        self._all = fallbacks
        self._now = asyncio.get_running_loop().time
        self._chain = Chain(call.asked, links, since_s=self._now())
        self._needs: Needs | None = None
        self._errors: list[tuple[str, RewarmError]] = []

    # --- what happened ------------------------------------------------------------------------------------------

    def helps(self, code: str) -> bool:
        """Whether somebody else would answer if the current model failed with ``code`` now."""
        return isinstance(self._decide(Failed(code)), Switch)

    def failed(self, error: RewarmError, *, answering: bool) -> bool:
        """The current model will not answer. True: ``call`` is at another one now; False: the error is to be told as it
        is. Raise the one that its client is told when nobody is left."""
        if answering:
            self._chain = self._keep(FirstByte())
        if answering or error.code not in FALLS_BACK:
            return False
        self._errors.append((self._chain.current, error))
        step = self._decide(Failed(error.code))
        if isinstance(step, Switch):
            self.go(step)
            return True
        raise self._last_words(step) from error

    def look(self, eta_s: float | None, patience_left_s: float) -> None:
        """While it waits: raise Late when it need not any longer."""
        step = self._decide(Waits(eta_s, self._call.entry.policy.fallback_after_s, patience_left_s))
        if isinstance(step, Switch):
            raise Late(step)

    @property
    def waits_on(self) -> bool:
        """Whether it is worth looking again."""
        return bool(self._chain.left)

    def go(self, step: Switch) -> None:
        """On to ``step.chain.current``."""
        call, before = self._call, self._chain.current
        self._chain = step.chain
        entry = self._all.view.entry(step.chain.current)
        if entry is None:
            raise RuntimeError(f"{step.chain.current} was there a moment ago")
        call.address(entry)
        call.fallback = "" if entry.model == call.asked else step.reason
        call.replica = call.worker = call.tier = call.slept = call.wake = None
        call.start = "warm"
        self._all.metrics.fallbacks.add(before, entry.model, step.reason)
        skipped = ", ".join(f"{name}: {why}" for name, why in step.skipped)
        _log.info(
            "request=%s fallback from=%s to=%s reason=%s skipped=%r", call.id, before, entry.model, step.reason, skipped
        )

    # --- inside -------------------------------------------------------------------------------------------------

    def _decide(self, event: Failed | Waits) -> Step:
        return decide(self._chain, event, self._now(), self._outlook)

    def _keep(self, event: FirstByte) -> Chain:
        step = decide(self._chain, event, self._now(), self._outlook)
        return step.chain if isinstance(step, Stay) else self._chain

    def _outlook(self, link: str) -> Outlook:
        entry = self._all.view.entry(link)
        if entry is None:
            return Outlook(obstacle="it is no model any more")
        if not self._call.caller.may_use(entry):
            return Outlook(obstacle="the key may not use it")
        if self._needs is None:
            self._needs = needs_of(self._call.path, self._call.body)
        why = obstacle(self._needs, entry.capabilities)
        return Outlook(obstacle=why) if why else self._all.outlook(entry)

    def _last_words(self, step: Step) -> RewarmError:
        """The error of the model that was asked for, with what became of those behind it."""
        told: list[dict[str, Any]] = [
            {"model": model, "code": error.code, "message": error.message} for model, error in self._errors[1:]
        ]
        if isinstance(step, GiveUp):
            told += [{"model": model, "code": None, "message": why} for model, why in step.skipped]
        error = self._errors[0][1]
        if told:
            error.extra["fallbacks"] = told
        call = self._call
        call.fallback, call.entry = "", self._all.view.entry(call.asked) or call.entry
        return error
