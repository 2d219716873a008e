"""Every error a user of rewarm can meet, with its stable code: one module an area, and all of them from this door.

The code appears in the HTTP body (``error.code``), in the log and in ``docs/errors.md``; it never changes once
released. This package imports nothing of ours, so that every room can raise from it.

An error is raised as a subclass of :class:`RewarmError`. ``status`` is the HTTP status before the first byte, ``type``
the OpenAI error type, ``should_retry`` becomes ``x-should-retry`` where a retry cannot help. ``retry_after_s`` is the
``Retry-After`` header: at most 8, as some clients sleep whatever is asked; of a spent limit the truth, up to 60.
"""

from __future__ import annotations

from typing import TypeGuard

from rewarm.errors import gates, jobs, operators, requests, serving, stored, upstreams
from rewarm.errors.base import RewarmError
from rewarm.errors.gates import GateBusy, GateUnauthorized
from rewarm.errors.jobs import (
    EngineError,
    ForeignEventId,
    IdempotencyConflict,
    JobAttemptsExhausted,
    JobBodyTooLarge,
    JobCancelled,
    JobExpired,
    JobNotFinished,
    JobNotFound,
    JobQuotaExceeded,
    JobResultTooLarge,
    JobsFull,
    JobTimeout,
    UnknownEndpoint,
    WebhookRefused,
)
from rewarm.errors.operators import (
    BudgetExceeded,
    CannotRender,
    ChildFailed,
    ClusterUnavailable,
    CommandRefused,
    ConfigInvalid,
    ConfigNotFound,
    DeviceTwice,
    DeviceUnknown,
    ImportPartial,
    InputInvalid,
    JobNotCompleted,
    KnativeCheckUnavailable,
    LineRefused,
    ManifestInvalid,
    NothingRunning,
    OperatorError,
    OutputExists,
    PortInUse,
    RedisBinaryMissing,
    RedisUnreachable,
    RedisUnsuitable,
    SecretMissing,
    StateInUse,
    StateUnusable,
    TracingUnavailable,
    UnsafeListen,
    WakeFailed,
    WorkerRunning,
)
from rewarm.errors.requests import (
    BadRequest,
    BodyTooLarge,
    ContextLengthExceeded,
    HeadersTooLarge,
    InvalidApiKey,
    InvalidHeader,
    InvalidJson,
    InvalidRequest,
    KeyLimitExceeded,
    MethodNotAllowed,
    ModelNotAllowed,
    ModelNotFound,
    ModelRemoved,
    NotFound,
    NotSupported,
    OriginRefused,
    RateLimitExceeded,
    RequestNotFound,
)
from rewarm.errors.serving import (
    BreakerOpen,
    DrainDeadline,
    EngineBadResponse,
    EngineFailed,
    EngineStalled,
    EngineUnreachable,
    LoadTimeout,
    ModelLoadFailed,
    ModelLoading,
    QueueFull,
    QueueUnavailable,
    ShuttingDown,
    StreamTruncated,
    WorkerDied,
)
from rewarm.errors.stored import (
    BatchEnded,
    BatchesFull,
    BatchNotFound,
    FileInUse,
    FilesFull,
    FileTooLarge,
    ResponseActive,
    ResponseNotFound,
    StoredFileNotFound,
)
from rewarm.errors.upstreams import (
    RemoteBadAnswer,
    RemoteFailed,
    RemoteRateLimited,
    RemoteRedirected,
    RemoteRefusedKey,
    RemoteUnreachable,
    RemoteUntrusted,
)

_AREAS = (requests, jobs, stored, serving, upstreams, gates, operators)

__all__ = [
    "BadRequest",
    "BatchEnded",
    "BatchNotFound",
    "BatchesFull",
    "BodyTooLarge",
    "BreakerOpen",
    "BudgetExceeded",
    "CannotRender",
    "ChildFailed",
    "ClusterUnavailable",
    "CommandRefused",
    "ConfigInvalid",
    "ConfigNotFound",
    "ContextLengthExceeded",
    "DeviceTwice",
    "DeviceUnknown",
    "DrainDeadline",
    "EngineBadResponse",
    "EngineError",
    "EngineFailed",
    "EngineStalled",
    "EngineUnreachable",
    "FileInUse",
    "FileTooLarge",
    "FilesFull",
    "ForeignEventId",
    "GateBusy",
    "GateUnauthorized",
    "HeadersTooLarge",
    "IdempotencyConflict",
    "ImportPartial",
    "InputInvalid",
    "InvalidApiKey",
    "InvalidHeader",
    "InvalidJson",
    "InvalidRequest",
    "JobAttemptsExhausted",
    "JobBodyTooLarge",
    "JobCancelled",
    "JobExpired",
    "JobNotCompleted",
    "JobNotFinished",
    "JobNotFound",
    "JobQuotaExceeded",
    "JobResultTooLarge",
    "JobTimeout",
    "JobsFull",
    "KeyLimitExceeded",
    "KnativeCheckUnavailable",
    "LineRefused",
    "LoadTimeout",
    "ManifestInvalid",
    "MethodNotAllowed",
    "ModelLoadFailed",
    "ModelLoading",
    "ModelNotAllowed",
    "ModelNotFound",
    "ModelRemoved",
    "NotFound",
    "NotSupported",
    "NothingRunning",
    "OperatorError",
    "OriginRefused",
    "OutputExists",
    "PortInUse",
    "QueueFull",
    "QueueUnavailable",
    "RateLimitExceeded",
    "RedisBinaryMissing",
    "RedisUnreachable",
    "RedisUnsuitable",
    "RemoteBadAnswer",
    "RemoteFailed",
    "RemoteRateLimited",
    "RemoteRedirected",
    "RemoteRefusedKey",
    "RemoteUnreachable",
    "RemoteUntrusted",
    "RequestNotFound",
    "ResponseActive",
    "ResponseNotFound",
    "RewarmError",
    "SecretMissing",
    "ShuttingDown",
    "StateInUse",
    "StateUnusable",
    "StoredFileNotFound",
    "StreamTruncated",
    "TracingUnavailable",
    "UnknownEndpoint",
    "UnsafeListen",
    "WakeFailed",
    "WebhookRefused",
    "WorkerDied",
    "WorkerRunning",
    "catalogue",
]


def catalogue() -> list[type[RewarmError]]:
    """All classes that have a code of their own, area by area in the order of their files, as ``docs/errors.md`` lists
    them. :class:`RewarmError` itself, whose code means a bug of ours, is not among them."""
    return [
        cls for area in _AREAS for cls in vars(area).values() if _has_own_code(cls) and cls.__module__ == area.__name__
    ]


def _has_own_code(what: object) -> TypeGuard[type[RewarmError]]:
    return isinstance(what, type) and issubclass(what, RewarmError) and "code" in vars(what)
