"""Each flavour of snapshot into a model. All are mapped, and every digest is compared before a weight is used."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from rewarm_vllm import packed as packing
from rewarm_vllm.kept import Kept, keep
from rewarm_vllm.observing import observer
from rewarm_vllm.options import Verify
from rewarm_vllm.parameters import DoesNotFit, set_all
from rewarm_vllm.verification import Verification
from rewarm_vllm.views import as_torch
from snapshots import CheckpointError, Lease, MappedWeights, Progress, RestoreOptions, map_weights, throttle_from_env

Repair = Callable[[CheckpointError], None]


def packed(
    lease: Lease,
    vllm_config: Any,
    model_config: Any,
    prefix: str,
    verify: Verify,
    repair: Callable[[nn.Module], Repair],
) -> nn.Module:
    table = packing.read_table(lease)
    mapped = map_weights(lease)
    first = verify == "first" or (verify == "auto" and not mapped.mostly_cached)
    if first:
        _read(mapped)
    elif verify == "auto":
        say_mapped(lease)
    model = packing.build(vllm_config, model_config, prefix, table, mapped)
    kept = Kept(lease, mapped)
    if not first:
        kept.verification = Verification(mapped, repair(model))
        kept.verification.guard(model)
        if verify == "auto":
            kept.verification.begin()
    keep(model, kept)
    observer().preparing("the weights are prepared already")
    return model


def say_mapped(lease: Lease) -> None:
    """All bytes count as read: they are where they will be used."""
    observer().reading("mapping weights")
    observer().bytes(lease.manifest.weight_bytes, lease.manifest.weight_bytes)


def sharded(loader: BaseModelLoader, lease: Lease, vllm_config: Any, model_config: Any, prefix: str) -> nn.Module:
    mapped = map_weights(lease)
    _read(mapped)
    device = torch.device(vllm_config.load_config.device or vllm_config.device_config.device)
    with set_default_torch_dtype(model_config.dtype):
        with device:
            # Memory that nobody writes to costs nothing: the parameters get the map's before they are touched.
            model = loader.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        tensors = {name: as_torch(view) for name, view in mapped.tensors().items()}
        set_all(model, tensors, untied=model_config.word_embeddings_untied_by_checkpoint)
        observer().preparing("preparing the weights for the processor")
        process_weights_after_loading(model, model_config, device)
    keep(model, Kept(lease, mapped))
    return model.eval()


class Portable:
    """A portable snapshot for vLLM's own loading, tensor by tensor. A context manager: the map ends with it."""

    def __init__(self, lease: Lease) -> None:
        if any(file.name.endswith(".gguf") for file in lease.manifest.weight_files):
            raise DoesNotFit(f"{lease.snapshot_id} is a GGUF file, which this loader does not read")
        self._mapped: MappedWeights | None = map_weights(lease)
        _read(self._mapped)

    def weights(self, model: nn.Module) -> Generator[tuple[str, torch.Tensor], None, None]:
        if getattr(model, "allow_patterns_overrides", None) is not None:
            raise DoesNotFit("this model takes its weights from files of particular names")
        assert self._mapped is not None
        for name, view in sorted(self._mapped.tensors().items(), key=lambda item: item[0]):
            yield name, as_torch(view)

    def __enter__(self) -> Portable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._mapped = None  # unmapped once the last tensor over it is gone


def _read(mapped: MappedWeights) -> None:
    """All pages in, all digests compared, chunk by chunk. Raise DigestMismatch, WeightsCorrupt."""
    observer().reading("reading weights")
    mapped.populate(RestoreOptions(report=report, throttle=throttle_from_env()))


def report(progress: Progress) -> None:
    observer().bytes(progress.done_bytes, progress.total_bytes)
