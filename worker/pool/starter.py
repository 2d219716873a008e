"""A start from the pool, and a plain one where that is not possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rewarm.states import Tier
from snapshots import THROTTLE_ENV
from worker.containment import REPLICA_ENV, WORKER_ENV
from worker.pool.pool import NotPooled, Pool
from worker.report import REPORT_ENV
from worker.starting import Order, PlainStarter, Started

_OF_A_REPLICA = (REPLICA_ENV, WORKER_ENV, REPORT_ENV, THROTTLE_ENV)
"""The rest of a host's environment is the agent's own, which the pool has too."""


class PooledStarter:
    """``pools``: by engine."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools
        self._plain = PlainStarter()

    async def start(self, order: Order) -> Started:
        pool = self._pools.get(order.host.spec.engine)
        if pool is None:
            return await self._plain.start(order)
        own = {name: value for name, value in order.environment.items() if name in _OF_A_REPLICA}
        try:
            member = await pool.start(order.host, str(order.host_path), own, order.log)
            return Started(member, Tier.POOLED, proved=lambda weights: pool.proved(order.host, weights))
        except NotPooled as error:
            started = await self._plain.start(order)
            return Started(started.process, started.tier, str(error))

    async def give_back(self) -> bool:
        given: Sequence[bool] = [await pool.give_back() for pool in self._pools.values()]
        return any(given)
