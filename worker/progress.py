"""How far a load is. Pure; ``now`` is CLOCK_MONOTONIC in seconds. How long it will still take is :mod:`worker.eta`'s.

A phase weighs as much of the whole as it is expected to last. Within a phase, what the engine reports (bytes, steps) is
used as it is; where it reports little, the clock moves the fraction towards, and never to, the end. Neither fraction
goes back within an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rewarm.messages import PhaseTiming, Progress
from rewarm.pending import Usual, outlook
from rewarm.states import LOAD_PHASES, ReplicaState
from worker import eta

S = ReplicaState

_CREEP_LIMIT = 0.95  # of a phase without report: the end is the engine's to say
_PUBLISH_EVERY_S = 0.25
_FRACTION_STEP = 0.001


@dataclass(slots=True)
class LoadProgress:
    """One attempt of one load. Feed it what the host reports; :meth:`due` says when there is something to publish."""

    model: str
    replica: str
    attempt: int
    expected: Mapping[ReplicaState, float]
    started_at: float
    phase: ReplicaState = S.COLD
    phase_at: float = 0.0
    message: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    timings: list[PhaseTiming] = field(default_factory=list)
    usual_steps: Mapping[eta.Step, float] = field(default_factory=dict)
    steps: dict[eta.Step, float] = field(default_factory=dict)  # seconds into their phases, of this load
    eta_error: float | None = None  # set at the end, see rewarm.messages.Wake
    ended_at: float | None = None
    told: bool = False  # its receipt has been written; kept here for whoever writes it
    traced: bool = False  # its spans have been made
    pod_s: float = 0.0  # before there was anybody here to report
    _began_at: float | None = None  # the first phase: before it, there was only waiting for room
    _guesses: eta.Told = field(default_factory=eta.Told)
    _reported: float = 0.0
    _reported_at: float = 0.0  # since the phase's begin
    _step: tuple[float, float] | None = None  # the last known one of this phase: usually so far in, now so far
    _first_step: tuple[float, float] | None = None
    _phase_fraction: float = 0.0
    _fraction: float = 0.0
    _seq: int = 0
    _published_at: float = -math.inf
    _published: tuple[ReplicaState, float, str, int] | None = None

    def again(self, now: float) -> LoadProgress:
        """For the next wake of the same replica; ``seq`` goes on."""
        return LoadProgress(self.model, self.replica, self.attempt, {}, started_at=now, _seq=self._seq)

    def pod_came(self, after_s: float, usual: Usual | None) -> None:
        """The load begins in a pod that was wanted ``after_s`` ago. ``usual``: by which the leader told how far it was
        until now; it goes on from there."""
        self.pod_s = round(after_s, 4)
        self.started_at -= self.pod_s
        self.timings.append(PhaseTiming(phase=S.POD_PENDING, started_s=0.0, duration_s=self.pod_s))
        if usual is not None:
            self._fraction = outlook(usual, after_s).fraction

    def enter(self, phase: ReplicaState, now: float, message: str = "") -> None:
        if phase is self.phase:
            self.message = message or self.message
            return
        self._close(now)
        if self.phase is S.FETCHING:
            self.bytes_done = self.bytes_total = 0
        self.phase, self.phase_at, self.message = phase, now, message
        self._reported = self._phase_fraction = self._reported_at = 0.0
        self._step = self._first_step = None
        if self._began_at is None:
            self._began_at = now
        self.look(now)

    def report(self, fraction: float, now: float, message: str = "") -> None:
        """What the engine itself says about the current phase, 0..1."""
        if math.isfinite(fraction):
            self._hear(min(1.0, max(0.0, fraction)), now)
        self.message = message or self.message

    def read(self, done: int, total: int, now: float) -> bool:
        """Bytes of weights; True when it is more than before."""
        total = max(0, total)
        done = max(0, min(done, total))
        grew = done > self.bytes_done
        self.bytes_total = max(self.bytes_total, total)
        self.bytes_done = max(self.bytes_done, done)
        if self.phase is S.RESTORING and self.bytes_total:
            self._hear(self.bytes_done / self.bytes_total, now)
        return grew

    def fetch(self, done: int, total: int, now: float) -> None:
        """Bytes of a download: shown while it is the phase, and begun anew when weights are read."""
        if self.phase is S.FETCHING and total:
            self.bytes_done, self.bytes_total = done, total
            self._hear(done / total, now)

    def look(self, now: float) -> None:
        """Remember what is guessed now, for the error of it at the end."""
        left = self.eta_s(now)
        if left is not None and self._began_at is not None and self.ended_at is None:
            self._guesses.add(now - self._began_at, left)

    def end(self, now: float) -> None:
        """Ready: the last phase is over."""
        self._close(now)
        self.phase, self.phase_at, self.ended_at = S.READY, now, now
        self._phase_fraction = self._fraction = 1.0
        if self._began_at is not None:
            self.eta_error = self._guesses.error_at_half(now - self._began_at)

    def snapshot(self, now: float, at_ms: int = 0) -> Progress:
        """The event to publish, with the next ``seq``; ``at_ms`` is now in Redis time."""
        self._advance(now)
        self._seq += 1
        return Progress(
            model=self.model,
            replica=self.replica,
            phase=self.phase,
            phase_fraction=round(self._phase_fraction, 4),
            fraction=round(self._fraction, 4),
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            eta_s=None if (eta := self.eta_s(now)) is None else round(eta, 2),
            attempt=self.attempt,
            message=self.message,
            seq=self._seq,
            at_ms=at_ms,
        )

    def due(self, now: float) -> bool:
        """At once on a change of phase, else at most 4 times a second and only when something moved."""
        if self._published is not None and self._published[0] is not self.phase:
            return True
        if self._published is None:
            return True
        if now - self._published_at < _PUBLISH_EVERY_S:
            return False
        self._advance(now)
        _, fraction, message, done = self._published
        return self._fraction - fraction >= _FRACTION_STEP or message != self.message or done != self.bytes_done

    def published(self, now: float) -> None:
        self._published_at = now
        self._published = (self.phase, self._fraction, self.message, self.bytes_done)

    def eta_s(self, now: float) -> float | None:
        """Seconds to ready, never negative; None before anybody has looked at what is to be loaded."""
        if self.phase is S.READY:
            return 0.0
        if not self.expected:
            return None
        whole = sum(self.expected.values())
        if self.phase is S.COLD:
            return whole
        behind = [(self.expected.get(t.phase, 0.0), t.duration_s) for t in self.timings if t.phase is not S.POD_PENDING]
        pace = eta.pace(behind if self._step is None else [*behind, self._step], whole)
        left = self._left_here_s(pace, max(0.0, now - self.phase_at))
        return left + pace * sum(seconds for phase, seconds in self.expected.items() if _later(phase, self.phase))

    def _left_here_s(self, pace: float, elapsed_s: float) -> float:
        usual = self.expected.get(self.phase, 0.0)
        if self._counted:
            return self._left_of_reading_s(pace, usual, elapsed_s)
        if self._step is not None:
            usually_at, at = self._step
            return eta.left_in_phase_s(pace * max(0.0, usual - usually_at), elapsed_s - at, 0.0, 0.0, eta.STEPS)
        return eta.left_in_phase_s(pace * usual, elapsed_s, self._reported, self._reported_at, eta.STEPS)

    def _left_of_reading_s(self, pace: float, usual: float, elapsed_s: float) -> float:
        """By how fast the bytes come compared with other times, or by that alone where there were none. What engines do
        with the last one read (repacking, and all that a command does until its port opens) takes what it usually
        takes."""
        reading = min(usual, self.usual_steps.get((self.phase, 100), usual))
        after = pace * (usual - reading)
        if self._reported >= 1.0:
            return eta.left_in_phase_s(after, elapsed_s - self._reported_at, 0.0, 0.0, eta.STEPS)
        if self._step is None or self._first_step is None:
            return after + eta.left_in_phase_s(pace * reading, elapsed_s, self._reported, self._reported_at, eta.BYTES)
        usually_at, at = self._step
        factor = eta.reading_pace(pace, self._first_step, self._step, reading)
        return after + eta.left_in_phase_s(factor * max(0.0, reading - usually_at), elapsed_s - at, 0.0, 0.0, eta.STEPS)

    @property
    def duration_s(self) -> float:
        """Of the load, once it has ended."""
        if self.ended_at is None or self._began_at is None:
            return 0.0
        return self.ended_at - self._began_at

    @property
    def _counted(self) -> bool:
        """The bytes are the truth, and all of it."""
        return self.phase is S.RESTORING and self.bytes_total > 0

    def _hear(self, fraction: float, now: float) -> None:
        if fraction > self._reported:
            self._reported, self._reported_at = fraction, max(0.0, now - self.phase_at)
            step = eta.step_of(self.phase, fraction)
            if step is not None and step not in self.steps:
                self.steps[step] = self._reported_at
                if step in self.usual_steps:
                    self._step = (self.usual_steps[step], self._reported_at)
                    self._first_step = self._first_step or self._step

    def _advance(self, now: float) -> None:
        if self.phase is S.READY:
            return
        usual = self.expected.get(self.phase, 0.0)
        elapsed = max(0.0, now - self.phase_at)
        inside = self._reported
        if usual > 0 and not self._counted:
            # Three quarters at the usual time, slower after it, instead of standing at 100 %.
            inside = max(inside, _CREEP_LIMIT * (1 - math.exp(-1.5 * elapsed / usual)))
        self._phase_fraction = max(self._phase_fraction, inside)
        pod_s = self.pod_s if self.expected else 0.0  # beside a load of which nothing is known it would be all
        total = pod_s + (sum(self.expected.values()) or 1.0)
        before = pod_s + sum(seconds for phase, seconds in self.expected.items() if _later(self.phase, phase))
        whole = (before + usual * self._phase_fraction) / total
        self._fraction = max(self._fraction, min(0.999, whole))

    def _close(self, now: float) -> None:
        if self.phase is S.COLD:
            return
        self._phase_fraction = 1.0
        self._reported = 1.0
        self._advance(now)
        self.timings.append(
            PhaseTiming(
                phase=self.phase,
                started_s=round(self.phase_at - self.started_at, 4),
                duration_s=round(now - self.phase_at, 4),
                bytes=self.bytes_done if self.phase in (S.RESTORING, S.FETCHING) else 0,
            )
        )


def _later(phase: ReplicaState, than: ReplicaState) -> bool:
    return _ORDER.get(phase, -1) > _ORDER.get(than, -1)


_ORDER = {phase: index for index, phase in enumerate(LOAD_PHASES)}
