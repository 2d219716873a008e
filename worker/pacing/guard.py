"""How fast a load may go. Pure: ``decide(pace, seen, now) → pace``.

A load that somebody waits for goes as fast as it can: whoever waits is served as well. Only those in the background
(a wake ahead of time, ``min_replicas``, a canary) stand back, each until somebody comes to wait for it.

The 99th percentile of what is served here is held against its level before the load. Above 1.2 times that the load is
halved, down to a pause; below 1.1 it gets more again, a little at a time. A pause is never for ever: a load that is
wanted has to come to its end, so every few seconds it gets a moment, whatever that costs.

Each judgement is of samples since the last change only, and waits until there are enough, so that one slow moment is
not punished twice. Nothing served: full speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.pacing.samples import Judgement

TOO_SLOW = 1.2
FINE = 1.1
FIRST_SHARE = 0.25
"""Where requests are being served when the load begins: it has to earn more."""
LEAST_SHARE = 1 / 32
JUDGE_AFTER_S = 1.0
RAISE_AFTER_S = 2.0
RAISE_BY = 1.5
LONGEST_PAUSE_S = 8.0
QUIET_S = 3.0
"""Without an answer for so long nothing is being served."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``share`` of full speed: 1 is all, 0 a pause. ``beside``: something is served meanwhile, and gets more of
    a core that both want, also at full speed."""

    share: float = 1.0
    since: float = 0.0  # the last change
    reason: str = ""
    beside: bool = False

    @property
    def held_back(self) -> bool:
        return self.share < 1.0


def begin(now: float, *, serving: bool, waited_for: bool) -> Pace:
    if not serving or waited_for:
        return Pace(1.0, now)
    return Pace(FIRST_SHARE, now, "requests are being served, and nobody waits for it", True)


def decide(pace: Pace, seen: Judgement, now: float, *, serving: bool, waited_for: bool) -> Pace:
    """``serving``: there were answers lately. ``waited_for``: somebody waits for this load."""
    for_s = now - pace.since
    if waited_for or not serving:
        why = "somebody waits for it" if waited_for else "nothing is served"
        return Pace(1.0, now, why) if pace.beside else pace
    if not pace.beside:
        return begin(now, serving=serving, waited_for=waited_for)
    if seen.fine and for_s >= RAISE_AFTER_S and pace.held_back:
        share = min(1.0, pace.share * RAISE_BY) if pace.share else LEAST_SHARE
        return Pace(share, now, "what is served is as fast as before", True)
    if pace.share == 0.0:
        return Pace(LEAST_SHARE, now, "a moment, so that it ends", True) if for_s >= LONGEST_PAUSE_S else pace
    if seen.slow and for_s >= JUDGE_AFTER_S:
        slower = pace.share / 2 if pace.share > LEAST_SHARE else 0.0
        return Pace(slower, now, f"what is served takes {seen.ratio or 0:.2f} times as long as before", True)
    return pace
