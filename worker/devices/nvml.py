"""NVIDIA's management library: which GPUs there are, how much of their memory is free, and whose the rest is.

Asks the driver, never CUDA. ``pynvml`` is imported when it is first asked, and a machine without the driver simply has
no GPUs. Blocks for about a millisecond; a card that is failing can block for much longer, so ask in a thread.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from worker.devices.device import Gpu
from worker.memory import Machine

_log = logging.getLogger("rewarm.worker.nvml")


class DeviceLost(Exception):
    """The driver no longer answers for this GPU; the message is NVML's."""


class Nvml(Protocol):
    def gpus(self) -> tuple[Gpu, ...]: ...

    @property
    def why_none(self) -> str:
        """Why there are no GPUs; empty where there are."""
        ...

    def memory(self, uuid: str) -> Machine:
        """Raise DeviceLost."""
        ...

    def used_by(self, uuid: str) -> dict[int, int]:
        """Bytes by pid, as far as the driver tells. Raise DeviceLost."""
        ...


class SystemNvml:
    """The machine's own. GPUs are listed once: one that is plugged in later is found by the next start."""

    def __init__(self) -> None:
        self._pynvml: Any = None
        self._why = ""
        self._gpus: tuple[Gpu, ...] = ()
        try:
            import pynvml

            pynvml.nvmlInit()
        except ImportError as error:
            self._why = f"the library nvidia-ml-py is not installed: {error}"
            return
        except Exception as error:  # noqa: BLE001 -- its errors are made at run time, and none must end the agent
            self._why = f"NVML: {error}"
            return
        self._pynvml = pynvml
        self._gpus = self._list()

    @property
    def why_none(self) -> str:
        return "" if self._gpus else self._why or "NVML lists no GPU"

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def memory(self, uuid: str) -> Machine:
        try:
            info = self._pynvml.nvmlDeviceGetMemoryInfo(self._handle(uuid))
        except self._pynvml.NVMLError as error:
            raise DeviceLost(str(error)) from error
        return Machine(int(info.total), int(info.free))

    def used_by(self, uuid: str) -> dict[int, int]:
        out: dict[int, int] = {}
        try:
            handle = self._handle(uuid)
            for process in self._pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                out[process.pid] = out.get(process.pid, 0) + int(process.usedGpuMemory or 0)  # None: not told
        except self._pynvml.NVMLError as error:
            raise DeviceLost(str(error)) from error
        return out

    def close(self) -> None:
        if self._pynvml is not None:
            self._pynvml.nvmlShutdown()
            self._pynvml = None

    def _list(self) -> tuple[Gpu, ...]:
        out: list[Gpu] = []
        nvml = self._pynvml
        for index in range(int(nvml.nvmlDeviceGetCount())):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
                total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
                out.append(Gpu(_text(uuid), index, _text(name), total))
            except nvml.NVMLError as error:
                _log.error("event=gpu-not-listed index=%d error=%s", index, error)
                self._why = f"GPU {index}: {error}"
        return tuple(out)

    def _handle(self, uuid: str) -> Any:
        return self._pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
