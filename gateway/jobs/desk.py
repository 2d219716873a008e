"""Where jobs are handed in, through whichever door they came: what a key may ask is checked, and what the
configuration says is written into the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from fleet import JOB_BANDS, Jobs, Submitted
from gateway.jobs.order import Order
from gateway.jobs.showing import Showing
from gateway.jobs.watching import JobWatch
from gateway.keys import Caller
from gateway.view import View
from rewarm.config import BANDS, JobsConfig, Priority
from rewarm.errors import InvalidRequest, JobNotFound, ModelNotFound, QueueUnavailable
from rewarm.ids import job_id
from rewarm.jobs import Job, JobSpec, WebhookSpec
from rewarm.messages import CatalogueEntry, Ticket, Wake, to_json


class Webhooks(Protocol):
    """What the desk needs of :mod:`gateway.webhooks`."""

    async def check(self, spec: WebhookSpec | None) -> None:
        """Raise WebhookRefused for a target that may not be called."""

    async def shown(self, job: Job) -> dict[str, Any] | None:
        """How far the telling of a job is."""


class Wakes(Protocol):
    """What the desk needs of :mod:`gateway.wakes`."""

    async def of(self, job: Job) -> Wake | None:
        """The wake that a job waited for; nothing is raised."""


class Chains(Protocol):
    """What the desk needs of :mod:`gateway.standby`: who may answer a job instead, of those that can."""

    def of_job(
        self, caller: Caller, entry: CatalogueEntry, headers: Mapping[str, str], path: str, body: bytes
    ) -> tuple[str, ...]:
        """Raise InvalidHeader."""

    def of_line(
        self, models: Sequence[str] | None, entry: CatalogueEntry, path: str, body: bytes
    ) -> tuple[str, ...]: ...


class JobDesk:
    """``jobs`` is what lies in Redis, ``watch`` waits for changes, ``showing`` describes."""

    def __init__(
        self,
        config: JobsConfig,
        jobs: Jobs,
        view: View,
        watch: JobWatch,
        showing: Showing,
        webhooks: Webhooks,
        wakes: Wakes,
        chains: Chains,
    ) -> None:
        self.config = config
        self.jobs = jobs
        self.watch = watch
        self.showing = showing
        self._view = view
        self._webhooks = webhooks
        self._wakes = wakes
        self.chains = chains

    def now_ms(self) -> int:
        return self._view.now_ms()

    def entry(self, caller: Caller, model: str) -> CatalogueEntry:
        """The model by any of its names. Raise ModelNotFound, ModelNotAllowed, or QueueUnavailable before the first
        reading."""
        entry = self._view.entry(model)
        if entry is None:
            if not self._view.known:
                raise QueueUnavailable("this gateway has not been able to read the fleet's state yet")
            raise ModelNotFound(f"the model {model!r} does not exist", param="model")
        caller.check(entry, model)
        return entry

    def spec(
        self,
        caller: Caller,
        entry: CatalogueEntry,
        order: Order,
        *,
        id_: str | None = None,
        kind: Literal["job", "response", "batch"] = "job",
        batch: str | None = None,
        custom_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JobSpec:
        """Raise InvalidRequest for a priority above what the key's jobs may have, InvalidHeader."""
        priority = self.priority(caller, order.priority)
        deadline_ms: int | None = None
        if order.start_deadline_s is not None:
            deadline_ms = self._view.now_ms() + int(order.start_deadline_s * 1000)
        config = self.config
        fallback = self.chains.of_job(caller, entry, headers or {}, order.endpoint.path, order.body)
        return JobSpec(
            id=id_ or job_id(),
            tenant=caller.tenant,
            model=entry.model,
            asked_model=order.model,
            path=order.endpoint.path,
            kind=kind,
            priority=priority,
            band=JOB_BANDS[priority],
            weight=caller.weight,
            start_deadline_ms=deadline_ms,
            max_attempts=config.max_attempts,
            max_loads=config.max_loads,
            max_run_s=config.max_run.total_seconds(),
            retention_s=int(config.retention.total_seconds()),
            webhook=order.webhook,
            metadata=order.metadata,
            batch=batch,
            custom_id=custom_id,
            stream=order.stream,
            fallback=fallback,
            homes=self._view.homes((entry.model, *fallback)),
        )

    def handed_off(
        self, caller: Caller, entry: CatalogueEntry, order: Order, ticket: Ticket, headers: Mapping[str, str]
    ) -> JobSpec:
        """The job that takes the place of a held request: in its band, with its weight."""
        spec = self.spec(caller, entry, order, headers=headers)
        return replace(spec, band=ticket.band, weight=ticket.weight, cost=ticket.cost, priority=caller.priority)

    def priority(self, caller: Caller, asked: Priority | None) -> Priority:
        """What was asked, or the key's own. Raise InvalidRequest where its jobs may not ask for so much."""
        most = BANDS[caller.job_priority]
        if asked is None:
            return max(caller.priority, caller.job_priority, key=BANDS.__getitem__)
        if BANDS[asked] < most:
            raise InvalidRequest(
                f"`priority`: the jobs of the key {caller.tenant!r} may ask for {caller.job_priority} at most",
                param="priority",
            )
        return asked

    async def submit(self, spec: JobSpec, body: bytes, *, idempotency: tuple[str, str] | None = None) -> Submitted:
        """Raise WebhookRefused, JobsFull, IdempotencyConflict or QueueUnavailable; nothing is kept then."""
        await self._webhooks.check(spec.webhook)
        return await self.jobs.submit(spec, body, idempotency=idempotency)

    async def describe(self, job: Job) -> dict[str, Any]:
        """With the wake that it waited for, and what has become of its webhook, if Redis says: an accepted job is told
        of in any case."""
        told = self.showing.describe(job)
        wake = await self._wakes.of(job)
        told["wake"] = None if wake is None else to_json(wake)
        if job.spec.webhook is not None:
            try:
                told["webhook"] = await self._webhooks.shown(job) or told["webhook"]
            except QueueUnavailable:
                pass
        return told

    async def get(self, id_: str, tenant: str | None) -> Job:
        """Raise JobNotFound, also for another tenant's: nobody learns which ids exist. None sees all."""
        job = await self.jobs.get(id_)
        if job is None or (tenant is not None and job.spec.tenant != tenant):
            raise JobNotFound(f"there is no job {id_!r}")
        return job
