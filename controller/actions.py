"""What a decision can ask for. Each action carries the reason that the log shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rewarm.fallback import Event, Outlook
from rewarm.messages import Canary, CatalogueEntry, Explanation, Failure, ModelStatus, Want


@dataclass(frozen=True, slots=True)
class Start:
    """A new replica."""

    want: Want
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain, then stop. ``want.if_last_activity_ms`` makes it conditional on what the leader saw."""

    want: Want
    reason: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Sleep, once it is idle. ``want`` names the wake that this ends, and makes it conditional as a stop is."""

    want: Want
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Take a stop back, wake what sleeps, or adopt a replica that runs without a want."""

    want: Want
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The replica has ended, or its worker is lost: its want goes."""

    worker: str
    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailWaiting:
    """Every waiting ticket of the model fails with ``code`` of ``rewarm.errors``.

    ``jobs`` that wait outlive a failure: they are left alone, or count it as one more failed load of the few that each
    waits through. Only where their model is gone do they all fail.
    """

    model: str
    code: str
    message: str
    failure: Failure | None = None
    jobs: Literal["keep", "count", "fail"] = "keep"

    @property
    def reason(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class MoveJobs:
    """Jobs that wait for the model may go on to the next of their chains. ``outlooks``: how the other models stand;
    ``now_s`` is Redis time."""

    model: str
    event: Event
    outlooks: Mapping[str, Outlook]
    now_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    status: ModelStatus
    reason: str


@dataclass(frozen=True, slots=True)
class SetCanary:
    canary: Canary
    reason: str


@dataclass(frozen=True, slots=True)
class Cordon:
    """This run of the worker takes nothing new."""

    worker: str
    boot: str
    reason: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    """That run of it is over."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetStatus:
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell whoever waits for the model what it waits for."""

    explanation: Explanation

    @property
    def reason(self) -> str:
        return self.explanation.text


@dataclass(frozen=True, slots=True)
class Unexplain:
    """It no longer waits."""

    model: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PublishCatalogue:
    entries: Mapping[str, CatalogueEntry]
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing is done; the log says why."""

    subject: str
    reason: str


Action = (
    Start
    | Stop
    | Rest
    | Keep
    | Forget
    | MoveJobs
    | FailWaiting
    | SetStatus
    | SetCanary
    | Cordon
    | Uncordon
    | ForgetStatus
    | Explain
    | Unexplain
    | PublishCatalogue
    | Note
)
