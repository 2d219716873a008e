"""Which replicas of one worker give up their memory so that another model can load there. Pure, and explained.

Who may go, in the order of the questions:

- never one that is pinned, is needed for ``min_replicas``, or loads (unless nobody waits for that load any more and the
  one that asks has waited for ``max_wait``);
- not before its minimum residency, unless the one that asks has waited for ``max_wait``;
- an idle one always;
- one that is in use only for a model of the same priority or a higher one, only where somebody waits for that, and not
  for jobs while it serves requests. A less important one goes at once. Of two equals the one in memory has its *turn*:
  it ends when nobody is left who waited for it, at the latest after ``max_wait``. So two models that alternate swap
  once a batch, not once a request.

What is in use drains: it takes nothing new, and what runs may end. Of those that may go, idle ones go before those in
use, then less important ones, then the least recently used; as few as are enough. Where sleep frees enough, they sleep.
What ``min_asleep`` keeps goes after all others that are idle; where nobody has used it yet, at once for whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations, groupby

from controller.state import Needs
from rewarm.config import PlacementRules, priority_name
from rewarm.units import format_duration

QUIET_MS = 1_000
"""Without a request for this long a replica is idle. Less: a client that asks again when it has its answer would find
its model gone each time."""

_MOST_AT_ONCE = 3  # sets up to this size are tried exhaustively
_TRIED_OF = 20  # among this many


class Use(IntEnum):
    """Who needs a model: the lower, the more urgent."""

    REQUESTS = 0
    JOBS = 1
    NOBODY = 2


@dataclass(frozen=True, slots=True)
class Asker:
    """A model that wants to load, or to wake, and has no room. ``since_ms``: what has waited longest for it."""

    model: str
    priority: int
    use: Use
    since_ms: int


@dataclass(frozen=True, slots=True)
class Resident:
    """A replica that holds memory, and is not leaving."""

    replica: str
    model: str
    priority: int
    use: Use
    ready_at_ms: int
    last_used_ms: int
    running: int = 0
    waiting: int = 0  # of the kind that ``use`` names
    keeps: str = ""  # why it never goes
    ahead: bool = False  # loaded for `min_asleep` alone, and not used yet
    last_resort: bool = False  # `min_asleep` keeps it: it goes after all others that are idle
    loading: bool = False
    asleep: bool = False
    sole: bool = True  # the only replica of its model on this worker
    stop_frees: Needs = field(default_factory=dict)
    sleep_frees: Needs = field(default_factory=dict)  # nothing: it cannot sleep


@dataclass(frozen=True, slots=True)
class Leaving:
    """``if_idle``: only unless it is used before that. Otherwise it drains."""

    resident: Resident
    sleep: bool
    if_idle: bool
    why: str

    @property
    def in_use(self) -> bool:
        return self.resident.use is not Use.NOBODY


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing: bytes by device, none of them zero, and places among ``max_models``."""

    bytes: Needs = field(default_factory=dict)
    models: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """``leaving`` is enough, or empty; ``stays`` then says of each of those that would help why it stays."""

    leaving: tuple[Leaving, ...] = ()
    stays: tuple[str, ...] = ()
    never: bool = False  # what could go is not enough even if all of it went


def choose(
    residents: Sequence[Resident], shortage: Shortage, asker: Asker, rules: PlacementRules, now_ms: int
) -> Choice:
    """The smallest sufficient set of those that may go."""
    if shortage == Shortage():
        return Choice()
    residents = concerned(residents, shortage)
    may: list[Leaving] = []
    stays: list[str] = []
    for resident in residents:
        answer = may_go(resident, asker, rules, now_ms)
        if isinstance(answer, Leaving):
            may.append(answer)
        else:
            stays.append(answer)
    may.sort(key=_last_to_stay)
    pool: list[Leaving] = []
    for _, tier in groupby(may, key=lambda one: _last_to_stay(one)[:3]):
        pool += tier
        for sleep in (True, False):
            found = _smallest([_as(one, sleep, shortage) for one in pool], shortage)
            if found:
                return Choice(tuple(found))
    movable = [one for one in residents if not one.keeps]
    never = not _covered(shortage, [one.stop_frees for one in movable], {one.model for one in movable if one.sole})
    return Choice((), tuple(stays), never)


def concerned(residents: Sequence[Resident], shortage: Shortage) -> list[Resident]:
    """Those that hold something of what is missing. What lies on another device is left alone, and not spoken of."""
    if shortage.models:
        return list(residents)
    return [one for one in residents if any(one.stop_frees.get(device) for device in shortage.bytes)]


