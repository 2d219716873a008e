"""A pod as a cluster shows it, around a real process: from no node to ready, or to what goes wrong; and its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from rewarm.knative import names
from tests.e2e.stack import free_port
from tests.knative.fakes.api import ApiServer, Json
from tests.knative.fakes.timings import Timings

Start = Callable[["Pod"], Awaitable[asyncio.subprocess.Process]]
_numbers = itertools.count(2)


@dataclass
class Plan:
    """What becomes of the next pods of a place."""

    unschedulable: str = ""  # the scheduler's message
    pull_error: str = ""
    crash: int = 0  # the worker's exit code, at once, every time
    quota: str = ""  # the API server's message: no pod at all
    hold_at: str = ""  # "node", "pull", "worker": stay there until it is another one


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


@dataclass
class Pod:
    api: ApiServer
    place: str
    start: Start
    timings: Timings
    plan: Plan
    labels: dict[str, str]
    owner: str  # what its name begins with
    grace_s: float
    pre_stop: bool = False
    name: str = ""
    address: str = ""  # an address of its own on the loopback interface
    port: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    last_request_at: float = 0.0
    terminated_at: float | None = None  # when the worker got SIGTERM
    deleted_at: float | None = None
    _life: asyncio.Task[None] | None = None
    _end: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        number = next(_numbers)
        self.name = f"{self.owner}-{number:05x}"
        self.address = f"127.0.{number // 250}.{number % 250 + 1}"

    # --- to ready ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        self.port = free_port()
        self.api.put("pods", self.name, self._object())
        self._life = asyncio.create_task(self._come())

    async def _come(self) -> None:
        step_s = self.timings.cold_s / 4
        await asyncio.sleep(step_s)
        while self.plan.unschedulable or self.plan.hold_at == "node":
            if self.plan.unschedulable:
                self._condition("PodScheduled", "False", "Unschedulable", self.plan.unschedulable)
            await asyncio.sleep(0.05)
        thing = self.api.objects["pods"][self.name]
        self.api.put("pods", self.name, {**thing, "spec": {"nodeName": "node-1"}})
        self._condition("PodScheduled", "True")
        self._worker(waiting={"reason": "ContainerCreating"})
        self._event("Pulling", f'Pulling image "worker" for {self.name}')
        await asyncio.sleep(step_s)
        while self.plan.pull_error or self.plan.hold_at == "pull":
            if self.plan.pull_error:
                self._worker(waiting={"reason": "ImagePullBackOff", "message": self.plan.pull_error})
            await asyncio.sleep(0.05)
        self._event("Pulled", "Successfully pulled image")
        await asyncio.sleep(step_s)
        await self._run()

    async def _run(self) -> None:
        restarts = 0
        while True:
            self._worker(running={"startedAt": now()}, restarts=restarts)
            # The container runs, nothing of ours has begun in it.
            while self.plan.hold_at == "worker":  # noqa: ASYNC110 -- a plan sets no event
                await asyncio.sleep(0.05)
            self.process = await self.start(self)
            probing = asyncio.create_task(self._probe())
            code = await self.process.wait()
            probing.cancel()
            self.ready.clear()
            if self.deleted_at is not None:
                return
            restarts += 1
            last = {"exitCode": code, "reason": "Error"}
            self._worker(waiting={"reason": "CrashLoopBackOff"}, restarts=restarts, last=last)
            await asyncio.sleep(self.timings.scale * 10)

    async def _probe(self) -> None:
        """As queue-proxy with periodSeconds 0: every 50 ms until it answers."""
        async with aiohttp.ClientSession() as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with http.get(f"http://127.0.0.1:{self.port}{names.READY_PATH}") as answer:
                        if answer.status == 200:
                            break
                await asyncio.sleep(0.05)
        self.ready.set()
        self._condition("Ready", "True")

    # --- to its end --------------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """As `kubectl delete pod`, or a scale-down."""
        if self._end is None:
            self._end = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        loop = asyncio.get_running_loop()
        self.deleted_at = loop.time()
        thing = self.api.objects["pods"].get(self.name)
        if thing is not None:
            thing = {**thing, "metadata": {**thing["metadata"], "deletionTimestamp": now()}}
            self.api.put("pods", self.name, thing)
        self.ready.clear()
        try:
            async with asyncio.timeout(self.grace_s):
                await self._drain()
        except TimeoutError:
            if self.process is not None and self.process.returncode is None:
                self.process.send_signal(signal.SIGKILL)
                await self.process.wait()
        if self._life is not None:
            self._life.cancel()
        self.api.delete("pods", self.name)
        self.gone.set()

    async def _drain(self) -> None:
        if self.process is None:
            return
        if self.pre_stop:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with aiohttp.ClientSession() as http:
                    await http.get(f"http://127.0.0.1:{self.port}{names.DRAIN_PATH}")
        else:
            await self._quiet()
        self.terminated_at = asyncio.get_running_loop().time()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()

    async def _quiet(self) -> None:
        """queue-proxy's wait-for-drain: so long without a new request, *even with streams running*."""
        loop = asyncio.get_running_loop()
        assert self.deleted_at is not None
        while (left_s := max(self.deleted_at, self.last_request_at) + self.timings.quiet_s - loop.time()) > 0:  # noqa: ASYNC110 -- a clock sets no event
            await asyncio.sleep(left_s)

    async def kill(self) -> None:
        """The test is over."""
        for task in (self._life, self._end):
            if task is not None:
                task.cancel()
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    # --- how it looks ------------------------------------------------------------------------------------------------

    def _object(self) -> Json:
        ours = {names.LABEL_APP: names.APP, names.LABEL_COMPONENT: names.COMPONENT_WORKER}
        labels = {**ours, names.LABEL_PLACE: self.place, **self.labels}
        return {
            "metadata": {"labels": labels, "creationTimestamp": now()},
            "spec": {},
            "status": {"phase": "Pending", "conditions": [], "podIP": self.address},
        }

    def _condition(self, kind: str, status: str, reason: str = "", message: str = "") -> None:
        thing = self.api.objects["pods"].get(self.name)
        if thing is None:
            return
        made = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
        others = [c for c in thing["status"]["conditions"] if c["type"] != kind]
        self.api.change("pods", self.name, conditions=[*others, made])

    def _worker(self, *, restarts: int = 0, last: Json | None = None, **state: Any) -> None:
        if self.name in self.api.objects["pods"]:
            made = {
                "name": names.CONTAINER,
                "image": "worker",
                "restartCount": restarts,
                "state": state,
                "lastState": {"terminated": last} if last else {},
            }
            self.api.change(
                "pods", self.name, containerStatuses=[made], phase="Running" if "running" in state else "Pending"
            )

    def _event(self, reason: str, message: str, about: str = "") -> None:
        tell(self.api, about or self.name, reason, message)


def tell(api: ApiServer, about: str, reason: str, message: str, kind: str = "Normal") -> None:
    """An event."""
    thing = {"involvedObject": {"name": about}, "reason": reason, "message": message, "type": kind}
    api.put("events", f"{about}.{reason}.{api.version}", {**thing, "lastTimestamp": now()})
