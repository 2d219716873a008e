"""Why a start failed. The cause is known in the engine core, the verdict is given by the host: a small file carries it.

vLLM's API process only learns "Engine core initialization failed. See root cause above". The worker class of ours
writes the exception into the start's temporary folder, first one wins; the host reads and classifies it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from rewarm.states import FailureReason
from snapshots import CheckpointError
from worker.oom import says_out_of_memory

FAILURE_ENV = "REWARM_FAILURE_FILE"

_NO_ROOM = (
    "less than desired GPU memory utilization",
    "less than desired CPU memory utilization",
    "less than requested memory for kv",
)
_NEVER_FITS = ("larger than the available KV cache memory", "No available memory for the cache blocks")
_NO_LORA = "does not support LoRA"  # of a model's architecture, or of its kernels
_CORRUPT = ("SafetensorError", "not initialized from checkpoint", "MetadataIncompleteBuffer", "InvalidHeader")


@contextlib.contextmanager
def recorded(stage: str) -> Iterator[None]:
    """In the engine core: note an exception of ``stage`` for the host, and let it go on."""
    try:
        yield
    except Exception as error:
        _record(stage, error)
        raise


class FailureRecorder(logging.Handler):
    """Hears the exceptions that the engine core logs before it ends, outside the worker's own methods."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            _record("engine", error)


def _record(stage: str, error: BaseException) -> None:
    path = os.environ.get(FAILURE_ENV)
    if not path:
        return
    entry = {"reason": classify(error, loading=stage == "load").value, "message": describe(error)}
    with contextlib.suppress(OSError):  # it exists: an earlier cause is the better one
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(entry, file)


def read_recorded(path: Path) -> tuple[FailureReason, str] | None:
    try:
        entry = json.loads(path.read_bytes())
        return FailureReason(entry["reason"]), str(entry["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(error: BaseException) -> str:
    """One line for a person: pydantic's are long, and only their first lines say something."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:1500]}" if text else type(error).__name__


def classify(error: BaseException, *, loading: bool = False) -> FailureReason:
    """By type where it tells, else by the words of vLLM and torch. ``loading``: while weights went into the model."""
    if isinstance(error, CheckpointError):
        return error.reason
    text = f"{type(error).__name__}: {error}"
    if any(words in text for words in _NEVER_FITS):
        return FailureReason.NEVER_FITS
    if any(words in text for words in _NO_ROOM):
        return FailureReason.NO_ROOM
    if isinstance(error, MemoryError) or says_out_of_memory(text):
        return FailureReason.OUT_OF_MEMORY
    if _NO_LORA in text:  # said while the weights went in, and nothing of theirs
        return FailureReason.START_REFUSED
    if isinstance(error, FileNotFoundError) and loading:
        return FailureReason.WEIGHTS_MISSING
    if any(words in text for words in _CORRUPT):
        return FailureReason.WEIGHTS_CORRUPT
    if loading and isinstance(error, KeyError | ValueError | AssertionError | AttributeError):
        return FailureReason.WEIGHTS_CORRUPT  # wrong names or shapes: the file is whole, and not this model's
    if isinstance(error, ImportError | KeyError | ValueError | NotImplementedError | TypeError | AttributeError):
        return FailureReason.START_REFUSED
    return FailureReason.ENGINE_EXITED
