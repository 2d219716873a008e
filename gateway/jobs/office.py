"""Everything about jobs in one gateway, put together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from fleet import FleetClient, Hooks, JobLimits, Jobs, Queue
from gateway.drain import Drain
from gateway.failures import FailedAnswers
from gateway.holding import Holding
from gateway.http import Answer, Request
from gateway.jobs.desk import Chains, JobDesk
from gateway.jobs.handoff import HandedOff
from gateway.jobs.pages import JobPages
from gateway.jobs.showing import Showing
from gateway.jobs.watching import JobWatch
from gateway.keys import Keyring
from gateway.operators import Operators
from gateway.view import View
from gateway.wakes import WakesOfJobs
from gateway.webhooks import Secret, Webhooks
from rewarm.config import JobsConfig

Page = Callable[[Request, str], Awaitable[Answer]]


class JobOffice:
    """``loops`` are for the gateway's background, ``pages`` for its table of paths."""

    def __init__(
        self,
        config: JobsConfig,
        client: FleetClient,
        view: View,
        drain: Drain,
        *,
        queue: Queue,
        failed: FailedAnswers,
        webhook_secrets: Mapping[str, Secret],
        wakes: WakesOfJobs,
        chains: Chains,
    ) -> None:
        self.jobs = Jobs(client, _limits(config))
        self.watch = JobWatch(self.jobs, lambda: drain.begun)
        self.webhooks = Webhooks(config.webhooks, webhook_secrets, Hooks(client), self.jobs)
        self.desk = JobDesk(config, self.jobs, view, self.watch, Showing(view), self.webhooks, wakes, chains)
        self.hand_off = HandedOff(config.hand_off, self.desk, queue, failed)

    def configure(self, config: JobsConfig) -> None:
        """For jobs that come from now on. ``webhooks`` is taken at the start."""
        self.jobs.limits = _limits(config)
        self.desk.config = config
        self.hand_off.policy = config.hand_off

    def pages(self, keys: Keyring, operators: Operators, holding: Holding) -> JobPages:
        return JobPages(self.desk, keys, operators, holding)

    def loops(self) -> Iterable[tuple[str, Callable[[], Awaitable[None]]]]:
        return (("jobs", self.watch.follow), ("webhooks", self.webhooks.run))

    async def close(self) -> None:
        await self.webhooks.close()
        await self.jobs.close()


def _limits(config: JobsConfig) -> JobLimits:
    return JobLimits(
        max_body=config.max_body,
        max_bytes_tenant=config.max_bytes_per_tenant,
        max_bytes_total=config.max_bytes,
        max_jobs_tenant=config.max_per_tenant,
        max_result=config.max_result,
    )
