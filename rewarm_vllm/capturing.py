"""Snapshots out of vLLM: a load that writes what it loads, computes from what it wrote, and must answer as recorded.

A capture is an engine of its own in one process. Its loader takes the weights from the checkpoint, stages a *sharded*
snapshot and packs a *packed* one from the staged bytes; the engine then runs on the packed files as they lie on the
disk, gives the canary's answer, and only if that is the recorded one are they published. Without a recorded answer the
engine first answers with weights that vLLM itself processed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.model_loader.weight_tying import maybe_retie_word_embeddings
from vllm.utils.torch_utils import set_default_torch_dtype

from rewarm import __version__
from rewarm_vllm import compiled, packed, packed_capture, sharded_capture
from rewarm_vllm.canary import check_canary
from rewarm_vllm.fingerprint import engine_fingerprint
from rewarm_vllm.job import CaptureJob, CaptureRefused
from rewarm_vllm.kept import Kept, hand_over, keep
from rewarm_vllm.loader import RewarmLoader
from rewarm_vllm.options import LOAD_FORMAT
from rewarm_vllm.origin import origin_of, require_checkpoint
from rewarm_vllm.packed_format import PACKED_NAME, encode
from rewarm_vllm.rebuild import beside, transplant
from snapshots import (
    ENGINE_CACHE_NAME,
    Canary,
    File,
    FileKind,
    Fingerprint,
    Flavour,
    Manifest,
    Measured,
    SnapshotError,
    SnapshotExists,
    Source,
    Staging,
    checkpoint_fingerprint,
    checkpoint_source,
    find_extras,
    inspect,
    map_weights,
    pack_engine_cache,
    take,
)

_log = init_logger("vllm.rewarm")


class Capture:
    """One capture: from the job to what was published. :meth:`load` is called by vLLM through the loader, :meth:`swap`
    and :meth:`publish` afterwards. A context manager: what is not published by then is gone."""

    def __init__(self, job: CaptureJob) -> None:
        self.job = job
        self._staged: dict[Flavour, tuple[Staging, Manifest]] = {}
        self._model: nn.Module | None = None
        self._configs: tuple[Any, Any] | None = None
        self._phases: dict[str, float] = {}
        self._compiling: Path | None = None  # the folder of what this engine compiles

    # --- loading ---

    def load(self, loader: RewarmLoader, vllm_config: Any, model_config: Any) -> nn.Module:
        self._configs = vllm_config, model_config
        _require_capturable(vllm_config, self.job.flavours)
        self._compiling = compiled.private_folder(vllm_config) if loader.options.caches else None
        device = torch.device(vllm_config.device_config.device)
        checkpoint = inspect(require_checkpoint(origin_of(model_config, loader.options)))
        self._source = checkpoint_source(checkpoint, find_extras(checkpoint.folder))
        self._fingerprint = engine_fingerprint(checkpoint_fingerprint(checkpoint), vllm_config, model_config)
        known = self.job.canary is not None and Flavour.PACKED in self.job.flavours
        config = beside(vllm_config) if known else vllm_config
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = loader.create_model(vllm_config=config, model_config=model_config)
            self._stage_sharded(loader, model, model_config, device)
            if Flavour.PACKED in self.job.flavours:
                maybe_retie_word_embeddings(model, model_config)
                self._stage_packed(model)
            if known:
                model = self._packed_model(vllm_config, model_config)
            else:
                process_weights_after_loading(model, model_config, device)
        self._model = model.eval()
        return self._model

    def _stage_sharded(self, loader: RewarmLoader, model: nn.Module, model_config: Any, device: torch.device) -> None:
        started = time.perf_counter()
        parts = sharded_capture.plan(model)
        extras = self._extras()
        sizes = {part.name: part.file_bytes for part in parts} | {name: len(data) for name, data in extras.items()}
        staging = self.job.store.begin(self.job.name, sizes)
        # Recorded at once, with a manifest to come: leaving the context has to remove it whatever happens next.
        self._staged[Flavour.SHARDED] = (staging, _NO_MANIFEST)
        files = sharded_capture.ShardedFiles(staging, parts)
        if device.type == "cpu":
            files.become_memory_of(model)
        loader.load_weights(model, model_config)
        files.take_from(model)
        written = [*files.finish(), *_write_extras(staging, extras)]
        self._staged[Flavour.SHARDED] = (staging, self._manifest(Flavour.SHARDED, written, staging))
        self._phases["sharded"] = time.perf_counter() - started

    def _stage_packed(self, model: nn.Module) -> None:
        started = time.perf_counter()
        plan = packed_capture.plan(model)
        extras = self._extras() | {PACKED_NAME: encode(plan.table)}
        sizes = {part.name: part.file_bytes for part in plan.parts} | {n: len(data) for n, data in extras.items()}
        staging = self.job.store.begin(self.job.name, sizes, beside=self._staged[Flavour.SHARDED][0])
        self._staged[Flavour.PACKED] = (staging, _NO_MANIFEST)
        written = [*packed_capture.write(plan, staging), *_write_extras(staging, extras)]
        manifest = self._manifest(Flavour.PACKED, written, staging)
        self._staged[Flavour.PACKED] = (staging, manifest)
        staging.seal(manifest)  # from here on it can be leased like a published one
        self._phases["packed"] = time.perf_counter() - started

    def _packed_model(self, vllm_config: Any, model_config: Any) -> nn.Module:
        """A model over the staged files, exactly as a load of the snapshot makes it, every digest compared."""
        lease = take(self._staged[Flavour.PACKED][0].folder)
        mapped = map_weights(lease)
        mapped.populate()
        model = packed.build(vllm_config, model_config, "", packed.read_table(lease), mapped)
        keep(model, Kept(lease, mapped))
        return model

    # --- once the engine runs ---

    def swap(self) -> None:
        """Let a model that vLLM processed itself compute from the staged packed weights instead."""
        assert self._model is not None
        assert self._configs is not None
        vllm_config, model_config = self._configs
        donor = self._packed_model(beside(vllm_config), model_config)
        transplant(self._model, donor)
        hand_over(donor, self._model)

    @property
    def must_swap(self) -> bool:
        return self.job.canary is None and Flavour.PACKED in self.job.flavours

    def publish(self, recorded: Canary, tokens: Sequence[int]) -> list[Manifest]:
        """What is new in the store. Raise CanaryFailed, and nothing is published."""
        check_canary(recorded, tokens)
        measured = Measured(self.job.measured.memory_bytes, self.job.measured.phases_s | self._phases)
        published = []
        for flavour in sorted(self.job.flavours & self._staged.keys(), key=lambda f: f is Flavour.SHARDED):
            staging, manifest = self._staged[flavour]
            if flavour is Flavour.SHARDED and self._compiling is not None:
                manifest = self._with_compiled(manifest, staging, self._compiling)
            manifest = replace(manifest, canary=recorded, measured=measured)
            try:
                staging.publish(manifest)
            except SnapshotExists as exists:
                _log.info("%s", exists)
                continue
            _log.info("captured %s, %d bytes", manifest.snapshot_id, manifest.total_bytes)
            published.append(manifest)
            self._evict_superseded(manifest)
        return published

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        for flavour in reversed(list(self._staged)):  # the first one holds the claim on the model's name
            self._staged[flavour][0].abort()
        self._staged.clear()

    # --- inside ---

    def _with_compiled(self, manifest: Manifest, staging: Staging, folder: Path) -> Manifest:
        """With what this engine compiled, after it gave the recorded answer. Weights do not wait for it."""
        try:
            data = pack_engine_cache(folder, compiled.made_by(), self.job.store)
            self.job.store.extend(staging, {ENGINE_CACHE_NAME: len(data)})
        except (SnapshotError, OSError) as error:
            _log.warning("the compile cache is not kept: %s", error)
            return manifest
        out = staging.file(ENGINE_CACHE_NAME, FileKind.CACHE)
        out.write(data)
        return replace(manifest, files=(*manifest.files, out.finish()))

    def _evict_superseded(self, manifest: Manifest) -> None:
        """The same weights for the same engine, with no compile cache or an old one."""
        weights = {file.blake3 for file in manifest.weight_files}
        for entry in self.job.store.list():
            older = entry.manifest
            if older is None or entry.quarantined or entry.snapshot_id == manifest.snapshot_id or entry.state.pinned:
                continue
            same = older.fingerprint == self._fingerprint and {file.blake3 for file in older.weight_files} == weights
            if same and (older.model, older.flavour) == (manifest.model, manifest.flavour):
                try:
                    self.job.store.evict(entry.snapshot_id)
                except (SnapshotError, OSError) as error:
                    _log.warning("%s is superseded, and stays: %s", entry.snapshot_id, error)

    def _extras(self) -> dict[str, bytes]:
        folder = Path(self._source.location)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in find_extras(folder)}

    def _manifest(self, flavour: Flavour, files: Sequence[File], staging: Staging) -> Manifest:
        return Manifest(
            model=self.job.name,
            flavour=flavour,
            created=time.time(),
            writer=f"rewarm {__version__}",
            chunk_bytes=staging.chunk_bytes,
            files=tuple(files),
            fingerprint=self._fingerprint,
            source=self._source,
        )


_NO_MANIFEST = Manifest("-", Flavour.SHARDED, 0.0, "", 4096, (), Fingerprint("0" * 64), Source(""))


class CapturingLoader(RewarmLoader):
    """In the place of the loader, in a process that captures."""

    capture: Capture  # of this process: vLLM makes loaders itself

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        model = type(self).capture.load(self, vllm_config, model_config)
        # The canary is short: no reason to reserve a KV cache for the model's whole context.
        model_config.max_model_len = min(model_config.max_model_len, self.capture.job.context)
        return model


def install(capture: Capture) -> None:
    from vllm.model_executor import model_loader

    CapturingLoader.capture = capture
    model_loader._LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT] = CapturingLoader


def _require_capturable(vllm_config: Any, flavours: frozenset[Flavour]) -> None:
    if Flavour.PACKED in flavours and compiled.compiles(vllm_config):
        raise CaptureRefused("packed weights do not go into a compiled model: capture sharded, or use eager mode")
    parallel = vllm_config.parallel_config
    if parallel.world_size > 1:
        raise CaptureRefused(f"captures of {parallel.world_size} ranks at once are not built")
    if vllm_config.model_config.runner_type != "generate":
        raise CaptureRefused("a model that generates nothing has no answer to record")


def _write_extras(staging: Staging, extras: dict[str, bytes]) -> list[File]:
    files = []
    for name, data in extras.items():
        out = staging.file(name, FileKind.EXTRA)
        out.write(data)
        files.append(out.finish())
    return files
