"""What the pool has to know of an engine. Each kind of engine has one module with a ``KIND`` of this form.

The module is imported in the agent too: at its top it imports neither torch nor the engine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rewarm.messages import ReplicaSpec
from snapshots import published
from worker.engines.host import Serve
from worker.engines.hostfile import HostFile

KINDS: Mapping[str, str] = {"vllm": "worker.engines.vllm.kind", "torch": "worker.engines.torch.kind"}
"""Engine name → module with its ``KIND``."""


class Kind(Protocol):
    need_bytes: int
    """What the first process of the kind takes, before it was measured."""

    def unusable(self) -> str:
        """In the agent: why no engine of this kind can come from a pool on this machine; empty: it can."""

    def unsuitable(self, spec: ReplicaSpec) -> str:
        """In the agent: why this model's engine has to start plainly; empty: it need not."""

    def versions(self) -> dict[str, str]:
        """In the agent and in the pool: what is installed. Another answer makes the pool anew."""

    def environment(self, environment: MutableMapping[str, str]) -> None:
        """Set what has to stand before anything is imported."""

    def load(self) -> None:
        """Import everything, and do once what every engine would do."""

    def prepare(self, host: HostFile, whole: bool) -> tuple[Any, str]:
        """What can be done ahead for one model, handed to :meth:`serve`. ``whole``: the engine itself too; where that
        is not possible, the words say why. Raise for a model that cannot be served, or not so: without ``whole`` it is
        tried again."""

    def unsafe(self) -> str:
        """In a process that is to be forked: why that would not be safe; empty: it is."""

    def serve(self, prepared: Any, proven: Sequence[str]) -> Serve:
        """The engine's host. ``prepared`` is None where nothing was, or not for this host file. ``proven`` names
        weights that an engine with the same preparation has been tried out with in full."""


def find(engine: str) -> Kind | None:
    module = KINDS.get(engine)
    return None if module is None else load_kind(module)


def load_kind(module: str) -> Kind:
    kind: Kind = importlib.import_module(module).KIND
    return kind


def registration(host: HostFile) -> HostFile:
    """What of a host file a preparation depends on: all that is not one replica's own, and no secret."""
    return msgspec.structs.replace(
        host,
        replica="",
        agent_pid=0,
        attempt=1,
        socket="",
        report="",
        token="",
        secret="",
        advertise=None,
        need_bytes=0,
        read_bytes=0,
    )


def key(host: HostFile) -> str:
    """Two host files with the same key can share a preparation. Reads the folders of the checkpoint, its adapters and
    the model's snapshots: names, sizes, times. A snapshot that comes, goes or is written to makes another key.

    Raise OSError where the checkpoint cannot be read.
    """
    import hashlib

    digest = hashlib.sha256(msgspec.json.encode(registration(host)))
    for name, size, changed in (*_files(host.spec.source), *_adapters(host), *_snapshots(host)):
        digest.update(f"\0{name}\0{size}\0{changed}".encode())
    return digest.hexdigest()[:24]


def _files(source: str | None) -> list[tuple[str, int, int]]:
    if source is None:
        return []
    found = []
    for path in sorted(Path(source).iterdir()):
        status = path.stat()
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return found


def _adapters(host: HostFile) -> list[tuple[str, int, int]]:
    found = []
    for adapter in host.spec.adapters:
        with contextlib.suppress(OSError):  # it is left out, and the base served
            found += [(f"{adapter.name}/{name}", size, changed) for name, size, changed in _files(adapter.source)]
    return found


def _snapshots(host: HostFile) -> list[tuple[str, int, int]]:
    if not host.snapshots or host.spec.snapshot == "off":
        return []
    found = []
    for folder in published(Path(host.snapshots), host.spec.model):
        with contextlib.suppress(OSError):  # evicted just now
            found += [(f"{folder.name}/{name}", size, changed) for name, size, changed in _files(os.fspath(folder))]
    return found
