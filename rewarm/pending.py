"""How far a pod is that has not come yet, and how long its model will still take, from what earlier ones took. Pure.

Told by the leader, as nobody else is there to tell; the pod's worker goes on from there, so that what a client sees
does not fall when it takes over. Both read the same history: that of the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewarm.states import LOAD_PHASES, ReplicaState, Tier

_TIERS = (Tier.COLD, Tier.POOLED, Tier.REMOTE)
"""What a load in a new pod may start from, likeliest first."""

_LAST = 5  # durations looked at: enough to outvote one bad run, few enough to follow a change within three wakes
_FINEST_S = 1.0
_STEPS = 20  # of what a pod usually takes: each is a write to Redis that all gateways read
_MOST = 0.95  # of the phase, before the pod is there
_LATE_SHARE = 0.2  # of how late it is: nobody knows how much longer, but not nothing


@dataclass(frozen=True, slots=True)
class Usual:
    """Seconds: until the worker of a place speaks, and from there until its model is ready."""

    pod_s: float
    load_s: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said ``at_s`` after the pod was wanted: fractions of the phase and of all, seconds left of all."""

    at_s: float
    phase_fraction: float
    fraction: float
    eta_s: float


def typical_s(seconds: Sequence[float]) -> float | None:
    """The lower median of the last few; None where there are none.

    Of two the shorter one: a bad run is a long one. So one bad run among two or more never takes the result out of
    the range of the others.
    """
    last = sorted([one for one in seconds if math.isfinite(one) and one >= 0][-_LAST:])
    return last[(len(last) - 1) // 2] if last else None


def usual_of(history: Mapping[tuple[str, str, str], Sequence[float]], model: str) -> Usual | None:
    """From the history of a place by (model, tier, phase); None where no pod of it has come yet."""
    for tier in _TIERS:
        pod_s = typical_s(history.get((model, tier.value, ReplicaState.POD_PENDING.value), ()))
        if pod_s is not None:
            phases = [typical_s(history.get((model, tier.value, phase.value), ())) or 0.0 for phase in LOAD_PHASES]
            return Usual(pod_s, sum(phases))
    return None


def outlook(usual: Usual, waited_s: float) -> Outlook:
    """In steps: the same for a while, so that it need not be told again. Its fractions only grow with ``waited_s``."""
    step_s = max(_FINEST_S, usual.pod_s / _STEPS)
    at_s = max(0.0, waited_s) // step_s * step_s
    inside = min(_MOST, at_s / usual.pod_s) if usual.pod_s > 0 else _MOST
    left_s = usual.pod_s - at_s if at_s <= usual.pod_s else _LATE_SHARE * (at_s - usual.pod_s)
    whole_s = usual.pod_s + usual.load_s
    fraction = inside * usual.pod_s / whole_s if whole_s > 0 else 0.0
    return Outlook(at_s, round(inside, 4), round(fraction, 4), round(left_s + usual.load_s, 2))
