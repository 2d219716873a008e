"""How long a phase usually takes, how long a load will still take, and how far such a guess was off. Pure.

What the guesses have to live with: one run in twenty takes several times as long as the others (a cold page cache, a
capture on the side, a neighbour on the machine); when a machine is slow, all phases of that run are; and engines report
how far they are by steps that are not equally long, but come in the same places each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rewarm.pending import typical_s
from rewarm.states import LOAD_PHASES, ReplicaState, Tier

S = ReplicaState

DEFAULT_BANDWIDTH = 500e6
"""Bytes a second, until a load on this machine has been measured: a modest SSD, or a page cache and two slow cores."""

_DEFAULT_S: Mapping[tuple[str, Tier], Mapping[ReplicaState, float]] = {
    # A stock vLLM on two CPU cores, 19 s in all, of which three quarters are imports.
    ("vllm", Tier.COLD): {S.STARTING: 14.0, S.RESTORING: 0.5, S.INITIALISING: 2.5, S.WARMING: 2.0, S.VERIFYING: 0.5},
    ("vllm", Tier.POOLED): {S.STARTING: 0.3, S.RESTORING: 0.1, S.INITIALISING: 0.1, S.WARMING: 0.2, S.VERIFYING: 0.1},
    ("command", Tier.COLD): {S.STARTING: 2.0, S.RESTORING: 0.5, S.INITIALISING: 1.0, S.WARMING: 1.0, S.VERIFYING: 0.3},
    ("vllm", Tier.ASLEEP): {S.RESTORING: 0.1},
}
_SHORTEST_S = 0.001
_LATE_SHARE = 0.2  # of the time it has taken, once a phase takes longer than usual: nobody knows, but not nothing
_PACE_LIMITS = (0.4, 3.0)
_BELIEF = 0.2  # the share of the whole load that a run must have behind it for its own pace to count half
BYTES = 4.0
STEPS = 0.5
"""Trust in an engine's fraction: half-way, counted bytes have 94 % of the say, a host's named steps 29 %."""

_STEP = 5  # percent: finer ones are one step
_READ_BELIEF = 0.1  # of the usual time of reading: seen for so long, the bytes' own pace counts half
_TOLD = 256  # guesses kept of one load


def expected_s(
    engine: str,
    read_bytes: int,
    bandwidth: float,
    history: Mapping[ReplicaState, Sequence[float]],
    tier: Tier = Tier.COLD,
) -> dict[ReplicaState, float]:
    """Seconds per phase of the load, in order; only phases that this engine has in this tier, or that history knows.

    Once history knows any, it is all there is: a phase that has never been seen, or that mostly is left out, does not
    come.
    """
    seen = {phase: usual for phase in LOAD_PHASES if (usual := typical_s(history.get(phase, ()))) is not None}
    if seen:
        return {phase: s for phase, s in seen.items() if s > 0} or dict.fromkeys(seen, _SHORTEST_S)
    defaults = _DEFAULT_S.get((engine, tier)) or _DEFAULT_S.get((engine, Tier.COLD)) or _DEFAULT_S["command", Tier.COLD]
    out = dict(defaults)
    if S.RESTORING in out and tier in (Tier.COLD, Tier.REMOTE):
        out[S.RESTORING] = max(out[S.RESTORING], read_bytes / max(1.0, bandwidth))
    return out


def left_out(took: Collection[str], known: Collection[str]) -> dict[str, float]:
    """No seconds for each load phase that history knows, by name, and that this load did without.

    A download or a first check of an answer comes once and may be longer than all else together: loads after it would
    be told to take as long for ever.
    """
    return {phase.value: 0.0 for phase in LOAD_PHASES if phase.value in known and phase.value not in took}


_PHASES = {phase.value: phase for phase in LOAD_PHASES}

Step = tuple[ReplicaState, int]
"""A phase and the percent of it that an engine has reported, see :func:`step_of`."""


def step_of(phase: ReplicaState, fraction: float) -> Step | None:
    """None at a phase's begin, which is no step."""
    percent = int(fraction * 100 + 0.5) // _STEP * _STEP
    return (phase, percent) if percent > 0 else None


