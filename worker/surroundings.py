"""What the replicas of one agent share: folders, memory, the machine's lock, connections to gates, Redis time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rewarm.config import Config
from rewarm.paths import Paths
from rewarm.pending import typical_s
from rewarm.tracing import Tracing
from rewarm.upstream import UpstreamPool
from worker.devices.ledgers import Ledgers
from worker.devices.lock import DeviceLock
from worker.devices.watch import DeviceWatch
from worker.eta import DEFAULT_BANDWIDTH
from worker.limits.cgroups import Groups
from worker.limits.confinement import Pinned
from worker.pacing.loads import Loads
from worker.starting import PlainStarter, Starter


@dataclass(slots=True)
class Surroundings:
    config: Config
    paths: Paths
    marker: str  # value of REWARM_WORKER
    secret: str  # the fleet's, for gates on TCP
    ledgers: Ledgers
    watch: DeviceWatch
    device: DeviceLock
    pool: UpstreamPool
    monotonic: Callable[[], float] = time.monotonic
    lenders: dict[str, Callable[[], Awaitable[bool]]] = field(default_factory=dict)  # see worker.sleeping
    groups: Groups | None = None  # where control groups can be made
    pinned: Pinned = field(default_factory=dict)
    only: str = ""  # the one model that the worker of a place serves
    loads: Loads = field(default_factory=Loads)
    starter: Starter = field(default_factory=PlainStarter)
    tracing: Tracing | None = None
    cwd: str = field(default_factory=os.getcwd)
    bandwidths: tuple[float, ...] = ()  # bytes/s, of the last loads that were measured
    history: dict[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)  # (model, tier, phase) → s
    redis_offset_ms: float | None = None  # Redis TIME less CLOCK_MONOTONIC; None until Redis was reached
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # some replica's state: heartbeat at once
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # some load's progress
    room: asyncio.Event = field(default_factory=asyncio.Event)  # memory was given back, or a replica's end began

    @property
    def worker(self) -> str:
        return self.config.worker.name

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a load from the source's own files is expected to read."""
        return typical_s(self.bandwidths) or DEFAULT_BANDWIDTH

    def redis_ms(self, monotonic_s: float | None = None) -> int:
        """Redis TIME at a moment of this machine's clock. By the wall clock while Redis has not been reached."""
        at = self.monotonic() if monotonic_s is None else monotonic_s
        offset = self.redis_offset_ms
        if offset is None:
            offset = (time.time() - self.monotonic()) * 1000
        return round(at * 1000 + offset)
