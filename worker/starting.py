"""How an engine's host comes to be: a process of its own from nothing, or one that the pool has ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rewarm.states import Tier
from worker.containment import spawn
from worker.engines.hostfile import HostFile

ROOT = Path(__file__).resolve().parent.parent
"""The packages' own folder: started from here, ``-m`` finds them however rewarm was installed."""


class HostProcess(Protocol):
    """A child of the agent that leads a session of its own. ``asyncio.subprocess.Process`` is one."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """``log`` is a descriptor of the caller's, closed by it. ``attempt`` counts the load's starts from 1."""

    module: str
    host: HostFile
    host_path: Path
    environment: Mapping[str, str]
    log: int


@dataclass(frozen=True, slots=True)
class Started:
    process: HostProcess
    tier: Tier = Tier.COLD
    why: str = ""  # no better tier
    proved: Callable[[str], None] = lambda weights: None
    """Told that the engine was tried out with these weights: what is made like it need not be again."""


class Starter(Protocol):
    async def start(self, order: Order) -> Started:
        """Raise OSError where not even a plain start is possible."""

    async def give_back(self) -> bool:
        """Let go of memory that only makes starts faster; False when there was none."""


class PlainStarter:
    """A new interpreter, which imports all it needs."""

    async def start(self, order: Order) -> Started:
        argv = [sys.executable, "-P", "-m", order.module, os.fspath(order.host_path)]
        return Started(await spawn(argv, env=order.environment, cwd=os.fspath(ROOT), log=order.log))

    async def give_back(self) -> bool:
        return False
