"""The delivery loop: claim what is due, send it, write down how it went."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from fleet import Delivery, Hooks
from gateway.webhooks.hosts import Hosts
from gateway.webhooks.payload import message_id, payload
from gateway.webhooks.schedule import Again, Answer, Bounds, GivenUp, Told, follow
from gateway.webhooks.signing import Secret, sign
from gateway.webhooks.target import Target, parse_target
from rewarm import __version__
from rewarm.clock import Clock
from rewarm.errors import QueueUnavailable, WebhookRefused
from rewarm.ids import boot_id
from rewarm.jobs import Job, WebhookSpec

_log = logging.getLogger("rewarm.gateway.webhooks")

POLL_S = 0.5
_REDIS_AWAY_S = 2.0
_PRUNE_EVERY_S = 300.0
_MARGIN = timedelta(seconds=20)  # a lease is longer than a try: for Redis, and for a loop that is late


class Post(Protocol):
    async def post(self, target: Target, headers: dict[str, str], body: bytes) -> Answer: ...


class ReadJobs(Protocol):
    async def get_many(self, ids: Sequence[str]) -> list[Job | None]: ...


@dataclass(frozen=True, slots=True)
class Settings:
    timeout: timedelta  # of one try
    bounds: Bounds
    concurrency: int
    per_host: int
    public_url: str | None = None


class Deliverer:
    """Deliveries under way are tasks of :meth:`run`. ``told`` and ``failed`` count tries, ``given_up`` the failed ones
    that were the last."""

    def __init__(
        self,
        hooks: Hooks,
        jobs: ReadJobs,
        sender: Post,
        secrets: Mapping[str, Secret],
        settings: Settings,
        clock: Clock,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._hooks = hooks
        self._jobs = jobs
        self._sender = sender
        self._secrets = secrets
        self._settings = settings
        self._clock = clock
        self._luck = luck
        self._lease = settings.timeout + _MARGIN
        self._hosts = Hosts(settings.per_host)
        self._running: set[asyncio.Task[None]] = set()
        self.told = self.failed = self.given_up = 0

    @property
    def under_way(self) -> int:
        return len(self._running)

    async def run(self) -> None:
        """Until cancelled; what is under way then is claimed again when its lease has passed."""
        pruned = self._clock.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    started = await self.round(group)
                except QueueUnavailable as error:
                    _log.info("webhooks wait for redis: %s", error.message)
                    await self._clock.sleep(_REDIS_AWAY_S)
                    continue
                if self._clock.monotonic() - pruned > _PRUNE_EVERY_S:
                    pruned = self._clock.monotonic()
                    self._hosts.prune(pruned)
                if not started:
                    await self._clock.sleep(POLL_S)
                elif self.under_way >= self._settings.concurrency:
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._running:
            await asyncio.wait(self._running)

    async def round(self, group: asyncio.TaskGroup) -> int:
        """Claim as much as there is room for and start it. How many were started or put off."""
        room = self._settings.concurrency - self.under_way
        if room <= 0:
            return 0
        claimed = await self._hooks.claim(boot_id("hook"), room, self._lease)
        jobs = await self._jobs.get_many([delivery.job for delivery in claimed]) if claimed else []
        for delivery, job in zip(claimed, jobs, strict=True):
            if job is None or job.spec.webhook is None:
                await self._hooks.drop(delivery.job)
                continue
            await self._start(group, delivery, job, job.spec.webhook)
        return len(claimed)

    async def _start(self, group: asyncio.TaskGroup, delivery: Delivery, job: Job, spec: WebhookSpec) -> None:
        try:
            target = parse_target(spec.url)
        except WebhookRefused as error:  # the rules became stricter since
            self.failed += 1
            self.given_up += 1
            await self._hooks.give_up(delivery, error.message)
            return
        wait_s = self._hosts.admit(target.name, self._clock.monotonic())
        if wait_s is not None:
            await self._hooks.defer(delivery, timedelta(seconds=wait_s))
            return
        task = group.create_task(self._deliver(delivery, job, spec, target), name=f"webhook-{delivery.job}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _deliver(self, delivery: Delivery, job: Job, spec: WebhookSpec, target: Target) -> None:
        started = self._clock.monotonic()
        answer = Answer(None, "cut off")
        try:
            answer = await self._try(delivery, job, spec, target)
        except Exception as error:  # noqa: BLE001 -- a bug met by one delivery must not end those of others
            _log.exception("webhook job=%s failed unexpectedly", delivery.job)
            answer = Answer(None, f"internal error: {type(error).__name__}")
        finally:
            ended = self._clock.monotonic()
            self._hosts.ended(target.name, ended, ended - started, well=answer.status is not None)
        try:
            await self._write_down(delivery, target, answer)
        except QueueUnavailable as error:
            # It is claimed again when the lease has passed, and told twice if it was told: under the same id.
            _log.info("webhook job=%s not written down: %s", delivery.job, error.message)

    async def _try(self, delivery: Delivery, job: Job, spec: WebhookSpec, target: Target) -> Answer:
        secret = self._secrets.get(spec.secret_id)
        if secret is None:
            return Answer(None, f"this gateway has no secret named {spec.secret_id!r}")
        body = payload(delivery, job, self._settings.public_url)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"rewarm/{__version__}",
            **sign(secret, message_id(delivery), int(self._clock.now()), body),
        }
        return await self._sender.post(target, headers, body)

    async def _write_down(self, delivery: Delivery, target: Target, answer: Answer) -> None:
        tries = delivery.tries + 1
        age_s = (delivery.now_ms - delivery.created_ms) / 1000
        what = f"job={delivery.job} event={delivery.event} target={target.name} try={tries}"
        match follow(answer, tries, age_s, self._clock.now(), self._luck(), self._settings.bounds):
            case Told():
                self.told += 1
                _log.info("webhook delivered %s status=%s", what, answer.status)
                await self._hooks.done(delivery)
            case Again(delay, error):
                self.failed += 1
                _log.info("webhook failed %s next_s=%.0f error=%s", what, delay.total_seconds(), error)
                await self._hooks.retry(delivery, delay, error)
            case GivenUp(error):
                self.failed += 1
                self.given_up += 1
                _log.warning("webhook given up %s error=%s", what, error)
                await self._hooks.give_up(delivery, error)
