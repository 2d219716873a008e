"""Who answers when a model does not: the chain of models behind it, and the decision to go on to the next. Pure.

A request or a job starts at the model that it asked for. It goes on down the chain when that one failed, or when it
would be ready only after the cut-over. It never goes back (but for this: when all that it was sent on to have failed,
and the model that it asked for was only late, it returns there), is never moved once an engine has sent the first byte,
and so ends after at most one step more than the chain has links.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

BROKE: frozenset[str] = frozenset(
    (
        "worker_died",
        "engine_unreachable",
        "engine_stalled",
        "engine_bad_response",
        "engine_failed",
        "stream_truncated",
        "upstream_unreachable",
        "upstream_untrusted",
        "upstream_refused_key",
        "upstream_rate_limited",
        "upstream_redirected",
        "upstream_bad_answer",
        "upstream_failed",
    )
)
"""Codes of errors of an engine, or of an upstream, that had the request."""

_NO_ATTEMPT_LEFT = "job_attempts_exhausted"

FALLS_BACK: frozenset[str] = BROKE | {
    "model_load_failed",
    "adapter_load_failed",
    "load_timeout",
    "model_loading",
    "queue_full",
    "queue_unavailable",
    "breaker_open",
    "drain_deadline",
    _NO_ATTEMPT_LEFT,
}
"""Codes of errors that are the model's, or its place's. What is the request's own fault fails with every model."""

_OUT_OF_TIME = frozenset(("model_loading", "load_timeout"))
"""The request's patience is over: only who can answer at once is of any use."""

CUT_OVER = "cut_over"
"""The reason that is shown where nothing failed: it only would have taken too long."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a link of a chain stands now. ``ready_in_s``: 0 when it can answer at once, None when nobody knows."""

    ready_in_s: float | None = None
    obstacle: str = ""  # why it cannot take this request at all; empty where it can


GONE = Outlook(obstacle="it is no model any more")


@dataclass(frozen=True, slots=True)
class Chain:
    """Where a request is. ``at`` is the number of links that were passed; 0: with the model that was asked for."""

    asked: str
    links: tuple[str, ...] = ()
    at: int = 0
    since_s: float = 0.0  # when it came to where it is, on the clock of ``now_s``
    first_byte: bool = False
    late: bool = False  # it left the model that it asked for although that one had not failed
    back: bool = False  # and has returned there

    @property
    def current(self) -> str:
        return self.asked if not self.at or self.back else self.links[self.at - 1]

    @property
    def left(self) -> tuple[str, ...]:
        return () if self.first_byte else self.links[self.at :]


@dataclass(frozen=True, slots=True)
class Failed:
    """The current model will not answer; ``code`` is that of the typed error."""

    code: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The current model is not ready yet. ``eta_s``: seconds until it is, None when unknown.

    ``cut_over_s``: the most it may need, None where only the request's patience counts; of which ``patience_s`` is
    left.
    """

    eta_s: float | None
    cut_over_s: float | None
    patience_s: float


@dataclass(frozen=True, slots=True)
class FirstByte:
    """The engine's answer has begun."""


Event = Failed | Waits | FirstByte


@dataclass(frozen=True, slots=True)
class Stay:
    chain: Chain


