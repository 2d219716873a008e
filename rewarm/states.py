"""The names of a replica's states, a model's states and the reasons of a failed load. Nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ReplicaState(StrEnum):
    """A replica's life. ``worker/lifecycle.py`` holds the transitions that are allowed between them."""

    COLD = "cold"  # wanted, nothing runs yet
    POD_PENDING = "pod_pending"  # its worker is a pod that is not there yet: the leader reports for it
    FETCHING = "fetching"  # weights come from their source to this machine
    STARTING = "starting"  # the engine's process starts and imports (three quarters of a stock vLLM start)
    RESTORING = "restoring"  # weights are read into memory: the phase that counts bytes
    INITIALISING = "initialising"  # KV cache, scheduler, HTTP application
    WARMING = "warming"  # requests of the model's real shapes, as many at once as slots
    VERIFYING = "verifying"  # one real greedy answer is checked
    READY = "ready"
    ASLEEP = "asleep"  # process alive, weights released
    DRAINING = "draining"  # no new grants; what runs may finish
    STOPPED = "stopped"  # the process group is gone and its memory measured free
    FAILED = "failed"


LOAD_PHASES: tuple[ReplicaState, ...] = (
    ReplicaState.FETCHING,
    ReplicaState.STARTING,
    ReplicaState.RESTORING,
    ReplicaState.INITIALISING,
    ReplicaState.WARMING,
    ReplicaState.VERIFYING,
)
"""The phases of a load, in order. A replica may skip one, never return to an earlier one within an attempt."""

LOADING: frozenset[ReplicaState] = frozenset((ReplicaState.COLD, ReplicaState.POD_PENDING, *LOAD_PHASES))
NOT_BEGUN: frozenset[ReplicaState] = frozenset((ReplicaState.COLD, ReplicaState.POD_PENDING))
"""Wanted, and waiting for something."""
LIVE: frozenset[ReplicaState] = LOADING | {ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.DRAINING}
ENDED: frozenset[ReplicaState] = frozenset((ReplicaState.STOPPED, ReplicaState.FAILED))


class Tier(StrEnum):
    """Where a wake started from, cheapest first."""

    ASLEEP = "asleep"
    POOLED = "pooled"
    COLD = "cold"
    REMOTE = "remote"


class FailureReason(StrEnum):
    """Why a load (or a running engine) failed; decides whether a retry can help."""

    NEVER_FITS = "never_fits"  # needs more memory than the machine's whole budget
    NO_ROOM = "no_room"  # would fit, but others hold the memory now
    OUT_OF_MEMORY = "out_of_memory"  # the engine or the kernel said so, and not of what
    WEIGHTS_OUT_OF_MEMORY = "weights_out_of_memory"  # not even the weights found room
    CACHE_OUT_OF_MEMORY = "cache_out_of_memory"  # the weights did, the KV cache for its slots and context did not
    MEMORY_LIMIT = "memory_limit"  # it went beyond its own limit, and was ended for it
    WEIGHTS_MISSING = "weights_missing"
    SOURCE_REFUSED = "source_refused"  # the hub has no such model, or does not give it to us
    SOURCE_UNAVAILABLE = "source_unavailable"  # the hub cannot be reached
    DISK_FULL = "disk_full"  # no room for the download
    WEIGHTS_CORRUPT = "weights_corrupt"  # truncated, bad header, wrong shapes
    START_REFUSED = "start_refused"  # the engine rejects its arguments or the model
    ENGINE_EXITED = "engine_exited"
    DEVICE_LOST = "device_lost"  # its GPU no longer answers
    STALLED = "stalled"  # no progress for longer than the phase's budget
    VERIFICATION_FAILED = "verification_failed"
    AGENT_LOST = "agent_lost"  # the worker's agent died or lost its lease
    # Of a worker that is a pod, before it speaks for itself:
    PLACE_MISSING = "place_missing"  # the cluster has no such Service or Deployment
    QUOTA = "quota"  # the namespace may not have another pod
    UNSCHEDULABLE = "unschedulable"  # no node takes it
    IMAGE_PULL = "image_pull"
    CRASH_LOOP = "crash_loop"  # its container ends again and again


