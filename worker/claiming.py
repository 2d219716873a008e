"""A claim that is repeated until it is answered, within the time that its offers are good for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleet import Claimed, Queue
from rewarm.errors import QueueUnavailable
from rewarm.ids import boot_id

CLAIM_AGAIN_WITHIN_S = 0.8
"""Grants are kept about three seconds at the gate; a late claim would offer dead ones."""


async def claim_steadily(
    queue: Queue,
    model: str,
    worker: str,
    replica: str,
    endpoint: str,
    offers: Sequence[str],
    *,
    max_jobs: int,
    boot: str,
) -> Claimed:
    """Repeated under the same id after an error: the claim may have happened, and then answers the same again.

    The grants are not released when it fails for good: gateways may hold them. They expire by themselves, and so do
    leases of jobs that nobody here knows of. Raise QueueUnavailable.
    """
    request_id = boot_id("claim")
    loop = asyncio.get_running_loop()
    until = loop.time() + CLAIM_AGAIN_WITHIN_S
    while True:
        try:
            return await queue.claim(
                model, worker, replica, endpoint, offers, request_id=request_id, max_jobs=max_jobs, boot=boot
            )
        except QueueUnavailable:
            if loop.time() >= until:
                raise
            await asyncio.sleep(0.1)