@dataclass(frozen=True, slots=True)
class Switch:
    """Answer from ``chain.current``. ``reason`` is a code of :data:`FALLS_BACK`, or :data:`CUT_OVER`."""

    chain: Chain
    reason: str
    skipped: tuple[tuple[str, str], ...] = ()  # (link, obstacle) that were passed over


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody is left: the request fails with the error that it has."""

    skipped: tuple[tuple[str, str], ...] = ()


Step = Stay | Switch | GiveUp


def decide(chain: Chain, event: Event, now_s: float, outlook: Callable[[str], Outlook]) -> Step:
    """``outlook`` is asked about links that are left, in order, as far as needed."""
    match event:
        case FirstByte():
            return Stay(replace(chain, first_byte=True))
        case Failed(code):
            if code not in FALLS_BACK or chain.first_byte:
                return GiveUp()
            in_time = code not in _OUT_OF_TIME
            step = _next(chain, code, now_s, outlook, None if in_time else 0.0, unknown=in_time)
            if step is None and chain.late and not chain.back:
                return Switch(replace(chain, at=len(chain.links), since_s=now_s, back=True), code)
            return step or GiveUp(_obstacles(chain, outlook))
        case Waits(eta_s, _, _):
            if not chain.left or not _late(chain, event, now_s):
                return Stay(chain)
            step = _next(chain, CUT_OVER, now_s, outlook, eta_s, unknown=True)
            if step is None:
                return Stay(chain)
            return step if chain.at else replace(step, chain=replace(step.chain, late=True))


def after_last_attempt(chain: Chain, models: Collection[str]) -> Switch | None:
    """Where a job goes whose last attempt came to nothing: the next link that is still one of ``models``, whenever that
    is ready; None where there is none."""
    step = decide(chain, Failed(_NO_ATTEMPT_LEFT), 0.0, lambda link: Outlook(0.0) if link in models else GONE)
    return step if isinstance(step, Switch) else None


def _late(chain: Chain, wait: Waits, now_s: float) -> bool:
    limit_s = wait.patience_s if wait.cut_over_s is None else min(wait.cut_over_s, wait.patience_s)
    if wait.eta_s is not None:
        return wait.eta_s > limit_s
    # Nobody knows how long: it has had as long as it may need.
    return wait.cut_over_s is not None and now_s - chain.since_s > wait.cut_over_s


def _next(
    chain: Chain,
    reason: str,
    now_s: float,
    outlook: Callable[[str], Outlook],
    most_s: float | None,
    *,
    unknown: bool,
) -> Switch | None:
    """The first link without an obstacle that is ready within ``most_s`` (None: whenever). ``unknown``: one of which
    nobody knows how long it takes will do, too."""
    skipped: list[tuple[str, str]] = []
    for passed, link in enumerate(chain.left, start=1):
        seen = outlook(link)
        if seen.obstacle:
            skipped.append((link, seen.obstacle))
        elif _in_time(seen, most_s, unknown=unknown):
            return Switch(replace(chain, at=chain.at + passed, since_s=now_s), reason, tuple(skipped))
        else:
            skipped.append((link, "is not ready in time"))
    return None


def _in_time(seen: Outlook, most_s: float | None, *, unknown: bool) -> bool:
    if seen.ready_in_s is None:
        return unknown
    return most_s is None or seen.ready_in_s <= most_s


def _obstacles(chain: Chain, outlook: Callable[[str], Outlook]) -> tuple[tuple[str, str], ...]:
    return tuple((link, outlook(link).obstacle or "is not ready in time") for link in chain.left)


# --- the configuration's chains --------------------------------------------------------------------------------------


def expand(model: str, chains: Mapping[str, Sequence[str]], aliases: Mapping[str, str]) -> tuple[str, ...]:
    """The whole chain of ``model``: each fallback is followed by its own. ``chains`` has no problems (see
    :func:`chain_problems`)."""
    out: dict[str, None] = {}

    def follow(name: str) -> None:
        for link in chains.get(name, ()):
            real = aliases.get(link, link)
            if real not in out and real != model:
                out[real] = None
                follow(real)

    follow(model)
    return tuple(out)


def chain_problems(chains: Mapping[str, Sequence[str]], aliases: Mapping[str, str]) -> list[tuple[str, str]]:
    """(model, what is wrong with its ``fallback``): names that are no model, the model itself, names given twice, and
    cycles, each told once."""
    out: list[tuple[str, str]] = []
    for model, links in chains.items():
        seen: set[str] = set()
        for link in links:
            real = aliases.get(link, link)
            if real not in chains:
                out.append((model, f"{link!r} is no model"))
            elif real == model:
                out.append((model, f"{link!r} is the model itself"))
            elif real in seen:
                out.append((model, f"{link!r} is named twice"))
            seen.add(real)
    return out or _cycles(chains, aliases)


def _cycles(chains: Mapping[str, Sequence[str]], aliases: Mapping[str, str]) -> list[tuple[str, str]]:
    done: set[str] = set()
    out: list[tuple[str, str]] = []

    def walk(model: str, path: list[str]) -> None:
        if model in path:
            loop = [*path[path.index(model) :], model]
            out.append((model, f"goes in a circle: {' -> '.join(loop)}"))
            return
        if model in done:
            return
        for link in chains.get(model, ()):
            walk(aliases.get(link, link), [*path, model])
        done.add(model)

    for model in chains:
        walk(model, [])
    return out