MEANINGS: Mapping[FailureReason, str] = {
    FailureReason.NEVER_FITS: "It needs more memory than a whole device may give; the message says how much. Lower "
    "`slots`, `context_length` or the precision (`dtype`, a quantised checkpoint), spread it over `gpus`, or raise the "
    "worker's budget.",
    FailureReason.NO_ROOM: "It would fit, but others hold the memory; the message says who. It is tried again.",
    FailureReason.OUT_OF_MEMORY: "The engine or the kernel ran out of memory while it started or answered. Lower "
    "`slots`, or raise `memory` or `reserve`.",
    FailureReason.WEIGHTS_OUT_OF_MEMORY: "Not even the weights found room. Take a smaller `dtype` or a quantised "
    "checkpoint, or give it more `memory` or another `device`.",
    FailureReason.CACHE_OUT_OF_MEMORY: "The weights fit, the KV cache for `slots` × `context_length` did not. Lower "
    "either, or raise `memory`.",
    FailureReason.MEMORY_LIMIT: "It took more than its own `memory_limit` and was ended before it could take that of "
    "others. Raise the limit, or lower `slots` or `context_length`.",
    FailureReason.WEIGHTS_MISSING: "Files of its `source` are not there.",
    FailureReason.SOURCE_REFUSED: "The hub has no such model or revision, or it is gated: accept its terms and give "
    "the worker a token (`HF_TOKEN`).",
    FailureReason.SOURCE_UNAVAILABLE: "The weights are not in the hub's cache, and the hub cannot be reached. The "
    "download goes on where it was; `rewarm pull` fetches ahead.",
    FailureReason.DISK_FULL: "No room for the download on the disk of the hub's cache; the message says how much.",
    FailureReason.WEIGHTS_CORRUPT: "Files of its `source` are truncated, damaged, or of another model.",
    FailureReason.START_REFUSED: "The engine rejects its arguments or the model, or cannot be run at all.",
    FailureReason.ENGINE_EXITED: "The engine ended by itself; its log says why.",
    FailureReason.DEVICE_LOST: "A GPU that it is on no longer answers. The worker's other devices go on; `nvidia-smi` "
    "and the kernel's log say more.",
    FailureReason.STALLED: "No progress for longer than the phase may take, or no answer within `answer_stall`.",
    FailureReason.VERIFICATION_FAILED: "It loaded, and its first answer was none or a wrong one.",
    FailureReason.AGENT_LOST: "The worker's agent died, or had an error of its own.",
    FailureReason.PLACE_MISSING: "The cluster has no such Service or Deployment: apply the manifests.",
    FailureReason.QUOTA: "The namespace's quota allows no other pod.",
    FailureReason.UNSCHEDULABLE: "No node takes the pod: none has what it asks for.",
    FailureReason.IMAGE_PULL: "The pod's image cannot be pulled.",
    FailureReason.CRASH_LOOP: "The pod's container ends again and again; its log says why.",
}
"""What a failed load means to the operator, and what to do: for ``docs/errors.md``."""

PERMANENT: frozenset[FailureReason] = frozenset(
    (
        FailureReason.NEVER_FITS,
        FailureReason.WEIGHTS_MISSING,
        FailureReason.SOURCE_REFUSED,
        FailureReason.DISK_FULL,
        FailureReason.WEIGHTS_CORRUPT,
        FailureReason.START_REFUSED,
        FailureReason.PLACE_MISSING,
        FailureReason.QUOTA,
        FailureReason.UNSCHEDULABLE,
        FailureReason.IMAGE_PULL,
        FailureReason.CRASH_LOOP,
    )
)
"""Reasons that a second attempt on the same machine, or at the same place of a cluster, cannot change."""


class ModelState(StrEnum):
    """What ``/v1/models`` shows: the best that any replica of the model is."""

    COLD = "cold"
    LOADING = "loading"
    READY = "ready"
    ASLEEP = "asleep"  # one request away: nothing of it is ready, but a replica sleeps
    DRAINING = "draining"
    FAILED = "failed"
