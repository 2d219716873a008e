"""The fleet as this gateway sees it: in memory, refreshed by hints, kept while Redis is away.

Everything on the hot path reads from here and waits for nobody. A reading that fails leaves the last one in place;
after Redis has come back, workers that it does not know (it may have come back empty) are kept for two heartbeats more,
so that they can report again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from fleet import FleetView
from rewarm.errors import QueueUnavailable
from rewarm.messages import CatalogueEntry, Failure, Progress, ReplicaReport
from rewarm.states import LOADING, NOT_BEGUN, ModelState, ReplicaState

_log = logging.getLogger("rewarm.gateway.view")

REFRESH_EVERY_S = 1.0  # without any hint
REFRESH_AT_MOST_S = 0.1  # many hints make one reading


@dataclass(frozen=True, slots=True)
class Target:
    """A replica that is ready, as the hot path needs it."""

    replica: str
    worker: str
    endpoint: str
    slots: int
    beat_ms: int  # when its worker last reported
    report: ReplicaReport


class View:
    def __init__(self, snapshot: Callable[[], Awaitable[FleetView]], *, heartbeat_s: float) -> None:
        self._snapshot = snapshot
        self._grace_s = 2 * heartbeat_s
        self._grace_until = 0.0
        self._dirty = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._taken_at = 0.0
        self._failed = False  # the last reading failed
        self._names: dict[str, CatalogueEntry] = {}
        self._ready: dict[str, list[Target]] = {}
        self._asleep: dict[str, list[Target]] = {}
        self._loading: dict[str, Progress] = {}
        self._broken: dict[str, str] = {}
        self.fleet = FleetView(now_ms=0)
        self.known = False  # at least one reading succeeded
        self.available = False  # Redis answered the last time we asked
        self.on_change: Callable[[], None] | None = None

    # --- what the loops call -------------------------------------------------------------------------------------

    def hint(self) -> None:
        """Something changed: read again soon."""
        self._dirty.set()

    def lost(self) -> None:
        if self.available:
            _log.warning("redis is out of reach: serving ready models from the last reading")
        self.available = False

    def back(self, *, empty: bool) -> None:
        if empty:
            _log.warning("redis came back empty: a fresh start; workers and requests report again")
        self._grace_until = self._loop.time() + self._grace_s
        self._dirty.set()

    async def follow(self) -> None:
        """Read at each hint, at least every second, at most ten times a second."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_AT_MOST_S)
            try:
                async with asyncio.timeout(REFRESH_EVERY_S):
                    await self._dirty.wait()
            except TimeoutError:
                pass

    async def refresh(self) -> None:
        self._dirty.clear()
        try:
            fleet = await self._snapshot()
        except QueueUnavailable:
            # One slow answer is not an outage; a second one is.
            if self._failed or not self.known:
                self.lost()
            self._failed = True
            self._dirty.set()
            return
        self._failed = False
        if not self.available:
            if self.known:
                self.back(empty=False)
                self._dirty.clear()
            self.available = True
        self.adopt(fleet)

    def adopt(self, fleet: FleetView) -> None:
        """Make ``fleet`` the current reading and index it."""
        if self.known and self._loop.time() < self._grace_until:
            fleet = _with_missing(fleet, self.fleet)
        fleet = fleet.with_absent()
        self.fleet = fleet
        self.known = True
        self._taken_at = self._loop.time()
        self._names = {name: entry for entry in fleet.catalogue.values() for name in (*entry.aliases, entry.model)}
        ready: dict[str, list[Target]] = {}
        asleep: dict[str, list[Target]] = {}
        loading: dict[str, Progress] = {}
        broken: dict[str, str] = {}
        for beat in fleet.workers.values():
            for report in beat.replicas:
                if report.state in (ReplicaState.READY, ReplicaState.ASLEEP) and report.endpoint:
                    target = Target(report.replica, beat.worker, report.endpoint, report.slots, beat.at_ms, report)
                    known = ready if report.state is ReplicaState.READY else asleep
                    known.setdefault(report.model, []).append(target)
                    for adapter, why in report.adapters.items():
                        if why:
                            broken[adapter] = why
                        else:
                            known.setdefault(adapter, []).append(target)
                elif report.state in LOADING:
                    progress = fleet.progress.get(report.replica) or report.progress or _bare(report)
                    furthest = loading.get(report.model)
                    if furthest is None or progress.fraction > furthest.fraction:
                        loading[report.model] = progress
        self._ready, self._asleep, self._loading = ready, asleep, loading
        self._broken = {name: why for name, why in broken.items() if name not in ready and name not in asleep}
        if self.on_change is not None:
            self.on_change()

    # --- what requests ask ---------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Redis time, as far as we can tell without asking."""
        return self.fleet.now_ms + int((self._loop.time() - self._taken_at) * 1000)

    def entry(self, name: str) -> CatalogueEntry | None:
        return self._names.get(name)

    def entries(self) -> dict[str, CatalogueEntry]:
        """By every name a client may use, aliases included."""
        return self._names

    def home(self, model: str) -> str:
        """Whose replicas serve it: of an adapter its base's."""
        entry = self.fleet.catalogue.get(model)
        return model if entry is None else entry.home

    def homes(self, models: Iterable[str]) -> dict[str, str]:
        """Of those that are adapters: name → base."""
        return {model: home for model in models if (home := self.home(model)) != model}

    def broken(self, model: str) -> str:
        """Why an adapter is not served although its base is; empty where it is, or will be."""
        return self._broken.get(model, "")

    def behind(self, entry: CatalogueEntry) -> bool:
        """Of an adapter: its base is up, but without it, and so were its replicas started before it was configured."""
        return bool(entry.base and self._ready.get(entry.base) and entry.model not in self._ready)

    def ready(self, model: str) -> list[Target]:
        """The replicas that serve it: of an adapter those of its base that have it."""
        return self._ready.get(model, [])

    def asleep(self, model: str) -> list[Target]:
        """Replicas that a request wakes, if their worker still has the memory."""
        return self._asleep.get(model, [])

    def progress(self, model: str) -> Progress | None:
        """The load that is furthest, if any; its ETA is counted down since it was told. Before a load has begun: why
        not, in the leader's words, where it waits for something."""
        model = self.home(model)
        progress = self._loading.get(model)
        if progress is not None and progress.eta_s is not None and progress.at_ms:
            age_s = max(0, self.now_ms() - progress.at_ms) / 1000
            progress = msgspec.structs.replace(progress, eta_s=round(max(0.0, progress.eta_s - age_s), 2))
        explanation = self.fleet.explanations.get(model)
        if explanation is not None and (progress is None or progress.phase in NOT_BEGUN):
            return msgspec.structs.replace(progress or Progress(model=model), message=explanation.text)
        return progress

    def report(self, replica: str) -> ReplicaReport | None:
        return self.located(replica)[1]

    def located(self, replica: str) -> tuple[str, ReplicaReport | None]:
        """The worker that reports it, and what it reports; '' and None where nobody does."""
        for beat in self.fleet.workers.values():
            for report in beat.replicas:
                if report.replica == replica:
                    return beat.worker, report
        return "", None

    def failure(self, model: str) -> Failure | None:
        """Why the model cannot be loaded now; remembered by the leader for a while, so that retries are cheap."""
        status = self.fleet.statuses.get(self.home(model))
        if status is None or status.failed_until_ms <= self.now_ms():
            return None
        return status.failure

    def state(self, model: str) -> ModelState:
        """The best that any replica is; a remote one is always ready, as far as can be told."""
        entry = self.fleet.catalogue.get(model)
        if entry is not None and entry.remote is not None:
            return ModelState.READY
        if self._ready.get(model):
            return ModelState.READY
        if self.broken(model):
            return ModelState.FAILED
        home = self.home(model)
        if home in self._loading:
            return ModelState.LOADING
        if self._asleep.get(model):
            return ModelState.ASLEEP
        states = {report.state for _, report in self.fleet.replicas(home)}
        if ReplicaState.DRAINING in states:
            return ModelState.DRAINING
        if self.failure(model) is not None:
            return ModelState.FAILED
        return ModelState.COLD


def _bare(report: ReplicaReport) -> Progress:
    return Progress(model=report.model, replica=report.replica, phase=report.state, attempt=report.attempt)


def _with_missing(new: FleetView, old: FleetView) -> FleetView:
    """``new``, with the workers and the catalogue that only ``old`` has."""
    missing = {name: beat for name, beat in old.workers.items() if name not in new.workers}
    catalogue = new.catalogue or old.catalogue
    if not missing and catalogue is new.catalogue:
        return new
    return replace(new, workers={**missing, **new.workers}, catalogue=catalogue)
