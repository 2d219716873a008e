"""The loader behind ``--load-format rewarm``: the best snapshot that is proved to fit, else the checkpoint.

What it took, and why nothing better, goes to vLLM's log and to the :class:`rewarm_vllm.observing.Observer`. A snapshot
that turns out damaged goes into quarantine and the next best is taken; nothing is ever loaded in part.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from rewarm_vllm import compiled, flavours
from rewarm_vllm.fingerprint import engine_fingerprint
from rewarm_vllm.kept import hand_over, kept_by
from rewarm_vllm.observing import Loaded, observer
from rewarm_vllm.options import LoadOptions
from rewarm_vllm.origin import ORDER, Origin, origin_of, require_checkpoint
from rewarm_vllm.rebuild import beside, registrations_undone, transplant
from snapshots import Checkpoint, CheckpointError, Flavour, Lease, SnapshotError, inspect, throttle_from_env

_log = init_logger("vllm.rewarm")


class RewarmLoader(DefaultModelLoader):
    def __init__(self, load_config: LoadConfig) -> None:
        self.options = LoadOptions.parse(load_config.model_loader_extra_config)
        # Safetensors only: pickled weights can run code, and their sizes could not be checked.
        super().__init__(dataclasses.replace(load_config, load_format="safetensors", model_loader_extra_config={}))
        self._from: flavours.Portable | Path | None = None  # where load_weights reads
        self._before: tuple[str, ...] = ()  # what went wrong before this load

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        start = time.perf_counter()
        if model_config is not vllm_config.model_config:  # a draft model: snapshots are of the main one
            return super().load_model(vllm_config, model_config, prefix)
        origin = origin_of(model_config, self.options)
        compiling = compiled.private_folder(vllm_config) if self.options.snapshots and self.options.caches else None
        reasons = list(self._before)
        found = None
        if not self.options.snapshots:
            reasons.append("snapshots are off for this model")
        elif origin.model is not None:
            found = self._from_snapshot(origin, vllm_config, model_config, prefix, reasons)
        if compiling is not None:
            reasons += self._compiled_before(model_lease(found), origin, compiling)
        origin.close()
        if found is None:
            found = self._from_checkpoint(origin, vllm_config, model_config, prefix), Loaded("source")
        model, loaded = found
        self._say(dataclasses.replace(loaded, reasons=tuple(reasons), seconds=time.perf_counter() - start))
        return model

    # --- the ways ---

    def _from_snapshot(
        self, origin: Origin, vllm_config: Any, model_config: Any, prefix: str, reasons: list[str]
    ) -> tuple[nn.Module, Loaded] | None:
        """None when nothing fits; ``reasons`` says why then, and what failed on the way."""
        assert origin.model is not None
        have = engine_fingerprint(origin.model, vllm_config, model_config)
        left: tuple[Flavour, ...] = ORDER
        if compiled.compiles(vllm_config):
            left = tuple(flavour for flavour in ORDER if flavour is not Flavour.PACKED)
            reasons.append("packed weights do not go into a compiled model")
        while left:
            found = origin.find(have, left)
            reasons += [reason for reason in found.reasons if reason not in reasons]
            if found.lease is None:
                return None
            lease = found.lease
            flavour = lease.manifest.flavour
            try:
                with registrations_undone(vllm_config):
                    model = self._restore(lease, origin, vllm_config, model_config, prefix)
                root = str(origin.store.root) if origin.store is not None else ""
                return model, Loaded(flavour.value, lease.snapshot_id, root)
            except MemoryError:
                lease.close()
                raise
            except Exception as error:  # noqa: BLE001 -- whatever a snapshot's bytes bring about, the checkpoint is right
                lease.close()
                reasons.append(f"{lease.snapshot_id}: {type(error).__name__}: {error}")
                self._set_aside(origin, lease.snapshot_id, error)
            left = left[left.index(flavour) + 1 :]
        return None

    def _restore(self, lease: Lease, origin: Origin, vllm_config: Any, model_config: Any, prefix: str) -> nn.Module:
        if lease.manifest.flavour is Flavour.PACKED:

            def repair(model: nn.Module) -> Callable[[CheckpointError], None]:
                return lambda problem: self._repair(model, lease, origin, vllm_config, model_config, prefix, problem)

            return flavours.packed(lease, vllm_config, model_config, prefix, self.options.verify, repair)
        if lease.manifest.flavour is Flavour.SHARDED:
            return flavours.sharded(self, lease, vllm_config, model_config, prefix)
        with flavours.Portable(lease) as portable:
            self._from = portable
            model = super().load_model(vllm_config, model_config, prefix)
            self._from = None
        lease.close()  # everything was copied
        return model

    def _from_checkpoint(self, origin: Origin, vllm_config: Any, model_config: Any, prefix: str) -> nn.Module:
        self._from = require_checkpoint(origin)
        return super().load_model(vllm_config, model_config, prefix)

    def _repair(
        self,
        model: nn.Module,
        lease: Lease,
        origin: Origin,
        vllm_config: Any,
        model_config: Any,
        prefix: str,
        problem: CheckpointError,
    ) -> None:
        """The bytes under ``model`` are wrong, and nothing was computed from them yet: give it others."""
        _log.error("%s is damaged, its weights are replaced before they are used: %s", lease.snapshot_id, problem)
        self._set_aside(origin, lease.snapshot_id, problem)
        again = RewarmLoader(
            dataclasses.replace(
                self.load_config,
                load_format="rewarm",
                model_loader_extra_config={**_given(self.options), "verify": "first"},
            )
        )
        again._before = (f"{lease.snapshot_id}: {type(problem).__name__}: {problem}",)
        config = beside(vllm_config)
        # These weights are no intermediate of the pass that waits for them, nor does it say what is being configured.
        with torch.inference_mode(False), set_current_vllm_config(config):
            donor = again.load_model(config, config.model_config, prefix)
        transplant(model, donor)
        hand_over(donor, model)

    @staticmethod
    def _compiled_before(lease: Lease | None, origin: Origin, folder: Path) -> list[str]:
        """Before anything is compiled: put into ``folder`` what was captured with the weights. Why not, where not."""
        if lease is None:
            return []
        problem = compiled.restore(lease, origin.store, folder)
        if problem is None:
            _log.info("compiled before: the cache of %s", lease.snapshot_id)
        return [] if problem is None else [problem]

    def _set_aside(self, origin: Origin, snapshot_id: str, error: Exception) -> None:
        if not isinstance(error, CheckpointError) or origin.store is None:
            return  # it is whole, and does not fit this engine
        try:
            origin.store.quarantine(snapshot_id, "digest", str(error))
        except (SnapshotError, OSError) as refused:
            _log.warning("%s is damaged and cannot be put into quarantine: %s", snapshot_id, refused)

    def _say(self, loaded: Loaded) -> None:
        for reason in loaded.reasons:
            _log.info("not used: %s", reason)
        _log.info("weights from %s in %.3f s", loaded.words, loaded.seconds)
        observer().loaded(loaded)

    # --- what vLLM asks for while it loads tensor by tensor ---

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        super().load_weights(model, model_config)
        observer().preparing("preparing the weights for the processor")

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Generator[tuple[str, torch.Tensor], None, None]:
        if isinstance(self._from, flavours.Portable):
            yield from self._from.weights(model)
            for source in getattr(model, "secondary_weights", ()):
                yield from self._get_weights_iterator(source)
            return
        folder = self._from if self._from is not None else Path(model_config.model)
        if not folder.is_dir():
            yield from super().get_all_weights(model_config, model)
            return
        config = copy.copy(model_config)
        config.model = str(folder)
        yield from _counted(super().get_all_weights(config, model), inspect(folder))


def model_lease(found: tuple[nn.Module, Loaded] | None) -> Lease | None:
    """Of the snapshot that a loaded model lives from."""
    kept = None if found is None else kept_by(found[0])
    return None if kept is None else kept.lease


def _counted(
    weights: Generator[tuple[str, torch.Tensor], None, None], checkpoint: Checkpoint
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """A byte counts once its tensor is copied into the model, not when it is mapped. The total is the size of the
    files, headers included, and is reached exactly: they were checked to hold nothing but header and tensors."""
    sizes = {name: tensor.data_bytes for file in checkpoint.files for name, tensor in file.header.tensors.items()}
    total, done = checkpoint.file_bytes, checkpoint.header_bytes
    observer().reading("reading weights")
    observer().bytes(done, total)
    throttle = throttle_from_env()
    for name, tensor in weights:
        if throttle is not None and name in sizes:
            throttle.wait(sizes[name])  # it is mapped, and read when the model copies it
        yield name, tensor  # comes back here when the model has copied it
        done += sizes.pop(name, 0)
        if done < total:
            observer().bytes(done, total)
    observer().bytes(total, total)  # also where vLLM skips tensors that this rank does not need


def _given(options: LoadOptions) -> dict[str, Any]:
    fields = {"store": options.store, "name": options.name, "snapshots": options.snapshots, "caches": options.caches}
    return {name: value for name, value in fields.items() if value is not None}
