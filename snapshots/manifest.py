"""``rewarm-snapshot.json``: what a snapshot is, file by file and chunk by chunk. Written last, read first.

A manifest is accepted only in exactly the form that :func:`encode` writes. That refuses, without a rule for each,
duplicate keys, unknown fields, trailing bytes and reordered lines; and ``seal``, a BLAKE3 over the rest, finds a
flipped bit in a value that is otherwise plausible. Digests of chunks start at byte 0 of a file, header included.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from snapshots.digests import CHUNK_DIGEST_BYTES, blake3_hex
from snapshots.errors import ManifestInvalid, ManifestVersion
from snapshots.names import check_file_names, check_model_name

MANIFEST_NAME = "rewarm-snapshot.json"
FORMAT = "rewarm-snapshot"
VERSION = 1
MAX_MANIFEST_BYTES = 64 * 2**20
"""A terabyte of weights in 4 MiB chunks needs 9 MB; more is noise or an attack."""

_T = TypeVar("_T")

_ID_DIGITS = 16
_MAX_CHUNK_BYTES = 64 * 2**20

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")]
Text = Annotated[str, msgspec.Meta(max_length=4096)]


class Flavour(StrEnum):
    PORTABLE = "portable"  # Hugging Face names: loads in every engine
    SHARDED = "sharded"  # vLLM's parameters before they are processed, one set of files per rank
    PACKED = "packed"  # the state after processing, bound to kernels and CPU: for our own loader


class FileKind(StrEnum):
    WEIGHTS = "weights"
    EXTRA = "extra"  # tokenizer, chat template, configuration, generation defaults
    CACHE = "cache"  # an engine's compile and kernel caches


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class File(_Struct, frozen=True):
    name: str  # relative, below the snapshot's folder
    kind: FileKind
    size: Count  # bytes
    blake3: Hex64
    chunks: Hex  # xxh3-128 of each chunk, in a row

    def digests(self) -> list[bytes]:
        raw = bytes.fromhex(self.chunks)
        return [raw[at : at + CHUNK_DIGEST_BYTES] for at in range(0, len(raw), CHUNK_DIGEST_BYTES)]


class SourceFile(_Struct, frozen=True):
    """A file of the checkpoint as it was: enough to tell cheaply whether it is still the same one."""

    name: str
    size: Count  # bytes
    mtime_ns: int
    blake3: Hex64 | None = None  # small files; weights are digested tensor by tensor, see `Fingerprint.weights`


class Source(_Struct, frozen=True):
    location: Text
    revision: Text | None = None
    files: tuple[SourceFile, ...] = ()


class Fingerprint(_Struct, frozen=True):
    """What a snapshot was made from and for. :mod:`snapshots.fingerprint` compares two of them, by flavour."""

    tensors: Hex64  # over name, dtype and shape of every tensor
    weights: Hex64 | None = None  # over name, dtype, shape and bytes of every tensor, whatever files they lie in
    config: Hex64 | None = None  # of config.json
    revision: Text | None = None
    engine: Text | None = None  # "vllm 0.32.0"
    torch: Text | None = None
    dtype: Text | None = None
    quantization: Text | None = None
    kernels: Text | None = None  # names a layout: "onednn 3.7 acl=off"
    ranks: dict[str, int] = {}  # "tp", "pp", "ep": how many there are
    device: Text | None = None  # "cpu x86_64 avx512_bf16 amx" or "cuda sm_90"


class Canary(_Struct, frozen=True):
    """A recorded greedy answer: an engine that restored these weights must give it again before it is READY."""

    prompt: Text
    tokens: tuple[int, ...]
    text: Text = ""


class Measured(_Struct, frozen=True):
    memory_bytes: dict[str, Count] = {}
    phases_s: dict[str, float] = {}


class Manifest(_Struct, frozen=True):
    model: str
    flavour: Flavour
    created: float  # seconds since the epoch
    writer: Text  # "rewarm 0.1.0"
    chunk_bytes: Annotated[int, msgspec.Meta(ge=4096, le=_MAX_CHUNK_BYTES, multiple_of=4096)]
    files: Annotated[tuple[File, ...], msgspec.Meta(min_length=1, max_length=100_000)]
    fingerprint: Fingerprint
    source: Source
    canary: Canary | None = None
    measured: Measured = Measured()

    @property
    def content(self) -> str:
        """The content address: the same weights and extras, made for the same engine, have the same one."""
        what = [(f.name, f.size, f.blake3) for f in sorted(self.files, key=lambda f: f.name)]
        return blake3_hex([msgspec.json.encode([FORMAT, VERSION, self.flavour, what, self.fingerprint])])

    @property
    def version(self) -> str:
        """The folder's name below the model's: two captures of the same content meet in one."""
        return f"{self.flavour}-{self.content[:_ID_DIGITS]}"

    @property
    def snapshot_id(self) -> str:
        return f"{self.model}@{self.version}"

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def weight_files(self) -> tuple[File, ...]:
        return tuple(file for file in self.files if file.kind is FileKind.WEIGHTS)

    @property
    def weight_bytes(self) -> int:
        return sum(file.size for file in self.weight_files)


class _Sealed(_Struct, frozen=True):
    format: str
    version: int
    manifest: Manifest
    seal: Hex64


class _Head(msgspec.Struct, frozen=True):  # unknown fields pass: a later version may have others
    format: str = ""
    version: int = 0


def encode(manifest: Manifest) -> bytes:
    sealed = _Sealed(FORMAT, VERSION, manifest, blake3_hex([msgspec.json.encode(manifest)]))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"


def parse(raw: bytes, path: Path) -> Manifest:
    """Raise ManifestVersion for what another version wrote, ManifestInvalid for what else is wrong with it.

    ``path`` only names it in errors.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ManifestInvalid(path, f"has more than {MAX_MANIFEST_BYTES} bytes: no manifest")
    head = _decode(raw, _Head, path)
    if head.format != FORMAT:
        raise ManifestVersion(path, f"says its format is {head.format[:40]!r}, not {FORMAT!r}", offset=0)
    if head.version != VERSION:
        raise ManifestVersion(path, f"is of version {head.version}; this rewarm reads version {VERSION}", offset=0)
    sealed = _decode(raw, _Sealed, path)
    written = encode(sealed.manifest)
    if raw != written:
        at = _first_difference(raw, written)
        raise ManifestInvalid(path, "is damaged, or was edited: not what rewarm wrote", offset=at)
    problem = _problem(sealed.manifest)
    if problem is not None:
        raise ManifestInvalid(path, problem)
    return sealed.manifest


def _decode(raw: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise ManifestInvalid(path, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestInvalid(path, f"is not JSON: {error}") from error


def _problem(manifest: Manifest) -> str | None:
    problem = check_model_name(manifest.model) or check_file_names(file.name for file in manifest.files)
    if problem is not None:
        return problem
    for file in manifest.files:
        if file.name == MANIFEST_NAME:
            return f"{file.name!r} names the manifest itself"
        chunks = -(-file.size // manifest.chunk_bytes)
        if len(file.chunks) != chunks * CHUNK_DIGEST_BYTES * 2:
            return f"{file.name!r} has {file.size} bytes and so {chunks} chunks, not as many digests as are there"
    if not manifest.weight_files:
        return "names no file with weights"
    return None


def _first_difference(a: bytes, b: bytes) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
