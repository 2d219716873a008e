"""The leader's wake-up requests, one for each place that is needed. When each is opened is decided in ``wakeup``."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import aiohttp

from controller.backends import wakeup
from controller.backends.wakeup import Close, Holding, Limits, Open

log = logging.getLogger("rewarm.controller.holds")

CONNECT_S = 5.0
_ANSWERED, _ENDED = "answered", "ended"


class Holds:
    """``address`` gives the URL of a place's wake-up request and its Host header."""

    def __init__(self, address: Callable[[str], tuple[str, str]], limits: Limits) -> None:
        self._address, self._limits = address, limits
        self._needed: frozenset[str] = frozenset()
        self._looks: dict[str, asyncio.Queue[tuple[str, int]]] = {}
        self._troubles: dict[str, str] = {}
        self._new = asyncio.Event()

    def need(self, places: frozenset[str]) -> None:
        if places == self._needed:
            return
        for place in places ^ self._needed:
            if place in self._looks:
                self._looks[place].put_nowait(("", 0))
        self._needed = places
        self._new.set()

    def trouble(self, place: str) -> str:
        """Why its last wake-up request failed; empty while one is under way or held."""
        return self._troubles.get(place, "")

    async def run(self) -> None:
        """Until cancelled, which closes all of them."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # each is a connection of its own
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, asyncio.TaskGroup() as group:
            try:
                while True:
                    for place in self._needed - self._looks.keys():
                        self._looks[place] = asyncio.Queue()
                        group.create_task(self._keep(http, place), name=f"hold-{place}")
                    await self._new.wait()
                    self._new.clear()
            finally:
                self._looks.clear()
                self._troubles.clear()

    async def _keep(self, http: aiohttp.ClientSession, place: str) -> None:
        """For as long as the place is needed."""
        look = self._looks[place]
        holding = Holding()
        requests: dict[int, asyncio.Task[None]] = {}
        now = asyncio.get_running_loop().time
        try:
            while True:
                wanted = place in self._needed
                steps, holding = wakeup.step(holding, self._limits, wanted=wanted, now_s=now())
                for one in steps:
                    match one:
                        case Open(number):
                            requests[number] = asyncio.create_task(self._request(http, place, number, look))
                        case Close(number):
                            requests.pop(number).cancel()
                if not wanted:
                    return
                try:
                    async with asyncio.timeout(max(0.0, wakeup.due_s(holding, self._limits) - now())):
                        what, number = await look.get()
                except TimeoutError:
                    continue
                if what == _ANSWERED:
                    holding = wakeup.answered(holding, number)
                elif what == _ENDED:
                    requests.pop(number, None)
                    holding = wakeup.ended(holding, number, now(), random.random())
        finally:
            for task in requests.values():
                task.cancel()
            self._looks.pop(place, None)
            self._troubles.pop(place, None)
            self._new.set()  # it may be needed again by now

    async def _request(
        self, http: aiohttp.ClientSession, place: str, number: int, look: asyncio.Queue[tuple[str, int]]
    ) -> None:
        url, host = self._address(place)
        why = ""
        try:
            async with http.get(url, headers={"Host": host}) as answer:
                if answer.status == 200:
                    while await answer.content.readany():
                        self._troubles.pop(place, None)
                        look.put_nowait((_ANSWERED, number))
                else:
                    text = (await answer.content.read(200)).decode(errors="replace").strip()
                    why = f"the wake-up request got {answer.status}: {text}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = f"the wake-up request failed: {str(error) or type(error).__name__}"
        if why:
            log.info("hold place=%s request=%d %s", place, number, why)
            self._troubles[place] = why
        look.put_nowait((_ENDED, number))
