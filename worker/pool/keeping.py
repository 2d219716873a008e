"""All pools of one agent: one a kind of engine. What the agent itself talks to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from rewarm.hub import is_hub
from rewarm.messages import PoolReport, PreparedReport, ReplicaSpec
from rewarm.states import FailureReason
from worker.engines.hostfile import HostFile
from worker.fetching import cached
from worker.launch import CannotStart, estimated, for_any_replica
from worker.pool.kind import KINDS, key
from worker.pool.pool import Pool
from worker.pool.starter import PooledStarter
from worker.supervise import supervised
from worker.surroundings import Surroundings

_log = logging.getLogger("rewarm.worker.pool")


class Pools:
    def __init__(self, surroundings: Surroundings, loading: Callable[[], bool]) -> None:
        self._around = surroundings
        self._pools = {engine: Pool(engine, surroundings, loading) for engine in KINDS}
        self.starter = PooledStarter(self._pools)

    @property
    def children(self) -> set[int]:
        """Processes whose end is waited for here."""
        return {pid for pool in self._pools.values() for pid in pool.children}

    def reports(self) -> tuple[PoolReport, ...]:
        """Of kinds that some model of the catalogue is of."""
        return tuple(pool.report() for pool in self._pools.values() if pool.concerned)

    async def register(self, specs: Mapping[str, ReplicaSpec]) -> None:
        """All models that may be asked of this worker. To be repeated: files come and change."""
        for engine, pool in self._pools.items():
            hosts: list[HostFile] = []
            unregistered: list[PreparedReport] = []
            for model, spec in specs.items():
                if spec.engine == engine:
                    here = await asyncio.to_thread(cached, spec)
                    try:
                        need = await estimated(here, self._around)
                    except CannotStart as error:
                        _log.debug("event=not-registered model=%s error=%s", model, error)
                        unregistered.append(_unregistered(here, error))
                        continue
                    hosts.append(for_any_replica(self._around, here, need))
            keyed, unreadable = await asyncio.to_thread(_keyed, hosts)
            pool.register(keyed, (*unregistered, *unreadable))

    async def measure(self) -> None:
        for pool in self._pools.values():
            await pool.measure()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for engine, pool in self._pools.items():
                tasks.create_task(supervised(f"pool {engine}", pool.run), name=f"pool {engine}")


def _unregistered(spec: ReplicaSpec, error: CannotStart) -> PreparedReport:
    if is_hub(spec.source) and error.fault.reason is FailureReason.WEIGHTS_MISSING:
        return PreparedReport(model=spec.model, state="waiting", reason="its first load downloads its weights")
    return PreparedReport(model=spec.model, state="refused", reason=str(error))


def _keyed(hosts: Iterable[HostFile]) -> tuple[dict[str, HostFile], list[PreparedReport]]:
    """By key, and those whose files cannot be read. Reads the checkpoints' folders."""
    out: dict[str, HostFile] = {}
    unreadable: list[PreparedReport] = []
    for host in hosts:
        try:
            out[key(host)] = host
        except OSError as error:
            unreadable.append(PreparedReport(model=host.spec.model, state="refused", reason=str(error)))
    return out, unreadable
