"""What the leader wants, remembers and explains; what an operator asks of it."""

from __future__ import annotations

from typing import Literal

from rewarm.messages.codec import Message
from rewarm.messages.loads import Failure
from rewarm.messages.models import ReplicaSpec
from rewarm.states import ReplicaState


class Want(Message, frozen=True, kw_only=True):
    """What the leader wants of one replica on one worker. Agents refuse an older ``term``."""

    replica: str
    worker: str
    model: str
    spec: ReplicaSpec
    spec_hash: str
    state: ReplicaState  # READY, ASLEEP (once it is idle), or STOPPED (drain first)
    term: int
    # The run of the worker's agent that this was decided about. An agent started since leaves it alone: what the old
    # one ran is gone, and the leader decides anew; both at once would be two loads.
    boot: str = ""
    # A run of that agent which must not take it although `boot` is empty: its pod leaves, and the next one is meant.
    not_boot: str = ""
    attempt: int = 1
    deaths: int = 0  # workers in a row that died while they loaded the model
    not_before_ms: int = 0  # backoff of a retry
    wanted_ms: int = 0  # when this attempt was decided, in Redis time: what its pod takes to come counts from then
    # For STOPPED and ASLEEP: only if the gate's last activity still is this value: a request that came in between makes
    # it void.
    if_last_activity_ms: int | None = None
    # For ASLEEP: the wake that this ends. One that happened since, by a request, is left alone.
    if_ready_at_ms: int = 0
    sleep_level: int = 1
    # For ASLEEP: whether a request may wake it without asking the leader. Not where others wait for the memory: from
    # this want on its requests queue, so that it comes to rest although more of them arrive.
    may_wake: bool = True
    # For READY: somebody waits for it to be up. Such a load is not held back for what is served beside it.
    waited_for: bool = False
    # For READY: loaded for `min_asleep` alone, until somebody waits for it. Nobody leaves for it; it goes for others.
    ahead: bool = False
    reason: str = ""


class PlaceStatus(Message, frozen=True, kw_only=True):
    """The breaker of one model on one worker: open until ``open_until_ms``, then half-open for one probing load.

    A load that becomes ready closes it: the entry goes.
    """

    worker: str
    failures: int = 0  # failed loads in a row
    open_until_ms: int = 0
    failure: Failure | None = None  # the last one


class ModelStatus(Message, frozen=True, kw_only=True):
    """The leader's memory of a model's failures: requests fail at once until ``failed_until_ms``.

    ``failure`` None: the model as a whole has not failed, only loads on some of its ``places`` have.
    """

    model: str
    failed_until_ms: int = 0
    failure: Failure | None = None
    attempts: int = 0
    places: tuple[PlaceStatus, ...] = ()


class Explanation(Message, frozen=True, kw_only=True):
    """Why a model that is wanted does not load yet, in the leader's words."""

    model: str
    text: str
    since_ms: int = 0
    worker: str = ""  # where it is to run, as far as that is decided
    yields: tuple[str, ...] = ()  # models that give up their room for it


class Canary(Message, frozen=True, kw_only=True):
    """What is known of a model's way from cold to ready: the leader's last try, or a wake that somebody asked for."""

    model: str
    state: str  # running | passed | failed | unknown (cut short)
    at_ms: int  # when it began, or ended
    failures: int = 0  # tries in a row
    message: str = ""  # why it failed


class Command(Message, frozen=True, kw_only=True):
    """``rewarm wake MODEL``, ``sleep MODEL``, ``drain WORKER``: for the leader."""

    kind: Literal["wake", "sleep", "drain"]
    target: str
    at_ms: int = 0
