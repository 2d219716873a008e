"""A reader in a process of its own: one JSON line in, one JSON line out. ``python child.py READER FILE``.

Stands alone (only the standard library, and what the reader itself needs), because peers live in environments of
their own.
"""

from __future__ import annotations

import json
import mmap
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HUGEPAGE, _POPULATE_WRITE = 14, 23


class Timed:
    """Wall and CPU seconds of the block, all threads of this process together."""

    def __enter__(self) -> Timed:
        self._wall, self._cpu = time.perf_counter(), _cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_s = time.perf_counter() - self._wall, _cpu() - self._cpu


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rewarm(path: Path, *, verify: bool = True, prefault: bool = True) -> Timed:
    from snapshots.lease import take
    from snapshots.restore import HostMemory, RestoreOptions, restore_weights

    memory = HostMemory(prefault=prefault)
    with take(path.parent) as lease:
        memory.begin(lease.manifest.weight_files, 0)
        with Timed() as timed:
            restore_weights(lease, memory, RestoreOptions(verify=verify))
    memory.close()
    return timed


def _rewarm_map(path: Path, *, verify: bool = True) -> Timed:
    from snapshots.lease import take
    from snapshots.restore import RestoreOptions, map_weights

    with take(path.parent) as lease:
        with Timed() as timed:
            weights = map_weights(lease)
            weights.populate(RestoreOptions(verify=verify))
        weights.close()
    return timed


def _destinations(path: Path) -> Any:
    """Tensors to copy into, their memory faulted in before the time counts: what an engine's parameters are."""
    import torch
    from safetensors import safe_open

    out = {}
    with safe_open(path, "pt") as file:
        total = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118 (no mapping)
        block = mmap.mmap(-1, total + 2 * 2**20)
        block.madvise(_HUGEPAGE)
        block.madvise(_POPULATE_WRITE)
        whole, at = torch.frombuffer(block, dtype=torch.uint8), 0
        for name in file.keys():  # noqa: SIM118 -- a safetensors file is no mapping: it cannot be iterated
            like = file.get_tensor(name)
            out[name] = whole[at : at + like.nbytes].view(like.dtype).view(like.shape)
            at += like.nbytes
    return out


def _safetensors(path: Path) -> Timed:
    from safetensors import safe_open

    to = _destinations(path)
    _drop_mapped(path)
    with Timed() as timed:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 -- a safetensors file is no mapping: it cannot be iterated
                to[name].copy_(file.get_tensor(name))
    return timed


def _safetensors_own_memory(path: Path) -> Timed:
    """As the library is used: it cannot read into memory that is there, and its map is not memory of one's own."""
    from safetensors.torch import load_file

    with Timed() as timed:
        kept = {name: tensor.clone() for name, tensor in load_file(path).items()}
    del kept
    return timed


def _fastsafetensors(path: Path) -> Timed:
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    to = _destinations(path)
    _drop_mapped(path)
    with Timed() as timed:
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [str(path)]})
        buffers = loader.copy_files_to_device()
        for name in loader.get_keys():
            to[name].copy_(buffers.get_tensor(name))
        buffers.close()
        loader.close()
    return timed


def _runai(path: Path) -> Timed:
    from runai_model_streamer import SafetensorsStreamer

    to = _destinations(path)
    _drop_mapped(path)
    with Timed() as timed:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(str(path))
            for name, tensor in streamer.get_tensors():
                to[name].copy_(tensor)
    return timed


def _drop_mapped(path: Path) -> None:
    """Looking at the shapes brought the header's pages back; for a cold run they go again. A warm run does not
    ask."""
    if COLD:
        import os

        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


COLD = False

READERS: dict[str, Callable[[Path], Timed]] = {
    "rewarm": _rewarm,
    "rewarm_no_digests": lambda path: _rewarm(path, verify=False),
    "rewarm_unfaulted": lambda path: _rewarm(path, prefault=False),
    "rewarm_map": _rewarm_map,
    "rewarm_map_no_digests": lambda path: _rewarm_map(path, verify=False),
    "safetensors": _safetensors,
    "safetensors_unfaulted": _safetensors_own_memory,
    "fastsafetensors": _fastsafetensors,
    "runai_model_streamer": _runai,
}


def main() -> None:
    global COLD
    reader, path = READERS[sys.argv[1]], Path(sys.argv[2])
    for line in sys.stdin:
        COLD = json.loads(line)["cold"]
        timed = reader(path)
        answer = {"seconds": timed.seconds, "cpu_s": timed.cpu_s}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
