"""What a capture is asked for. Imports no vLLM: whoever starts captures need not either."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapshots import Canary, Flavour, Measured, SnapshotError, Store


class CaptureRefused(SnapshotError):
    """This model, or this engine, cannot be captured from. The message says why."""

    code = "capture_refused"
    advice = "Use a portable snapshot: `rewarm snapshot create`."


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """``canary``: an answer of an engine that loaded in vLLM's own way; None lets the capture ask one itself first,
    which takes the memory of such a load. ``context``: tokens that the capture's own engine has room for."""

    store: Store
    name: str
    flavours: frozenset[Flavour] = frozenset((Flavour.PACKED, Flavour.SHARDED))
    canary: Canary | None = None
    measured: Measured = field(default_factory=Measured)
    context: int = 256
