"""Measures every device of the worker, and notices when one is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from worker.devices.device import RAM, Device
from worker.devices.nvml import DeviceLost, Nvml
from worker.memory import Machine, read_machine

_ANSWER_WITHIN_S = 5.0
_log = logging.getLogger("rewarm.worker.devices")


class DeviceWatch:
    """``lost`` is the ledgers' own: a device's key → why it is lost. One that answers again is taken back."""

    def __init__(self, devices: Mapping[str, Device], nvml: Nvml, lost: dict[str, str]) -> None:
        self._devices = devices
        self._nvml = nvml
        self._lost = lost
        self._gpus = [key for key in devices if key != RAM]
        self.last: dict[str, Machine] = {}

    async def read(self) -> dict[str, Machine]:
        """By device; those that do not answer are not in it."""
        out = {RAM: self._ram()}
        if self._gpus:
            answers = await asyncio.gather(*(self._ask(key) for key in self._gpus))
            out |= {key: answer for key, answer in zip(self._gpus, answers, strict=True) if answer is not None}
        self.last = out
        return out

    def _ram(self) -> Machine:
        """As it was, while there is no descriptor to look with: a worker that cannot count must still be heard."""
        try:
            return read_machine()
        except OSError as error:
            if RAM not in self.last:
                raise
            _log.error("event=memory-not-read error=%s", error)
            return self.last[RAM]

    async def used_by(self, pids: Iterable[int]) -> dict[str, int]:
        """Bytes of GPUs that these processes hold, as far as the driver tells."""
        wanted = set(pids)
        out: dict[str, int] = {}
        for key in self._gpus:
            if key in self._lost:
                continue
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    held = await asyncio.to_thread(self._nvml.used_by, key)
            except (DeviceLost, TimeoutError) as error:
                _log.warning("event=gpu-processes-not-told device=%s error=%s", key, error)
                continue
            out[key] = sum(used for pid, used in held.items() if pid in wanted)
        return out

    async def _ask(self, key: str) -> Machine | None:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                answer = await asyncio.to_thread(self._nvml.memory, key)
        except (DeviceLost, TimeoutError) as error:
            why = str(error) or f"NVML has not answered for {_ANSWER_WITHIN_S:.0f} s"
            if key not in self._lost:
                _log.error("event=device-lost device=%s error=%s", key, why)
            self._lost[key] = why
            return None
        if self._lost.pop(key, None) is not None:
            _log.warning("event=device-back device=%s", key)
        return answer
