"""A portable snapshot from a checkpoint folder: the same tensors, bit for bit, in files that are fast to read.

Quantised checkpoints (AWQ, GPTQ, FP8) are only tensors here, and keep their bits. Memory stays at one chunk whatever
the model's size. Sharded and packed snapshots come out of a running engine, and are written through the same
:class:`snapshots.staging.Staging`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewarm import __version__
from snapshots.checkpoint import INDEX_FILE, Checkpoint, inspect
from snapshots.digests import ContentHasher
from snapshots.errors import Cancelled, FileChanged, WeightsMissing
from snapshots.extras import find_extras
from snapshots.fingerprint import checkpoint_fingerprint, checkpoint_source, specs, weights_table
from snapshots.layout import PART_BYTES, Part, TensorSpec, plan_parts
from snapshots.manifest import Canary, File, FileKind, Fingerprint, Flavour, Manifest, Measured, Source
from snapshots.progress import Meter, OnProgress, ignore
from snapshots.staging import Staging
from snapshots.store import Store
from snapshots.tensors import TensorReader
from snapshots.throttle import Throttle


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """``allow_holes``: take sparse files, on a file system that makes holes of zeros by itself.

    ``writer`` is added to the manifest's own: which engine gave the canary. Another one, computing from the very same
    weights, may say something else.

    ``location`` and ``seen`` say where the folder came from and what was there, if it came from elsewhere.
    """

    revision: str | None = None
    location: str | None = None
    seen: str | None = None
    canary: Canary | None = None
    writer: str = ""
    measured: Measured = field(default_factory=Measured)
    part_bytes: int = PART_BYTES
    allow_holes: bool = False
    throttle: Throttle | None = None
    cancel: threading.Event | None = None
    report: OnProgress = ignore
    now: Callable[[], float] = time.time


def capture_checkpoint(store: Store, model: str, folder: Path, options: CaptureOptions | None = None) -> Manifest:
    """Make a snapshot of the checkpoint in ``folder``, and publish it.

    Raise CheckpointError for a folder that is not whole, or changes meanwhile; CaptureRunning, StoreFull,
    StoreReadOnly; SnapshotExists when the very same lies in the store; Cancelled. Whatever is raised, the store is as
    before.
    """
    options = options or CaptureOptions()
    checkpoint = inspect(folder)
    extras = find_extras(folder)
    source = checkpoint_source(checkpoint, extras, options.revision)
    if options.location is not None:
        source = Source(options.location, options.revision or options.seen, source.files)
    tensors = specs(checkpoint)
    parts = plan_parts(tensors, metadata=_metadata(checkpoint), part_bytes=options.part_bytes)
    index = _index(parts)
    sizes = {part.name: part.file_bytes for part in parts}
    sizes |= {path.relative_to(folder).as_posix(): path.stat().st_size for path in extras}
    sizes[INDEX_FILE] = len(index)
    meter = Meter("writing", sum(sizes.values()), options.report)
    with store.begin(model, sizes) as staging:
        with _reader(checkpoint, options) as reader:
            weights, files = _write_weights(staging, parts, reader, meter)
            reader.check_unchanged()
        for path in extras:
            files.append(_copy(staging, path, path.relative_to(folder).as_posix(), meter, options.cancel))
        files.append(_write(staging, INDEX_FILE, index, meter))
        if checkpoint_source(checkpoint, extras, options.revision).files != source.files:
            raise FileChanged(folder, "changed while it was captured")
        made = checkpoint_fingerprint(checkpoint, options.revision)
        manifest = Manifest(
            model=model,
            flavour=Flavour.PORTABLE,
            created=options.now(),
            writer=f"rewarm {__version__}{options.writer and f', {options.writer}'}",
            chunk_bytes=staging.chunk_bytes,
            files=tuple(files),
            fingerprint=Fingerprint(made.tensors, weights, made.config, made.revision),
            source=source,
            canary=options.canary,
            measured=options.measured,
        )
        staging.publish(manifest)
    return manifest


def weights_digest(folder: Path, options: CaptureOptions | None = None) -> str:
    """What :attr:`Fingerprint.weights` is for the checkpoint in ``folder`` now. Reads all of it."""
    options = options or CaptureOptions()
    checkpoint = inspect(folder)
    tensors = specs(checkpoint)
    meter = Meter("reading", sum(tensor.data_bytes for tensor in tensors), options.report)
    digests: dict[TensorSpec, str] = {}
    with _reader(checkpoint, options) as reader:
        for tensor in tensors:
            hasher = ContentHasher()
            for piece in reader.pieces(tensor):
                hasher.update(piece)
                meter.add(len(piece))
            digests[tensor] = hasher.hexdigest()
        reader.check_unchanged()
    return weights_table(digests)


def _reader(checkpoint: Checkpoint, options: CaptureOptions) -> TensorReader:
    return TensorReader(checkpoint, cancel=options.cancel, throttle=options.throttle, allow_holes=options.allow_holes)


def _write_weights(
    staging: Staging, parts: Sequence[Part], reader: TensorReader, meter: Meter
) -> tuple[str, list[File]]:
    """The digest over all tensors, and the files."""
    digests: dict[TensorSpec, str] = {}
    files: list[File] = []
    for part in parts:
        out = staging.file(part.name, FileKind.WEIGHTS)
        out.write(part.header)
        meter.add(len(part.header), part.name)
        for tensor in part.tensors:
            hasher = ContentHasher()
            for piece in reader.pieces(tensor):
                hasher.update(piece)
                out.write(piece)
                meter.add(len(piece), part.name)
            digests[tensor] = hasher.hexdigest()
        files.append(out.finish())
    return weights_table(digests), files


def _copy(staging: Staging, path: Path, name: str, meter: Meter, cancel: threading.Event | None) -> File:
    if cancel is not None and cancel.is_set():
        raise Cancelled(f"cancelled before {name}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WeightsMissing(path, error.strerror or str(error)) from error
    try:
        return _write(staging, name, data, meter)
    except ValueError as error:  # another size than was announced
        raise FileChanged(path, "changed while it was captured") from error


def _write(staging: Staging, name: str, data: bytes, meter: Meter) -> File:
    out = staging.file(name, FileKind.EXTRA)
    out.write(data)
    file = out.finish()
    meter.add(len(data), name)
    return file


def _metadata(checkpoint: Checkpoint) -> Mapping[str, str]:
    """transformers refuses files that do not say ``format``."""
    metadata: dict[str, str] = {"format": "pt"}
    for file in checkpoint.files:
        metadata |= dict(file.header.metadata)
    return metadata


def _index(parts: Sequence[Part]) -> bytes:
    """With it, transformers and vLLM's default loader find the files under their unusual names."""
    weight_map = {tensor.name: part.name for part in parts for tensor in part.tensors}
    total = sum(tensor.data_bytes for part in parts for tensor in part.tensors)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1).encode() + b"\n"
