"""Weights on this machine's disk: checkpoints inspected, snapshots of them captured, kept and restored.

In: folders, files, addresses. Out: facts about a checkpoint (:func:`inspect` → :class:`Checkpoint`); snapshots in a
:class:`Store` that are whole or not there at all (:func:`capture_checkpoint`, :func:`fetch`); a :class:`Lease` on one,
and its bytes in memory with every digest compared (:func:`restore_weights`, :func:`map_weights`); or a typed error that
names file and offset. Also folders made from a GGUF file (:func:`prepare_gguf`, :func:`prepare_smollm2`).

This room works without gateway, Redis or engine, and on its own as a library. Importing it is cheap: torch,
transformers, HTTP and object-store clients are imported only inside what needs them, so an agent can size a model
without paying for them.
"""

from snapshots.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, inspect_adapter
from snapshots.bench import Bench, render
from snapshots.capture import CaptureOptions, capture_checkpoint, weights_digest
from snapshots.catalogue import Usage
from snapshots.checkpoint import INDEX_FILE, Checkpoint, WeightFile, inspect
from snapshots.choosing import Found, resolve
from snapshots.engine_cache import (
    EngineCacheRefused,
    has_engine_cache,
    pack_engine_cache,
    unpack_engine_cache,
)
from snapshots.entry import Entry, Reference
from snapshots.errors import (
    CheckpointError,
    DigestMismatch,
    DiskFull,
    FingerprintMismatch,
    ManifestInvalid,
    PrepareFailed,
    SnapshotError,
    SnapshotExists,
    SnapshotNotFound,
    SnapshotQuarantined,
    SourceRefused,
    StoreFull,
    WeightsCorrupt,
    WeightsMissing,
)
from snapshots.extras import ENGINE_CACHE_NAME, find_extras
from snapshots.fingerprint import checkpoint_fingerprint, checkpoint_source, compare, cpu_device, source_changes
from snapshots.folders import default_root, published
from snapshots.gguf import prepare_gguf, prepare_smollm2, smollm2_gguf
from snapshots.gguf_snapshot import GgufMode, capture_gguf
from snapshots.header import Header, Tensor, read_header
from snapshots.hub import HubCache, HubSettings, PullOptions, pull
from snapshots.layout import PART_BYTES, Part, TensorSpec, plan_parts
from snapshots.lease import Lease, take
from snapshots.linux import idle_io, last_io, set_io_class
from snapshots.manifest import (
    MANIFEST_NAME,
    Canary,
    File,
    FileKind,
    Fingerprint,
    Flavour,
    Manifest,
    Measured,
    Source,
)
from snapshots.names import check_model_name
from snapshots.partial import Partial
from snapshots.progress import OnProgress, Progress, ignore
from snapshots.publish import Step, is_complete
from snapshots.restore import (
    Destination,
    HostMemory,
    MappedWeights,
    ReadPath,
    Restored,
    RestoreOptions,
    TensorView,
    map_weights,
    read_extra,
    restore_weights,
    verify_snapshot,
)
from snapshots.shape import ModelShape, read_shape
from snapshots.shared_throttle import THROTTLE_ENV, LimitFile, SharedThrottle, throttle_from_env
from snapshots.sources import DownloadOptions, Fetched, FetchOptions, fetch, prefetch
from snapshots.staging import Staging
from snapshots.store import CANARY, DEFAULT_FLOOR_BYTES, Store
from snapshots.throttle import Throttle

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "CANARY",
    "DEFAULT_FLOOR_BYTES",
    "ENGINE_CACHE_NAME",
    "INDEX_FILE",
    "MANIFEST_NAME",
    "PART_BYTES",
    "THROTTLE_ENV",
    "Adapter",
    "Bench",
    "Canary",
    "CaptureOptions",
    "Checkpoint",
    "CheckpointError",
    "Destination",
    "DigestMismatch",
    "DiskFull",
    "DownloadOptions",
    "EngineCacheRefused",
    "Entry",
    "FetchOptions",
    "Fetched",
    "File",
    "FileKind",
    "Fingerprint",
    "FingerprintMismatch",
    "Flavour",
    "Found",
    "GgufMode",
    "Header",
    "HostMemory",
    "HubCache",
    "HubSettings",
    "Lease",
    "LimitFile",
    "Manifest",
    "ManifestInvalid",
    "MappedWeights",
    "Measured",
    "ModelShape",
    "OnProgress",
    "Part",
    "Partial",
    "PrepareFailed",
    "Progress",
    "PullOptions",
    "ReadPath",
    "Reference",
    "RestoreOptions",
    "Restored",
    "SharedThrottle",
    "SnapshotError",
    "SnapshotExists",
    "SnapshotNotFound",
    "SnapshotQuarantined",
    "Source",
    "SourceRefused",
    "Staging",
    "Step",
    "Store",
    "StoreFull",
    "Tensor",
    "TensorSpec",
    "TensorView",
    "Throttle",
    "Usage",
    "WeightFile",
    "WeightsCorrupt",
    "WeightsMissing",
    "capture_checkpoint",
    "capture_gguf",
    "check_model_name",
    "checkpoint_fingerprint",
    "checkpoint_source",
    "compare",
    "cpu_device",
    "default_root",
    "fetch",
    "find_extras",
    "has_engine_cache",
    "idle_io",
    "ignore",
    "inspect",
    "inspect_adapter",
    "is_complete",
    "last_io",
    "map_weights",
    "pack_engine_cache",
    "plan_parts",
    "prefetch",
    "prepare_gguf",
    "prepare_smollm2",
    "published",
    "pull",
    "read_extra",
    "read_header",
    "read_shape",
    "render",
    "resolve",
    "restore_weights",
    "set_io_class",
    "smollm2_gguf",
    "source_changes",
    "take",
    "throttle_from_env",
    "unpack_engine_cache",
    "verify_snapshot",
    "weights_digest",
]
