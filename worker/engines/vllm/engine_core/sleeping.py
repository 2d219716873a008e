"""Sleep on the CPU, where vLLM has none: the pages of the mapped weights and of the cache go back to the kernel, and
every object stays what it is.

The weights come back from the page cache, or from the disk, by themselves; nothing is copied or converted. That holds
only for weights that are computed from where they are mapped, which is what a packed snapshot is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections.abc import Iterator
from typing import Any

import torch

from rewarm_vllm import drop_weights, fetch_weights, why_weights_stay

_LARGE_BYTES = 1 << 20
_MADV_DONTNEED = 4


class LazyCache:
    """In place of ``torch`` where vLLM allocates the KV cache: its one big ``zeros`` becomes anonymous memory that
    costs nothing before it is used, and can be given back. Zeroing it took 0.4 s a GiB."""

    def __init__(self) -> None:
        self.maps: list[tuple[mmap.mmap, torch.Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, **options: Any) -> torch.Tensor:
        wanted = size[0] if len(size) == 1 else None
        if options.get("dtype") is not torch.int8 or not isinstance(wanted, int) or wanted < _LARGE_BYTES:
            return torch.zeros(*size, **options)
        memory = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        tensor = torch.frombuffer(memory, dtype=torch.int8)
        self.maps.append((memory, tensor))
        return tensor

    @contextlib.contextmanager
    def instead_of_zeros(self) -> Iterator[None]:
        import vllm.v1.worker.utils as where

        before = where.torch
        where.torch = self  # for one call, in a process with one thread that allocates
        try:
            yield
        finally:
            where.torch = before

    def drop(self) -> None:
        for memory, _ in self.maps:
            memory.madvise(_MADV_DONTNEED)


class SleepingWorker:
    """Comes before vLLM's CPU worker among the bases."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._cache = LazyCache()
        super().__init__(*args, **kwargs)

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> None:
        with self._cache.instead_of_zeros():
            super().initialize_from_config(*args, **kwargs)  # type: ignore[misc]

    def why_no_sleep(self) -> str:
        """Empty when it can."""
        if not self._cache.maps:
            return "this vLLM allocates its cache in another way than it is known to"
        return why_weights_stay(self.model_runner.get_model())  # type: ignore[attr-defined]

    def sleep(self, level: int = 1) -> None:
        drop_weights(self.model_runner.get_model(), page_cache=level >= 2)  # type: ignore[attr-defined]
        self._cache.drop()
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)

    def wake_up(self, tags: list[str] | None = None) -> None:
        fetch_weights(self.model_runner.get_model())  # type: ignore[attr-defined]