def step_name(step: Step) -> str:
    """Its name in the history, where phases have theirs."""
    return f"{step[0].value}@{step[1]}"


def usual_steps(history: Mapping[str, Sequence[float]]) -> dict[Step, float]:
    """How long after the begin of its phase each step usually comes, from the history of one model and tier by name."""
    out: dict[Step, float] = {}
    for name, seconds in history.items():
        phase, _, percent = name.partition("@")
        usual = typical_s(seconds)
        if usual is not None and percent.isdigit() and phase in _PHASES:
            out[_PHASES[phase], int(percent)] = usual
    return out


def pace(done: Sequence[tuple[float, float]], usual_in_all_s: float) -> float:
    """How much slower (above 1) or faster this run is than usual, from what is behind it as (usual, took) seconds.

    Shrunk towards 1 while little of the load is behind it, and within limits: one phase that hung says little about the
    next.
    """
    usual = sum(one for one, _ in done)
    took = sum(one for _, one in done)
    prior = _BELIEF * usual_in_all_s
    if usual + prior <= 0:
        return 1.0
    low, high = _PACE_LIMITS
    return min(high, max(low, (took + prior) / (usual + prior)))


def reading_pace(
    usual_pace: float, first: tuple[float, float], last: tuple[float, float], usual_reading_s: float
) -> float:
    """How much slower than usual the rest of the bytes will come, from the first and the last step seen of them, each
    as (usually so far into the phase, now so far in). The run's own pace counts until they have moved for a while.

    Not limited as :func:`pace` is: a cold page cache is fifty times slower than a warm one, and stays so.
    """
    usual, took = max(0.0, last[0] - first[0]), max(0.0, last[1] - first[1])
    prior = _READ_BELIEF * usual_reading_s
    return (took + prior * usual_pace) / (usual + prior) if usual + prior > 0 else usual_pace


def left_in_phase_s(usual_s: float, elapsed_s: float, reported: float, reported_at_s: float, trust: float) -> float:
    """Seconds left of a phase, at least 0.

    ``reported`` is the engine's own fraction (0..1), last told ``reported_at_s`` after the phase's begin. It counts the
    more the further the phase is, and the more even its steps are: ``trust`` is BYTES or STEPS.
    """
    whole = usual_s
    if 0.0 < reported <= 1.0 and reported_at_s > 0.0:
        weight = 1 - (1 - reported) ** trust
        whole = (1 - weight) * usual_s + weight * reported_at_s / reported
    return max(0.0, whole - elapsed_s, 0.0 if reported >= 1.0 else _LATE_SHARE * (elapsed_s - whole))


@dataclass(slots=True)
class Told:
    """The guesses made during one load, thinned out as they grow many: what the error is computed from."""

    at_s: list[float] = field(default_factory=list)  # since the first phase began
    left_s: list[float] = field(default_factory=list)

    def add(self, at_s: float, left_s: float) -> None:
        if self.at_s and at_s <= self.at_s[-1]:
            return
        self.at_s.append(at_s)
        self.left_s.append(left_s)
        if len(self.at_s) > _TOLD:
            del self.at_s[1::2], self.left_s[1::2]

    def error_at_half(self, took_s: float) -> float | None:
        """(told - true) / true at the middle of a load of ``took_s``, by the last guess until then, counted down since
        as whoever was told it would. None where nothing had been told by then."""
        half = took_s / 2
        if half <= 0:
            return None
        before = [index for index, at in enumerate(self.at_s) if at <= half]
        if not before:
            return None
        index = before[-1]
        left = max(0.0, self.left_s[index] - (half - self.at_s[index]))
        return (left - half) / half
