"""What a snapshot was made from and for, and whether that is what a reader has: a list of reasons, never a guess.

How much has to agree depends on the flavour. *portable* weights fit every engine on every machine, as long as the
model is the same. *sharded* ones are an engine's own parameters, cut for its ranks. *packed* ones are bytes in the
order that one kernel on one CPU wants them in.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from snapshots.checkpoint import Checkpoint
from snapshots.digests import blake3_hex
from snapshots.errors import FingerprintMismatch
from snapshots.layout import TensorSpec
from snapshots.manifest import Fingerprint, Flavour, Manifest, Source, SourceFile

_MODEL = ("config", "revision", "quantization")
_ENGINE = ("engine", "dtype", "ranks")
_MACHINE = ("torch", "kernels", "device")

_BINDING: Mapping[Flavour, tuple[str, ...]] = {
    Flavour.PORTABLE: _MODEL,
    Flavour.SHARDED: (*_MODEL, *_ENGINE),
    Flavour.PACKED: (*_MODEL, *_ENGINE, *_MACHINE),
}

_WORDS = {
    "tensors": "names, shapes or dtypes of the tensors",
    "weights": "the weights' bytes",
    "config": "config.json",
    "revision": "the model's revision",
    "engine": "the engine",
    "torch": "torch",
    "dtype": "the dtype",
    "quantization": "the quantization",
    "kernels": "the kernels' layout",
    "ranks": "the ranks",
    "device": "the device",
}

# Which parts of a CPU's instruction set change how kernels lay weights out.
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve")


def compare(made: Fingerprint, have: Fingerprint, flavour: Flavour) -> tuple[str, ...]:
    """Reasons, a line each, why a snapshot ``made`` so does not fit a reader that has ``have``; empty: it fits.

    What the reader leaves open (None) is not compared, except for a flavour that is bound to it: there, not to know
    is a reason. ``tensors`` and ``weights`` of sharded and packed snapshots are those of the model they were made
    from.
    """
    reasons = []
    for field in ("tensors", "weights"):
        ours, theirs = getattr(made, field), getattr(have, field)
        if theirs is not None and ours is not None and ours != theirs:
            reasons.append(f"{_WORDS[field]} differ from the source's")
    for field in _BINDING[flavour]:
        ours, theirs = getattr(made, field), getattr(have, field)
        if ours == theirs or (theirs is None and field in _MODEL):
            continue
        if field == "quantization" and ours is None and flavour is Flavour.PORTABLE:
            continue  # made from a folder, without an engine that names it: config.json, compared above, says it
        if field == "config":
            reasons.append("config.json differs from the source's")
        else:
            reasons.append(f"{_WORDS[field]}: made for {_show(ours)}, here is {_show(theirs)}")
    return tuple(reasons)


def require_match(snapshot_id: str, manifest: Manifest, have: Fingerprint) -> None:
    reasons = compare(manifest.fingerprint, have, manifest.flavour)
    if reasons:
        raise FingerprintMismatch(snapshot_id, reasons)


def source_changes(made: Source, now: Source) -> tuple[str, ...]:
    """Reasons why a checkpoint is not the one that was captured, from names, sizes, times and small files' digests.

    Cheap: no weights are read. A touched file counts as changed; reading its weights would tell, see
    :func:`snapshots.capture.weights_digest`.
    """
    before, after = {f.name: f for f in made.files}, {f.name: f for f in now.files}
    reasons = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            reasons.append(f"{name} was {'added' if a is None else 'removed'}")
        elif a.blake3 is not None and b.blake3 is not None:
            if a.blake3 != b.blake3:
                reasons.append(f"{name} has other bytes")
        elif a.size != b.size:
            reasons.append(f"{name} has {b.size} bytes, it had {a.size}")
        elif a.mtime_ns != b.mtime_ns:
            reasons.append(f"{name} was written to since")
    return tuple(reasons)


def tensor_table(tensors: Iterable[TensorSpec]) -> str:
    """A digest over name, dtype and shape of every tensor, whatever order and files they lie in."""
    table = sorted((tensor.name, tensor.dtype, list(tensor.shape)) for tensor in tensors)
    return blake3_hex([msgspec.json.encode(table)])


def weights_table(digests: Mapping[TensorSpec, str]) -> str:
    """As :func:`tensor_table`, over the BLAKE3 of every tensor's bytes too: the same model, however it is laid
    out."""
    table = sorted((tensor.name, tensor.dtype, list(tensor.shape), digest) for tensor, digest in digests.items())
    return blake3_hex([msgspec.json.encode(table)])


def checkpoint_source(checkpoint: Checkpoint, small: Iterable[Path], revision: str | None = None) -> Source:
    """What a folder holds now: ``small`` files with their digests, weight files by size and time."""
    files = []
    for path in small:
        status = path.stat()
        name = path.relative_to(checkpoint.folder).as_posix()
        files.append(SourceFile(name, status.st_size, status.st_mtime_ns, blake3_hex([path.read_bytes()])))
    for weights in checkpoint.files:
        status = weights.path.stat()
        files.append(SourceFile(weights.path.name, status.st_size, status.st_mtime_ns))
    return Source(str(checkpoint.folder.absolute()), revision, tuple(sorted(files, key=lambda f: f.name)))


def checkpoint_fingerprint(checkpoint: Checkpoint, revision: str | None = None) -> Fingerprint:
    """What a reader of this folder has and needs: cheap, from headers and config.json alone."""
    from snapshots.shape import CONFIG_FILE

    return Fingerprint(
        tensors=tensor_table(specs(checkpoint)),
        config=blake3_hex([(checkpoint.folder / CONFIG_FILE).read_bytes()]),
        revision=revision,
    )


def specs(checkpoint: Checkpoint) -> list[TensorSpec]:
    """Every tensor of a checkpoint, in the order in which it lies in its files."""
    out = []
    for file in checkpoint.files:
        for name, tensor in sorted(file.header.tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
            out.append(TensorSpec(name, tensor.dtype, tensor.shape))
    return out


def cpu_device(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """ "cpu x86_64 avx2 avx512f amx_tile": the architecture, and the instruction sets that kernels choose by."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    flags: set[str] = set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags.update(value.split())
            break
    return " ".join(["cpu", platform.machine(), *(flag for flag in _CPU_FLAGS if flag in flags)])


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={number}" for key, number in sorted(value.items())) or "none"
    return "unknown" if value is None else str(value)
