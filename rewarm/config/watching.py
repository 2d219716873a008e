"""The configuration file as it changes on disk: read again on a signal or on a change, never half of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rewarm.clock import Clock, SystemClock
from rewarm.config.changes import changes
from rewarm.config.load import load
from rewarm.config.schema import Config
from rewarm.errors import OperatorError

log = logging.getLogger("rewarm.config")

LOOK_EVERY_S = 1.0
"""Between two looks at the file. Polled, not notified: a ConfigMap is a chain of symbolic links that are swapped, and a
network file system tells nobody."""

Stamp = tuple[int, int, int] | None
"""Inode, size and time of the last write in ns; None while there is no such file."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """What ``rewarm ps`` and ``/metrics`` say of the file.

    ``problem`` is what is wrong with it as it lies there, empty when it is what runs; ``restart`` are the fields that
    differ from what runs and wait for a restart. Times are wall clock, in ms.
    """

    file: str = ""
    loaded_at_ms: int = 0
    problem: str = ""
    restart: tuple[str, ...] = ()
    reloads: int = 0  # that applied, since the start
    refused: int = 0


class ConfigFile:
    """``current`` is what runs. Subscribers are called with a new one, once it is known to be sound.

    ``adjust``: what the process's environment puts in the place of the file's own words, at every reading.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        *,
        adjust: Callable[[Config], Config] = lambda config: config,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._adjust = adjust
        self._clock = clock or SystemClock()
        self._seen = stamp(path)
        self.current = config
        self.state = ConfigState(file=str(path), loaded_at_ms=self._now_ms())
        self._subscribers: list[Callable[[Config], None]] = []

    def subscribe(self, apply: Callable[[Config], None]) -> None:
        self._subscribers.append(apply)

    def reread(self) -> bool:
        """Apply the file as it is now; False when it is refused: the old one stays, and the log and ``state`` say
        why."""
        self._seen = stamp(self._path)
        try:
            changed = changes(self.current, self._adjust(load(self._path)))
        except OperatorError as error:
            log.error("the configuration is not reloaded, the old one stays error=%s", error.message)
            self.state = replace(self.state, problem=error.message, refused=self.state.refused + 1)
            return False
        self.current = changed.config
        for apply in self._subscribers:
            apply(changed.config)
        self.state = replace(
            self.state,
            loaded_at_ms=self._now_ms(),
            problem="",
            restart=changed.restart,
            reloads=self.state.reloads + 1,
        )
        log.info("the configuration was reloaded changed=%s", changed)
        return True

    async def watch(self) -> None:
        """Reread whenever the file has changed and then stayed as it is from one look to the next: an editor may still
        be writing."""
        unsettled: Stamp = self._seen
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            now = await asyncio.to_thread(stamp, self._path)
            if now == self._seen or now != unsettled:
                unsettled = now
            else:
                self.reread()

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
