"""A model that is mapped ahead, in the process that engines of one model are forked from.

Parameters over the map of a portable snapshot take no memory, so the module gets them once; nothing of the weights is
read for it, and no thread runs. What is left for a fork to do is to lease the snapshot for itself and to compare the
digests, unless the same bytes were compared for an engine before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rewarm_vllm import Loaded
from snapshots import Checkpoint, Flavour, Store, checkpoint_fingerprint, map_weights, resolve
from worker.engines.forking import InParts
from worker.engines.hostfile import HostFile
from worker.engines.torch.fitting import fit
from worker.engines.torch.model import Model, Skeleton
from worker.engines.torch.weights import OnBytes, over_map, populate


@dataclass(frozen=True, slots=True)
class Prepared:
    """``model``: ``skeleton`` with its weights, where they could be mapped ahead."""

    skeleton: Skeleton
    model: Model | None = None

    def trusted(self, proven: Sequence[str]) -> bool:
        """Whether an engine forked from here has answered rightly with the same weights."""
        return self.model is not None and self.model.loaded.words in proven


def map_ahead(host: HostFile, checkpoint: Checkpoint, skeleton: Skeleton) -> Model:
    """Raise InParts where no snapshot fits, or where its weights would have to be copied: then ``skeleton`` has none
    yet. Raise CheckpointError, SnapshotError, OSError, DoesNotFit; ``skeleton`` is of no use then.
    """
    if not host.snapshots or host.spec.snapshot == "off":
        raise InParts("snapshots are off for this model")
    if not Path(host.snapshots).is_dir():
        raise InParts(f"no store at {host.snapshots}")
    store = Store(Path(host.snapshots))
    have = checkpoint_fingerprint(checkpoint)
    found = resolve(store, host.spec.model, have, flavours=(Flavour.PORTABLE,), source=checkpoint.folder)
    lease = found.lease
    if lease is None:
        raise InParts("; ".join(found.reasons))
    try:
        if any(file.name.endswith(".gguf") for file in lease.manifest.weight_files):
            raise InParts(f"{lease.snapshot_id} holds GGUF files, which are not mapped")
        mapped = map_weights(lease)
        tensors = over_map(mapped)
        if any(tensor.is_floating_point() and tensor.dtype != skeleton.dtype for tensor in tensors.values()):
            raise InParts(f"{lease.snapshot_id} is not in {skeleton.dtype}, in which it computes")
        fit(skeleton.module, tensors, skeleton.dtype)
    except BaseException:
        lease.close()
        raise
    lease.let_go()
    return Model(skeleton, Loaded(Flavour.PORTABLE.value, lease.snapshot_id, str(store.root)), lease, mapped)


def resume(model: Model, *, compared: bool, report: OnBytes, cancel: threading.Event) -> None:
    """In a fork. ``compared``: the digests of these very bytes were compared for an engine before, and the files have
    not changed since. Bytes that the disk has to deliver first are compared in any case: that costs nothing then.

    Raise SnapshotNotFound where it was evicted since, DigestMismatch, WeightsCorrupt, Stopped.
    """
    assert model.lease is not None
    assert model.mapped is not None
    model.lease.retake()
    if not compared or not model.mapped.mostly_cached:
        populate(model.mapped, report, cancel)
        return
    total = model.lease.manifest.weight_bytes
    report(total, total)  # they are where they will be used
