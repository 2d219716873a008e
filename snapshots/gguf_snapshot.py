"""Snapshots of GGUF files: dequantised for engines that want safetensors, or the file itself for those that
read it."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from rewarm import __version__
from snapshots.capture import CaptureOptions, capture_checkpoint
from snapshots.digests import CHUNK_BYTES
from snapshots.errors import Cancelled, FileChanged, WeightsCorrupt, WeightsMissing
from snapshots.gguf import prepare_gguf
from snapshots.manifest import FileKind, Fingerprint, Flavour, Manifest, Source, SourceFile
from snapshots.names import check_file_name
from snapshots.progress import Meter, Progress
from snapshots.publish import Step
from snapshots.reading import Unchanged
from snapshots.store import Store
from snapshots.tensors import refuse_holes

_MAGIC = b"GGUF"


class GgufMode(StrEnum):
    DEQUANTISE = "dequantise"  # bfloat16 safetensors: for vLLM and torch
    AS_IS = "as-is"  # untouched: for llama.cpp and its like


def capture_gguf(
    store: Store, model: str, gguf: Path, mode: GgufMode, scratch: Path, options: CaptureOptions | None = None
) -> Manifest:
    """Make a portable snapshot of a GGUF file. ``scratch`` is a folder for the dequantised checkpoint; it is not
    removed.

    Raise as :func:`snapshots.capture.capture_checkpoint` does, and PrepareFailed when it cannot be dequantised.
    """
    options = options or CaptureOptions()
    options = replace(options, location=options.location or str(gguf.absolute()))
    if mode is GgufMode.AS_IS:
        return _capture_file(store, model, gguf, options)

    def report(step: Step) -> None:
        options.report(Progress(f"dequantising: {step.message}", int(step.fraction * 100), 100, gguf.name))

    prepare_gguf(gguf, scratch, report)
    return capture_checkpoint(store, model, scratch, options)


def _capture_file(store: Store, model: str, gguf: Path, options: CaptureOptions) -> Manifest:
    problem = check_file_name(gguf.name)
    if problem is not None:
        raise WeightsCorrupt(gguf, problem)
    try:
        descriptor = os.open(gguf, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise WeightsMissing(gguf, error.strerror or str(error)) from error
    try:
        unchanged, status = Unchanged(descriptor, gguf), os.fstat(descriptor)
        if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            raise WeightsCorrupt(gguf, "does not start as a GGUF file does", offset=0)
        if not options.allow_holes:
            refuse_holes(descriptor, gguf, status.st_size)
        meter = Meter("writing", status.st_size, options.report)
        with store.begin(model, {gguf.name: status.st_size}) as staging:
            out = staging.file(gguf.name, FileKind.WEIGHTS)
            at = 0
            while at < status.st_size:
                if options.throttle is not None:
                    options.throttle.wait(CHUNK_BYTES, options.cancel)
                if options.cancel is not None and options.cancel.is_set():
                    raise Cancelled(f"cancelled while reading {gguf.name}")
                piece = os.pread(descriptor, min(CHUNK_BYTES, status.st_size - at), at)
                if not piece:
                    raise FileChanged(gguf, "shrank while it was read", offset=at)
                out.write(piece)
                at += len(piece)
                meter.add(len(piece), gguf.name)
            file = out.finish()
            unchanged.check()
            manifest = Manifest(
                model=model,
                flavour=Flavour.PORTABLE,
                created=options.now(),
                writer=f"rewarm {__version__}",
                chunk_bytes=staging.chunk_bytes,
                files=(file,),
                # The table of tensors is inside the file, in a format of its own: its digest stands for both.
                fingerprint=Fingerprint(file.blake3, file.blake3, revision=options.revision),
                source=Source(
                    options.location or str(gguf.absolute()),
                    options.revision or options.seen,
                    (SourceFile(gguf.name, status.st_size, status.st_mtime_ns),),
                ),
                canary=options.canary,
                measured=options.measured,
            )
            staging.publish(manifest)
        return manifest
    finally:
        os.close(descriptor)
