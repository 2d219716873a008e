"""What the store shows of a snapshot, and how people name one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snapshots.errors import CheckpointError
from snapshots.evict import Candidate
from snapshots.manifest import Flavour, Manifest
from snapshots.state import State


@dataclass(frozen=True, slots=True)
class Entry:
    """``manifest`` is None where it cannot be taken; ``problem`` then says why."""

    model: str
    version: str
    folder: Path
    size_bytes: int  # on the disk
    state: State
    last_used: float  # seconds since the epoch; when it was made, if it never was
    quarantined: bool
    manifest: Manifest | None
    problem: CheckpointError | None = None
    leased: bool = False

    @property
    def snapshot_id(self) -> str:
        return f"{self.model}@{self.version}"

    @property
    def created(self) -> float:
        return self.manifest.created if self.manifest is not None else 0.0

    def with_lease(self, leased: bool) -> Entry:
        return replace(self, leased=leased)

    def candidate(self) -> Candidate:
        return Candidate(
            self.snapshot_id,
            self.folder,
            self.size_bytes,
            self.state.priority,
            self.last_used,
            self.state.pinned,
            self.leased,
            self.quarantined,
        )

    def summary(self) -> dict[str, Any]:
        """For JSON: durations in seconds, sizes in bytes, times in seconds since the epoch."""
        out: dict[str, Any] = {
            "id": self.snapshot_id,
            "model": self.model,
            "version": self.version,
            "folder": str(self.folder),
            "size_bytes": self.size_bytes,
            "priority": self.state.priority,
            "pinned": self.state.pinned,
            "leased": self.leased,
            "last_used": self.last_used,
            "created": self.created,
            "quarantine": None,
            "problem": None if self.problem is None else str(self.problem),
        }
        if self.quarantined:
            found = self.state.quarantine
            out["quarantine"] = {"kind": found.kind, "reason": found.reason} if found else {"kind": "", "reason": ""}
        return out


@dataclass(frozen=True, slots=True)
class Reference:
    """``model``, ``model@version`` or ``model@`` and the first digits of the version's digest."""

    model: str
    version: str = ""
    flavour: Flavour | None = None

    @classmethod
    def parse(cls, text: str, flavour: Flavour | None = None) -> Reference:
        model, _, version = text.partition("@")
        return cls(model, version, flavour)

    def matches(self, model: str, version: str) -> bool:
        flavour, _, digest = version.partition("-")
        if model != self.model or (self.flavour is not None and flavour != self.flavour):
            return False
        return version.startswith(self.version) or digest.startswith(self.version)

    def __str__(self) -> str:
        text = f"{self.model}@{self.version}" if self.version else self.model
        return f"{text} ({self.flavour})" if self.flavour is not None else text
