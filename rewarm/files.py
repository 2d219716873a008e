"""Files and batches as they cross Redis: OpenAI's objects, in our words and units.

Times called ``*_ms`` are milliseconds of Redis ``TIME``, sizes ``*_bytes``. See :mod:`rewarm.messages` for how messages
are written and versioned.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from rewarm.messages import Message


class StoredFile(Message, frozen=True, kw_only=True):
    id: str
    tenant: str
    filename: str
    purpose: Literal["batch", "batch_output"]
    bytes: int
    created_ms: int
    expires_ms: int


class BatchState(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"  # the input file was not accepted
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"  # the completion window passed before every line had ended
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


BATCH_ENDED: frozenset[BatchState] = frozenset(
    (BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)
)


class LineError(Message, frozen=True, kw_only=True):
    """What is wrong with a line of the input (1-based), or with the file as a whole (``line`` None)."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchSpec(Message, frozen=True, kw_only=True):
    """What was asked; never changes. The fields from ``priority`` on go into the job of every line."""

    id: str
    tenant: str
    endpoint: str  # the path that every line must name
    input_file: str
    completion_window: str  # as it was asked: "24h"
    created_ms: int
    expires_ms: int  # the end of the completion window
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    invalid_lines: Literal["refuse", "skip"] = "refuse"  # one bad line ends the batch, or only itself
    models: tuple[str, ...] | None = None  # what the key may use; None: everything
    priority: Literal["high", "normal", "low"] = "normal"
    band: int = 4
    weight: float = 1.0


class Batch(Message, frozen=True, kw_only=True):
    """One reading of a batch. ``line`` and ``offset`` are the cursor: so many lines, and bytes, of the input have their
    results in the output files already. Everything after it can be found out again."""

    spec: BatchSpec
    state: BatchState
    step: int  # numbers every change by the gateway that works on it
    times: dict[str, int] = msgspec.field(default_factory=dict)  # state → when it began, ms
    total: int = 0
    completed: int = 0  # ended well so far, lines beyond the cursor included
    failed: int = 0
    line: int = 0
    offset: int = 0
    written_completed: int = 0  # up to the cursor
    written_failed: int = 0
    expired: int = 0  # lines up to the cursor that the end of the window cut off
    input_tokens: int = 0  # up to the cursor
    output_tokens: int = 0
    errors: tuple[LineError, ...] = ()
    output_file: str | None = None  # None while nothing has been written to it
    error_file: str | None = None
