"""Jobs of remote models: claimed by any worker that has the upstream's key, and run there from here.

Nothing is reserved anywhere: ``concurrency`` bounds what this worker has under way at one upstream. While its breaker
is open nothing is claimed for it, and the jobs wait.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from typing import Protocol

from fleet import BANDS, JOB_BANDS, Queue
from rewarm import breaker, remote
from rewarm.breaker import CLOSED, State
from rewarm.errors import QueueUnavailable, RemoteUnreachable, RemoteUntrusted, RewarmError
from rewarm.ids import grant_id
from rewarm.jobs import JobLease
from rewarm.messages import CatalogueEntry, RemoteSpec
from rewarm.upstream import UpstreamPool, UpstreamResponse, UpstreamUnreachable, UpstreamUntrusted
from worker.claiming import claim_steadily
from worker.jobs.ask import Ask, Shape
from worker.jobs.door import Door
from worker.jobs.runner import JobRunner
from worker.jobs.verdict import Broke, End
from worker.supervise import wait_set

TICK_S = 2.0
_ALL_BANDS = (*BANDS, *JOB_BANDS.values())
_log = logging.getLogger("rewarm.worker.jobs")


class Availability(Protocol):
    @property
    def may_claim(self) -> bool:
        """Redis is reachable and the agent does not drain."""


class RemotePlace:
    """One upstream, in the place of a replica. Raise OSError or SSLError for a ``ca_file`` that cannot be used."""

    leaving = False
    serving = True

    def __init__(self, entry: CatalogueEntry, spec: RemoteSpec, key: str | None, worker: str) -> None:
        self.id = f"remote-{entry.model}-{worker}"
        self.spec = spec
        self.entry = entry
        self.breaker = CLOSED
        self._key = key
        self._address = remote.Address.of(spec.url)
        tls = ssl.create_default_context(cafile=spec.ca_file) if self._address.endpoint.startswith("tls:") else None
        self.pool = UpstreamPool(connect_timeout_s=spec.connect_timeout_s, tls=tls)

    @property
    def answer_stall_s(self) -> float:
        return self.entry.spec.answer_stall_s

    async def slot(self) -> str | None:
        return "remote"

    def refuses(self, model: str) -> End | None:
        return None  # a remote model has no adapters of ours

    def enter(self, pool: UpstreamPool) -> Door:
        return self

    def room(self, running: int, now_s: float) -> int:
        """Jobs that may begin now."""
        if breaker.opens_in_s(self.breaker, now_s):
            return 0
        if breaker.state(self.breaker, now_s) is not State.CLOSED:
            return 1 if not running else 0  # the probe
        return max(0, self.entry.spec.slots - running)

    # --- as a door ---------------------------------------------------------------------------------------------------

    async def open(self, lease: JobLease, grant: str, ask: Ask) -> UpstreamResponse:
        headers = remote.headers(self._key, stream=ask.shape is not Shape.PLAIN)
        body = remote.body_for(ask.body, self.entry.spec.upstream_model or self.entry.model)
        return await self.pool.open(
            self._address.endpoint, "POST", self._address.target(lease.spec.path), headers, body
        )

    def unreachable(self, error: UpstreamUnreachable) -> End:
        model = self.entry.model
        if isinstance(error, UpstreamUntrusted):
            return self._broke(RemoteUntrusted(f"the upstream of {model!r} has no valid certificate: {error}"))
        return self._broke(RemoteUnreachable(f"the upstream of {model!r} takes no connection: {error}"))

    def refused(self, answer: UpstreamResponse) -> End | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        error = remote.refusal(self.entry.model, answer.status, headers)
        if error is not None:
            return self._broke(error)
        self.breaker = breaker.succeeded(self.breaker)
        return None

    def named(self, data: bytes) -> bytes:
        return remote.renamed(data, self.entry.model)

    def _broke(self, error: RewarmError) -> Broke:
        wait_s = error.wait_s if isinstance(error, remote.Paused) else None
        self.breaker = breaker.failed(self.breaker, error.code, time.monotonic(), retry_after_s=wait_s)
        return Broke(error.code, error.message)


class RemoteJobs:
    """``environ`` is where the keys are looked up."""

    def __init__(
        self, queue: Queue, jobs: JobRunner, worker: str, availability: Availability, environ: Mapping[str, str]
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._worker = worker
        self._availability = availability
        self._environ = environ
        self._places: dict[str, RemotePlace] = {}
        self._unusable: dict[str, str] = {}  # said already
        self._poked = asyncio.Event()

    def poke(self) -> None:
        self._poked.set()

    @property
    def running(self) -> int:
        return sum(self._jobs.generating(place.id, _ALL_BANDS) for place in self._places.values())

    async def register(self, entries: Mapping[str, CatalogueEntry]) -> None:
        """The models of the fleet, as they are now; what runs at an upstream that is no more runs on."""
        wanted = {name: entry for name, entry in entries.items() if entry.remote is not None}
        for name in self._places.keys() - wanted.keys():
            del self._places[name]
        for name, entry in wanted.items():
            known = self._places.get(name)
            if known is not None and known.spec == entry.remote:
                known.entry = entry
            elif entry.remote is not None:
                self._add(name, entry, entry.remote)

    async def run(self) -> None:
        while True:
            await wait_set(self._poked, TICK_S)
            if not self._availability.may_claim:
                continue
            for place in list(self._places.values()):
                try:
                    await self._claim(place)
                except QueueUnavailable as error:
                    _log.debug("event=no-claims model=%s error=%s", place.entry.model, error)

    async def close(self) -> None:
        for place in self._places.values():
            await place.pool.close()

    def _add(self, name: str, entry: CatalogueEntry, spec: RemoteSpec) -> None:
        key = self._environ.get(spec.key_env, "").strip() if spec.key_env is not None else None
        try:
            if key == "":
                raise ValueError(f"the environment has no {spec.key_env}")
            self._places[name] = RemotePlace(entry, spec, key, self._worker)
            self._unusable.pop(name, None)
        except (OSError, ssl.SSLError, ValueError) as error:
            self._places.pop(name, None)
            if self._unusable.get(name) != str(error):
                self._unusable[name] = str(error)
                _log.warning("event=remote-unusable model=%s its jobs are left to other workers: %s", name, error)

    async def _claim(self, place: RemotePlace) -> None:
        model = place.entry.model
        room = place.room(self._jobs.generating(place.id, _ALL_BANDS), time.monotonic())
        if not room:
            return
        waiting = (await self._queue.waiting([model])).get(model)
        wanted = 0 if waiting is None else min(room, waiting.jobs)
        if not wanted:
            return
        admitted = breaker.admit(place.breaker, time.monotonic())
        if admitted is None:
            return
        place.breaker = admitted
        offers = [grant_id() for _ in range(wanted)]
        claimed = await claim_steadily(
            self._queue, model, self._worker, place.id, "", offers, max_jobs=wanted, boot=self._jobs.boot
        )
        if not claimed.jobs:
            place.breaker = breaker.given_up(place.breaker)
        for lease in claimed.jobs:
            self._jobs.take(lease, place, self.poke)
