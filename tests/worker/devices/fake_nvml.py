"""The driver's library ``libnvidia-ml`` as far as it is asked, under the real Python binding: the binding's own structs
are filled in, and its own errors come out. A card can be made to fall off the bus."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

GIB = 2**30
_GONE = 15  # NVML_ERROR_GPU_IS_LOST
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_UNKNOWN = 6  # NVML_ERROR_NOT_FOUND


@dataclass
class Card:
    uuid: str
    total: int = 24 * GIB
    used: dict[int, int] = field(default_factory=dict)  # bytes by pid
    name: str = "NVIDIA RTX 4090"
    lost: bool = False


class Driver:
    """What ``pynvml`` finds in the loaded library: one function a name, each with an NVML status as its answer."""

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)

    def nvmlInitWithFlags(self, flags: Any) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlErrorString(self, status: int) -> bytes:
        return {_GONE: b"GPU is lost", _UNKNOWN: b"Not Found"}.get(int(status), b"Unknown Error")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return self._handle(int(getattr(index, "value", index)), handle)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        text = getattr(uuid, "value", uuid)
        text = text.decode() if isinstance(text, bytes) else text
        found = [n for n, card in enumerate(self.cards) if card.uuid == text]
        return self._handle(found[0], handle) if found else _UNKNOWN

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, length: Any) -> int:
        text.value = self._card(handle).uuid.encode()
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        text.value = self._card(handle).name.encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        card = self._card(handle)
        if card.lost:
            return _GONE
        used = sum(card.used.values())
        memory._obj.total, memory._obj.used, memory._obj.free = card.total, used, card.total - used
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> int:
        card = self._card(handle)
        if card.lost:
            return _GONE
        room, count._obj.value = count._obj.value, len(card.used)
        if room < len(card.used):
            return _TOO_SMALL
        for slot, (pid, used) in zip(out or (), card.used.items(), strict=False):
            slot.pid, slot.usedGpuMemory = pid, used
        return 0

    def _handle(self, index: int, handle: Any) -> int:
        if self.cards[index].lost:
            return _GONE
        ctypes.cast(ctypes.byref(handle._obj), ctypes.POINTER(ctypes.c_void_p))[0] = index + 1
        return 0

    def _card(self, handle: Any) -> Card:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        assert number is not None
        return self.cards[number - 1]


@contextmanager
def driver(*cards: Card) -> Iterator[Driver]:
    """``pynvml`` with this driver loaded, as on a machine that has these cards."""
    made = Driver(*cards)
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml._LoadNvmlLibrary
    pynvml.nvmlLib = made
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._LoadNvmlLibrary = lambda: None
    try:
        yield made
    finally:
        pynvml.nvmlLib, cache, pynvml._LoadNvmlLibrary = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cache)
