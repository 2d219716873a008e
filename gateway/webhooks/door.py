"""What the rest of the gateway asks of webhooks: may this one be accepted, how far is it, and run."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fleet import Hooks, HookStatus
from gateway.webhooks.addresses import Allowed
from gateway.webhooks.delivery import Deliverer, ReadJobs, Settings
from gateway.webhooks.schedule import Bounds
from gateway.webhooks.sender import Lookup, Names, Sender
from gateway.webhooks.signing import Secret
from gateway.webhooks.target import parse_target
from rewarm.clock import Clock, SystemClock
from rewarm.config import WebhooksConfig
from rewarm.errors import WebhookRefused
from rewarm.jobs import Job, WebhookSpec


class Webhooks:
    """``secrets`` are those of ``config.secrets`` that the environment has (:func:`read_secrets`)."""

    def __init__(
        self,
        config: WebhooksConfig,
        secrets: Mapping[str, Secret],
        hooks: Hooks,
        jobs: ReadJobs,
        *,
        clock: Clock | None = None,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        allowed = Allowed.parse(config.allow, private=config.allow_private)
        self._hooks = hooks
        self._secrets = secrets
        self._names = config.secrets
        self._sender = Sender(allowed, config.timeout.total_seconds(), Names(lookup))
        settings = Settings(
            timeout=config.timeout,
            bounds=Bounds(config.max_tries, config.give_up_after),
            concurrency=config.concurrency,
            per_host=config.per_host,
            public_url=config.public_url,
        )
        self.deliverer = Deliverer(hooks, jobs, self._sender, secrets, settings, clock or SystemClock())

    async def check(self, spec: WebhookSpec | None) -> None:
        """Before a job is accepted. Raise WebhookRefused."""
        if spec is None:
            return
        if spec.secret_id not in self._secrets:
            raise WebhookRefused(f"webhook: {self._no_secret(spec.secret_id)}", param="webhook.secret_id")
        target = parse_target(spec.url)
        why = await self._sender.judge(target)
        if why is not None:
            raise WebhookRefused(f"webhook: {why}", param="webhook.url")

    async def shown(self, job: Job) -> dict[str, Any] | None:
        """A job's webhook for its JSON; None without one. Raise QueueUnavailable."""
        return (await self.shown_many([job]))[0]

    async def shown_many(self, jobs: Sequence[Job]) -> list[dict[str, Any] | None]:
        hooked = [job for job in jobs if job.spec.webhook is not None]
        found = await self._hooks.status([job.spec.id for job in hooked]) if hooked else []
        by_id = {job.spec.id: status for job, status in zip(hooked, found, strict=True)}
        return [_shown(job.spec.webhook, by_id.get(job.spec.id)) for job in jobs]

    def tries(self) -> dict[tuple[str, ...], float]:
        """How many ended how, since the start, for the metrics."""
        told, failed, given_up = self.deliverer.told, self.deliverer.failed, self.deliverer.given_up
        return {("delivered",): float(told), ("failed",): float(failed - given_up), ("given_up",): float(given_up)}

    async def run(self) -> None:
        """The delivery loop, until cancelled."""
        await self.deliverer.run()

    async def close(self) -> None:
        await self._sender.close()

    def _no_secret(self, name: str) -> str:
        variable = self._names.get(name)
        if variable is None:
            return f"no secret is named {name!r}; there are {', '.join(sorted(self._secrets)) or 'none'}"
        return f"the gateway signs every webhook, and its environment has no {variable}"


def _shown(spec: WebhookSpec | None, status: HookStatus | None) -> dict[str, Any] | None:
    if spec is None or status is None:
        return None
    return {
        "url": spec.url,
        "delivered": status.delivered > 0 and not status.waiting and not status.given_up,
        "given_up": status.given_up > 0,
        "tries": status.tries,
        "last_error": status.last_error,
        "next_try": _time(status.next_ms),
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