def may_go(resident: Resident, asker: Asker, rules: PlacementRules, now_ms: int) -> Leaving | str:
    """What it does, or why it stays."""
    name = resident.model
    if resident.keeps:
        return f"{name} {resident.keeps}"
    due = asker.use is not Use.NOBODY and now_ms - asker.since_ms >= rules.max_wait_ms
    if resident.ahead and asker.use is not Use.NOBODY and not resident.asleep:
        # Whoever asks would not have had to wait without it.
        return Leaving(
            resident, sleep=not resident.loading, if_idle=not resident.loading, why="nobody has asked for it"
        )
    if resident.loading:
        if due and not resident.waiting and resident.priority >= asker.priority:
            return Leaving(resident, sleep=False, if_idle=False, why="nobody waits for its load any more")
        return f"{name} is loading"
    quiet_ms = now_ms - resident.last_used_ms
    if resident.asleep:
        return Leaving(resident, sleep=False, if_idle=True, why=f"asleep, not used for {_time(quiet_ms)}")
    age_ms = now_ms - resident.ready_at_ms
    if age_ms < rules.min_residency_ms and not due:
        return f"{name} was loaded {_time(age_ms)} ago and stays for {_time(rules.min_residency_ms)}"
    idle = resident.use is Use.NOBODY
    if idle and quiet_ms >= QUIET_MS:
        return Leaving(resident, sleep=True, if_idle=True, why=f"least recently used, idle {_time(quiet_ms)}")
    if asker.use is Use.NOBODY or resident.priority < asker.priority:
        important = (
            f" and has priority {priority_name(resident.priority)}" if resident.priority < asker.priority else ""
        )
        return f"{name} is in use{important}"
    if resident.priority > asker.priority:
        why = f"priority {priority_name(resident.priority)} yields to {priority_name(asker.priority)}"
        return Leaving(resident, sleep=True, if_idle=idle, why=why)
    if idle:
        return Leaving(resident, sleep=True, if_idle=True, why="nobody waits for it")
    if asker.use > resident.use:
        return f"{name} serves requests, which come before jobs"
    return _turn(resident, asker, rules, now_ms)


def _turn(resident: Resident, asker: Asker, rules: PlacementRules, now_ms: int) -> Leaving | str:
    """Of two equals that both have something to do."""
    if asker.use < resident.use:
        return Leaving(resident, sleep=True, if_idle=False, why="only jobs wait for it")
    if not resident.waiting:
        return Leaving(resident, sleep=True, if_idle=False, why="it has served all who waited")
    # From when both were there: a load that took longer than max_wait would otherwise cost it its whole turn.
    had_ms = now_ms - max(resident.ready_at_ms, asker.since_ms)
    if had_ms >= rules.max_wait_ms:
        return Leaving(resident, sleep=True, if_idle=False, why=f"its turn of {_time(rules.max_wait_ms)} is over")
    left = _time(rules.max_wait_ms - had_ms)
    return f"{resident.model} serves those who wait for it first ({resident.waiting}), for {left} at most"


def _last_to_stay(one: Leaving) -> tuple[bool, bool, int, int, str]:
    """Sorts those first that are missed least."""
    resident = one.resident
    kept = resident.last_resort and not resident.ahead
    return (one.in_use, kept, -resident.priority, resident.last_used_ms, resident.replica)


def _as(one: Leaving, sleep: bool, shortage: Shortage) -> Leaving:
    """Asleep it still counts among ``max_models``."""
    frees = any(one.resident.sleep_frees.get(device) for device in shortage.bytes)
    sleeps = sleep and one.sleep and frees and not shortage.models
    return Leaving(one.resident, sleeps, one.if_idle, one.why)


def _smallest(pool: Sequence[Leaving], shortage: Shortage) -> list[Leaving]:
    """The first sufficient set in the order of the pool, of the smallest size; empty where there is none."""
    for size in range(1, _MOST_AT_ONCE + 1):
        for some in combinations(pool[:_TRIED_OF], size):
            if _enough(some, shortage):
                return list(some)
    if not _enough(pool, shortage):
        return []
    kept = list(pool)
    for one in reversed(pool):  # spare whoever is missed most, as far as the others are enough
        rest = [other for other in kept if other is not one]
        if _enough(rest, shortage):
            kept = rest
    return kept


def _enough(some: Iterable[Leaving], shortage: Shortage) -> bool:
    some = list(some)
    freed = [one.resident.sleep_frees if one.sleep else one.resident.stop_frees for one in some]
    return _covered(shortage, freed, {one.resident.model for one in some if one.resident.sole and not one.sleep})


def _covered(shortage: Shortage, freed: Sequence[Needs], models: set[str]) -> bool:
    enough = all(sum(one.get(device, 0) for one in freed) >= size for device, size in shortage.bytes.items())
    return enough and len(models) >= shortage.models


def words(leaving: Sequence[Leaving]) -> str:
    """``coder sleeps first (least recently used, idle 12 s)``"""
    return " and ".join(_sentences(leaving))


def _sentences(leaving: Sequence[Leaving]) -> Iterator[str]:
    for one in leaving:
        running = one.resident.running
        ends = f"ends its {running} running and " if running else ""
        yield f"{one.resident.model} {ends}{'sleeps' if one.sleep else 'stops'} first ({one.why})"


def _time(ms: int) -> str:
    seconds = round(max(0, ms) / 1000)
    return f"{seconds} s" if seconds < 60 else format_duration(seconds)
