"""An engine's sleep, as its gate leads it: awake → falling → asleep → waking → awake. The gate alone decides it.

What comes in while the engine falls asleep or sleeps wakes it and waits for that; nothing is ever sent to an engine
that is not awake. One task at a time talks to the engine. An engine that can do neither is *lost*, and its host ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from worker.report import Rest

_log = logging.getLogger("rewarm.worker.gate")


class Sleeper(Protocol):
    """The engine. Both are called only one after the other, and while no request is inside."""

    async def sleep(self, level: int) -> None: ...

    async def wake(self) -> None: ...


class Resting:
    """``changed`` is called after every change. ``lost`` gets the error of an engine that did not wake."""

    def __init__(self, changed: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._changed = changed
        self._now = monotonic
        self._sleeper: Sleeper | None = None
        self._refused = ""
        self._task: asyncio.Task[None] | None = None
        self._awake: asyncio.Event = asyncio.Event()
        self._awake.set()
        self._wake_wanted = False
        self.state = Rest.AWAKE
        self.may_wake = False
        self.wakes = 0
        self.wake_began_s = 0.0
        self.wake_ended_s = 0.0
        self.lost: asyncio.Future[str] | None = None

    @property
    def can_sleep(self) -> bool:
        return self._sleeper is not None and not self._refused

    @property
    def no_sleep(self) -> str:
        return self._refused

    @property
    def barred(self) -> bool:
        """It does not run, and only the agent may wake it."""
        return self.state in (Rest.FALLING, Rest.ASLEEP) and not self.may_wake and not self._wake_wanted

    @property
    def told(self) -> Rest:
        """The state for others: what falls asleep only to wake is as good as waking."""
        return Rest.WAKING if self._wake_wanted and self.state is Rest.FALLING else self.state

    def enable(self, sleeper: Sleeper) -> asyncio.Future[str]:
        self._sleeper, self._refused = sleeper, ""
        self.lost = asyncio.get_running_loop().create_future()
        return self.lost

    def disable(self, why: str) -> None:
        self._refused = why

    def fall(self, level: int) -> bool:
        """Begin to fall asleep; False where it cannot, or is not awake."""
        if self._sleeper is None or self._refused or self.state is not Rest.AWAKE:
            return False
        self._awake.clear()
        self._wake_wanted = False
        self._begin(Rest.FALLING, self._sleeper.sleep(level))
        return True

    def rouse(self) -> None:
        """Wake it, if it is not awake."""
        if self.state is Rest.FALLING:
            self._wake_wanted = True  # sleep is a matter of milliseconds, and has no way back
        elif self.state is Rest.ASLEEP and self._sleeper is not None:
            self.wake_began_s = self._now()
            self._begin(Rest.WAKING, self._sleeper.wake())

    async def awake(self) -> None:
        """Until it is."""
        await self._awake.wait()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self, state: Rest, step: Awaitable[None]) -> None:
        self.state = state
        self._task = asyncio.ensure_future(self._carry_out(state, step))
        self._changed()

    async def _carry_out(self, state: Rest, step: Awaitable[None]) -> None:
        try:
            await step
        except Exception as error:  # noqa: BLE001 -- whatever it was, what waits for the engine must not wait for ever
            what = "fall asleep" if state is Rest.FALLING else "wake"
            _log.exception("event=not-rested state=%s", state.value)
            if state is Rest.FALLING:
                # How far it came nobody knows. Waking puts all of it back, or fails as well.
                self.disable(f"it could not {what}: {error}"[:200])
                self._wake_wanted = True
            elif self.lost is not None and not self.lost.done():
                self.lost.set_result(f"the engine could not {what}: {type(error).__name__}: {error}")
                return
        if state is Rest.WAKING:
            self.wakes += 1
            self.wake_ended_s = self._now()
            self.state = Rest.AWAKE
            self._awake.set()
            self._changed()
            return
        self.state = Rest.ASLEEP
        self._changed()
        if self._wake_wanted:
            self._wake_wanted = False
            self.rouse()
