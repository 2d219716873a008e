"""From a checked host file to a model with weights: the portable snapshot that fits, else the checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from pathlib import Path
from typing import Any

from rewarm_vllm import Loaded
from snapshots import (
    Checkpoint,
    CheckpointError,
    Flavour,
    Lease,
    SnapshotError,
    Store,
    WeightsCorrupt,
    checkpoint_fingerprint,
    map_weights,
    resolve,
)
from worker.engines.hostfile import HostFile
from worker.engines.torch import ahead
from worker.engines.torch.fitting import DoesNotFit, fit
from worker.engines.torch.model import Model, Skeleton
from worker.engines.torch.weights import OnBytes, Stopped, over_map, populate, read_checkpoint

_log = logging.getLogger("rewarm.worker.torch")


def load(host: HostFile, checkpoint: Checkpoint, skeleton: Skeleton, report: OnBytes, cancel: threading.Event) -> Model:
    """Give ``skeleton.module`` its weights. Raise CheckpointError, Stopped, MemoryError and what transformers
    raises."""
    started = time.perf_counter()
    reasons: list[str] = []
    model = _from_snapshot(host, checkpoint, skeleton, report, cancel, reasons)
    if model is None:
        _from_checkpoint(checkpoint, skeleton, report, cancel, reasons)
        model = Model(skeleton, Loaded("source"))
    seconds = time.perf_counter() - started
    model.loaded = dataclasses.replace(model.loaded, reasons=tuple(reasons), seconds=seconds)
    for reason in reasons:
        _log.info("not used: %s", reason)
    _log.info("event=loaded weights=%r seconds=%.3f", model.loaded.words, seconds)
    return model


def take_over(model: Model, report: OnBytes, cancel: threading.Event, *, compared: bool) -> Model | None:
    """A model that was mapped ahead, with a lease of its own. None where its snapshot is not to be used any more; then
    ``model`` is of no use. See :func:`worker.engines.torch.ahead.resume`."""
    started = time.perf_counter()
    try:
        ahead.resume(model, compared=compared, report=report, cancel=cancel)
    except (CheckpointError, SnapshotError, OSError) as error:
        _log.warning("event=not-taken-over weights=%r error=%s: %s", model.loaded.words, type(error).__name__, error)
        if isinstance(error, CheckpointError) and model.loaded.snapshot_id is not None:
            _set_aside(Store(Path(model.loaded.store)), model.loaded.snapshot_id, error)
        return None
    model.loaded = dataclasses.replace(model.loaded, seconds=time.perf_counter() - started)
    _log.info("event=taken-over weights=%r seconds=%.3f", model.loaded.words, model.loaded.seconds)
    return model


def _from_snapshot(
    host: HostFile,
    checkpoint: Checkpoint,
    skeleton: Skeleton,
    report: OnBytes,
    cancel: threading.Event,
    reasons: list[str],
) -> Model | None:
    """None when nothing fits; ``reasons`` says why then. A damaged one goes into quarantine."""
    store = _store(host, reasons)
    if store is None:
        return None
    have = checkpoint_fingerprint(checkpoint)
    found = resolve(store, host.spec.model, have, flavours=(Flavour.PORTABLE,), source=checkpoint.folder)
    reasons += found.reasons
    if found.lease is None:
        return None
    lease = found.lease
    try:
        return _restore(lease, skeleton, report, cancel, str(store.root))
    except (Stopped, MemoryError):
        lease.close()
        raise
    except (CheckpointError, SnapshotError, DoesNotFit, OSError) as error:
        lease.close()
        reasons.append(f"{lease.snapshot_id}: {type(error).__name__}: {error}")
        if isinstance(error, CheckpointError):
            _set_aside(store, lease.snapshot_id, error)
        return None


def _restore(lease: Lease, skeleton: Skeleton, report: OnBytes, cancel: threading.Event, root: str) -> Model:
    if any(file.name.endswith(".gguf") for file in lease.manifest.weight_files):
        raise DoesNotFit("it is a GGUF file")
    mapped = map_weights(lease)
    populate(mapped, report, cancel)
    tensors = over_map(mapped)
    fit(skeleton.module, tensors, skeleton.dtype)
    loaded = Loaded(Flavour.PORTABLE.value, lease.snapshot_id, root)
    theirs = {tensor.data_ptr() for tensor in tensors.values()}
    if any(parameter.data_ptr() in theirs for parameter in skeleton.module.state_dict().values()):
        return Model(skeleton, loaded, lease, mapped)
    lease.close()  # another dtype: all of it was copied
    return Model(skeleton, loaded)


def _from_checkpoint(
    checkpoint: Checkpoint, skeleton: Skeleton, report: OnBytes, cancel: threading.Event, reasons: list[str]
) -> None:
    tensors = read_checkpoint(checkpoint, report, cancel)
    try:
        fit(skeleton.module, tensors, skeleton.dtype)
    except DoesNotFit as error:
        # transformers knows how older names and layouts become its own.
        reasons.append(f"not as it lies there: {error}")
        del tensors
        skeleton.module = _by_transformers(checkpoint, skeleton)


def _by_transformers(checkpoint: Checkpoint, skeleton: Skeleton) -> Any:
    import transformers

    auto = transformers.AutoModelForCausalLM if skeleton.generates else transformers.AutoModel
    module, told = auto.from_pretrained(
        checkpoint.folder, dtype=skeleton.dtype, trust_remote_code=False, output_loading_info=True
    )
    missing = [name for name in told["missing_keys"] if not name.startswith("pooler.")]
    if missing or told["mismatched_keys"]:
        wrong = sorted(map(str, missing or told["mismatched_keys"]))
        raise WeightsCorrupt(checkpoint.folder, f"does not hold the whole model: {', '.join(wrong[:3])}")
    module.requires_grad_(False)
    return module.eval()


def _store(host: HostFile, reasons: list[str]) -> Store | None:
    """A load makes no store: where none is, there are no snapshots."""
    if not host.snapshots or host.spec.snapshot == "off":
        reasons.append("snapshots are off for this model")
        return None
    if not Path(host.snapshots).is_dir():
        reasons.append(f"no store at {host.snapshots}")
        return None
    try:
        return Store(Path(host.snapshots))
    except (SnapshotError, OSError) as error:
        reasons.append(f"{host.snapshots}: {error}")
        return None


def _set_aside(store: Store, snapshot_id: str, error: Exception) -> None:
    try:
        store.quarantine(snapshot_id, "digest", str(error))
    except (SnapshotError, OSError) as refused:
        _log.warning("event=not-quarantined snapshot=%s error=%s", snapshot_id, refused)
