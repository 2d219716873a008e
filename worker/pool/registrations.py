"""The models that a pool knows: what to prepare for each, what may not be, and what has been proved of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rewarm.messages import PreparedReport
from worker.engines.hostfile import HostFile
from worker.pool.kind import Kind, key, registration
from worker.pool.plan import ANY


@dataclass(frozen=True, slots=True)
class Refused:
    why: str
    until: float  # CLOCK_MONOTONIC


@dataclass(slots=True)
class Registrations:
    """``known``: key → what to prepare, the most recently used first. ``unsuitable``: model → why it starts plainly.
    ``unregistered``: models of which there is nothing to prepare, as they are told."""

    known: dict[str, HostFile] = field(default_factory=dict)
    unsuitable: dict[str, str] = field(default_factory=dict)
    unregistered: tuple[PreparedReport, ...] = ()
    in_parts: dict[str, str] = field(default_factory=dict)  # key → why its engine cannot be built ahead as a whole
    _refused: dict[str, Refused] = field(default_factory=dict)
    _proven: dict[str, set[str]] = field(default_factory=dict)

    def replace(self, wanted: Mapping[str, HostFile], kind: Kind) -> bool:
        """What is known from now on: key → what the host file of its model would be. True when that is a change."""
        judged = {name: kind.unsuitable(host.spec) for name, host in wanted.items()}
        self.unsuitable = {wanted[name].spec.model: why for name, why in judged.items() if why}
        found = {name: registration(host) for name, host in wanted.items() if not judged[name]}
        before = list(self.known)
        order = [*(name for name in before if name in found), *(name for name in found if name not in before)]
        self.known = {name: found[name] for name in order}
        self._refused = {name: refused for name, refused in self._refused.items() if name in found}
        self._proven = {name: weights for name, weights in self._proven.items() if name in found}
        self.in_parts = {name: why for name, why in self.in_parts.items() if name in found}
        return before != order

    def use(self, host: HostFile) -> str:
        """Its key; the model counts as the most recently used one. ANY for one that is not known."""
        name = key_of(host)
        if name not in self.known:
            return ANY
        self.known = {name: self.known[name], **self.known}
        return name

    def prove(self, host: HostFile, weights: str) -> None:
        """An engine of the pool has answered rightly for ``host`` with ``weights``."""
        name = key_of(host)
        if name in self.known and weights:
            self._proven.setdefault(name, set()).add(weights)

    def unprove(self, name: str) -> None:
        """Its engines are prepared otherwise from now on."""
        self._proven.pop(name, None)

    def proven(self, host: HostFile) -> tuple[str, ...]:
        return tuple(sorted(self._proven.get(key_of(host), ())))

    def forget_all_learnt(self) -> None:
        """Other versions are installed."""
        self._proven.clear()
        self.forget_refusals()

    def refuse(self, name: str, why: str, until: float = math.inf) -> None:
        self._refused[name] = Refused(why, until)

    def forget_refusals(self) -> None:
        self._refused.clear()
        self.in_parts.clear()

    def refused(self, now: float) -> frozenset[str]:
        self._refused = {name: refused for name, refused in self._refused.items() if now < refused.until}
        return frozenset(self._refused)

    def reports(self, ready: Mapping[str, int]) -> tuple[PreparedReport, ...]:
        """``ready``: key → processes, of what is prepared."""
        out = []
        for name, host in self.known.items():
            refused = self._refused.get(name)
            state = "refused" if refused is not None else "ready" if name in ready else "waiting"
            why = refused.why if refused is not None else self._less(name)
            out.append(PreparedReport(model=host.spec.model, state=state, reason=why, ready=ready.get(name, 0)))
        for model, why in self.unsuitable.items():
            out.append(PreparedReport(model=model, state="unsuitable", reason=why))
        return (*out, *self.unregistered)

    def _less(self, name: str) -> str:
        why = self.in_parts.get(name)
        return f"prepared in parts: {why}" if why else ""


def key_of(host: HostFile) -> str:
    """ANY where the checkpoint cannot be read: no registration has that."""
    try:
        return key(host)
    except OSError:
        return ANY
