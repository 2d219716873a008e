"""Jobs as rows and words for a person."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from rewarm.cli.table import bar, progress_words
from rewarm.units import format_duration

_COLOURS = {
    "queued": "dim",
    "loading": "cyan",
    "in_progress": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
}


def table(jobs: Iterable[Mapping[str, Any]], now: float | None = None) -> Table:
    """``jobs`` as ``GET /v1/jobs`` lists them; ``now`` in seconds since the epoch."""
    now = time.time() if now is None else now
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("JOB", "STATUS", "MODEL", "PRIORITY", "AGE", "PROGRESS", "TOKENS", ""):
        out.add_column(name, justify="right" if name in ("AGE", "TOKENS") else "left", no_wrap=name != "")
    for job in jobs:
        status = str(job.get("status"))
        out.add_row(
            str(job.get("id")),
            Text(status, style=_COLOURS.get(status, "")),
            str(job.get("model")),
            str(job.get("priority")),
            _age(job.get("created_at"), now),
            bar(load_fraction(job)),
            str(job["tokens"]) if job.get("tokens") else "",
            job_words(job, short=True),
        )
    return out


def load_fraction(job: Mapping[str, Any]) -> float | None:
    """Of its model's load, while it loads."""
    progress = job.get("progress") or {}
    return float(progress.get("fraction") or 0.0) if job.get("status") == "loading" else None


def job_words(job: Mapping[str, Any], *, short: bool = False) -> str:
    """Where it is: ``queued, position 3, about 12.0 s to go``; of one that ended, why. ``short``: without its state."""
    status = str(job.get("status"))
    progress = job.get("progress") or {}
    parts = [] if short else [status.replace("_", " ")]
    if job.get("queue_position"):
        parts.append(f"position {job['queue_position']}")
    if status == "loading":
        parts.append(str(progress.get("phase")) if short else f"{progress.get('phase')} {_percent(progress)}")
        parts += [words] if (words := progress_words({**progress, "attempt": progress.get("load_attempt")})) else []
    elif status == "queued" and progress.get("eta_s"):
        parts.append(f"about {format_duration(float(progress['eta_s']))} to go")
    elif status == "in_progress":
        parts += [f"{job['tokens']} tokens"] if job.get("tokens") and not short else []
        parts += ["cancelling"] if job.get("cancel_requested") else []
    if int(job.get("spent") or 0) > 1:
        parts.append(f"attempt {job['spent']} of {job.get('max_attempts')}")
    error = job.get("error")
    if isinstance(error, Mapping):
        parts.append(f"{error.get('code')}: {error.get('message')}")
    parts += _webhook_words(job.get("webhook"))
    return ", ".join(parts)


def details(job: Mapping[str, Any], now: float | None = None) -> Table:
    """Everything about one job, a line each."""
    now = time.time() if now is None else now
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()

    def row(name: str, value: object) -> None:
        if value not in (None, "", {}, 0):
            grid.add_row(name, value if isinstance(value, Text | Table) else str(value))

    status = str(job.get("status"))
    row("job", job.get("id"))
    row("status", Text(status, style=_COLOURS.get(status, "")))
    row("", job_words(job, short=True))
    row("load", bar(load_fraction(job)) or None)
    row("model", job.get("model"))
    row("endpoint", job.get("endpoint"))
    row("priority", job.get("priority"))
    for name in ("created_at", "started_at", "ended_at", "expires_at", "start_deadline_at"):
        at = job.get(name)
        if at is not None:
            row(name.removesuffix("_at").replace("_", " "), f"{_date(at)}  ({_distance(at, now)})")
    row("waited", format_duration(float(job["waited_s"])) if job.get("waited_s") else None)
    row("tokens", job.get("tokens"))
    row("attempts", f"{job.get('spent')} of {job.get('max_attempts')}" if job.get("spent") else None)
    row("started", f"{job['attempt']} times" if int(job.get("attempt") or 0) > int(job.get("spent") or 0) else None)
    row("failed loads", job.get("loads"))
    row("metadata", ", ".join(f"{k}={v}" for k, v in (job.get("metadata") or {}).items()))
    hook = job.get("webhook")
    row("webhook", f"{hook.get('url')} ({', '.join(_webhook_words(hook)) or 'nothing to tell yet'})" if hook else None)
    return grid


def tokens_words(tokens: int, new: int, seconds: float) -> str:
    """``new`` of the ``tokens`` came within the last ``seconds``."""
    return f"{tokens} tokens{f', {new / seconds:.1f} a second' if new > 0 and seconds > 0.5 else ''}"


def _webhook_words(hook: Any) -> list[str]:
    if not isinstance(hook, Mapping) or "delivered" not in hook:
        return []
    if hook["delivered"]:
        return ["webhook delivered"]
    if hook.get("given_up"):
        return [f"webhook given up: {hook.get('last_error')}"]
    if hook.get("tries"):
        following = f"next try {hook['next_try']}" if hook.get("next_try") else "being tried again"
        return [f"webhook failed {hook['tries']} times: {hook.get('last_error')}, {following}"]
    return []


def _percent(progress: Mapping[str, Any]) -> str:
    return f"{float(progress.get('fraction') or 0.0):.0%}"


def _age(created: Any, now: float) -> str:
    return "" if created is None else format_duration(max(0.0, now - float(created)))


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _distance(at: float, now: float) -> str:
    return f"{format_duration(now - at)} ago" if at <= now else f"in {format_duration(at - now)}"
