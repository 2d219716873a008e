"""What a model that computes from mapped memory keeps for as long as it lives: the map, and the lease on its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from rewarm_vllm.verification import Verification
from snapshots import Lease, MappedWeights

_ATTRIBUTE = "_rewarm_kept"


@dataclass(slots=True)
class Kept:
    lease: Lease
    mapped: MappedWeights
    verification: Verification | None = None


def keep(model: nn.Module, kept: Kept) -> None:
    model.__dict__[_ATTRIBUTE] = kept  # past nn.Module's own bookkeeping: it is neither a module nor a parameter


def kept_by(model: Any) -> Kept | None:
    found: Kept | None = getattr(model, "__dict__", {}).get(_ATTRIBUTE)
    return found


def hand_over(donor: nn.Module, model: nn.Module) -> None:
    """After a transplant: the model lives from what its donor was over, and from nothing else."""
    kept = kept_by(donor)
    old = model.__dict__.pop(_ATTRIBUTE, None)
    if old is not None:
        old.lease.close()
    if kept is not None:
        keep(model, kept)


def settle(model: Any) -> None:
    """Wait until every digest of what ``model`` computes from has been compared, and what was wrong replaced."""
    kept = kept_by(model)
    if kept is not None and kept.verification is not None:
        kept.verification.settle()
