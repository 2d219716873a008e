"""``rewarm jobs watch``: a job's events as a bar, as text, or as JSON lines; through cuts and restarts."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from rewarm.cli.api import Gateway, refused
from rewarm.cli.jobs_table import job_words, load_fraction, tokens_words
from rewarm.cli.sse import Event, events
from rewarm.errors import NothingRunning

_SILENCE_S = 30.0  # a stream that says nothing for this long is cut: it has a comment every ten seconds
_MAX_DELAY_S = 5.0


class Screen(Protocol):
    """Who shows a job's events. ``data`` is the event's JSON, None where it has none (``[DONE]``)."""

    def status(self, job: dict[str, Any]) -> None: ...

    def output(self, event: Event, data: Any) -> None: ...

    def restart(self, data: Any) -> None:
        """What was told of the output is void: another attempt began."""

    def trouble(self, why: str) -> None: ...

    def end(self, job: dict[str, Any]) -> None: ...


def follow_job(
    gateway: Gateway, job: str, path: str, patience_s: float, *, as_json: bool, text: bool
) -> dict[str, Any]:
    """The job as it ended. Raise NothingRunning when nobody answers for ``patience_s``, CommandRefused."""
    if as_json:
        return _follow(gateway, path, patience_s, _JsonLines())
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    live = sys.stdout.isatty()
    shown = console.is_terminal and not (text and live)  # a bar and text share no terminal
    with Bars(*columns, TextColumn("{task.fields[words]}"), console=console, disable=not shown) as bars:
        return _follow(
            gateway, path, patience_s, _Bar(bars, job, text=_Text(live=live) if text else None, told=not shown)
        )


def _follow(gateway: Gateway, path: str, patience_s: float, screen: Screen) -> dict[str, Any]:
    last_id: str | None = None
    heard, failures = time.monotonic(), 0

    def lines() -> Iterator[bytes]:
        nonlocal heard
        for line in gateway.follow(f"{path}/events", last_id, _SILENCE_S):
            heard = time.monotonic()
            yield line

    while True:
        try:
            for event in events(lines()):
                failures = 0
                if event.name == "end":
                    ended: dict[str, Any] = _data(event) or {}
                    screen.end(ended)
                    return ended
                if event.name == "status":
                    screen.status(_data(event) or {})
                elif event.name == "restart":
                    screen.restart(_data(event))
                else:
                    screen.output(event, _data(event))
                last_id = event.id or last_id
            why = "the gateway ended the stream"
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in (429, 502, 503, 504):
                    raise refused(error) from error
                heard = time.monotonic()
                why = refused(error).message
        except (OSError, HTTPException) as error:
            why = str(getattr(error, "reason", error)) or type(error).__name__
        if time.monotonic() - heard > patience_s:
            raise NothingRunning(f"no gateway has answered at {gateway.url} for {patience_s:g} s: {why}")
        screen.trouble(f"{why}; trying again")
        time.sleep(min(0.25 * 2.0 ** min(failures, 10), _MAX_DELAY_S))
        failures += 1


def _data(event: Event) -> Any:
    try:
        return json.loads(event.data)
    except ValueError:
        return None


class _JsonLines:
    def status(self, job: dict[str, Any]) -> None:
        self._line(event="status", data=job)

    def output(self, event: Event, data: Any) -> None:
        self._line(event=event.name or "output", id=event.id, data=event.data if data is None else data)

    def restart(self, data: Any) -> None:
        self._line(event="restart", data=data)

    def trouble(self, why: str) -> None:
        click.echo(f"rewarm: {why}", err=True)

    def end(self, job: dict[str, Any]) -> None:
        self._line(event="end", data=job)

    @staticmethod
    def _line(**fields: Any) -> None:
        click.echo(json.dumps(fields))


class _Text:
    """The answer's text on standard output. To a terminal as it comes; what a file or a pipe has been given cannot be
    taken back, so that these get the answer of the attempt that completed, and nothing of any other."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)
        if self._live:
            sys.stdout.write(text)
            sys.stdout.flush()

    def void(self) -> None:
        self._end_line()
        self._parts.clear()

    def end(self, *, completed: bool) -> None:
        if self._live:
            self._end_line()
        elif completed:
            sys.stdout.write("".join(self._parts) + "\n")
        sys.stdout.flush()

    def _end_line(self) -> None:
        """Whatever the terminal shows next stands on its own line."""
        if self._live and self._parts and not self._parts[-1].endswith("\n"):
            self.add("\n")


class _Bar:
    """A bar through queue and load, then the number of tokens. Where there is no terminal, a line for each change
    (``told``)."""

    def __init__(self, bars: Bars, job: str, *, text: _Text | None, told: bool) -> None:
        self._bars = bars
        self._job = job
        self._text = text
        self._told = told
        self._task = bars.add_task(job, total=1.0, words="")
        self._phase = ""
        self._first: tuple[float, int] | None = None  # when tokens were first seen, and how many

    def status(self, job: dict[str, Any]) -> None:
        progress = job.get("progress") or {}
        status = str(job.get("status"))
        words = job_words(job)
        if status == "in_progress":
            self._bars.update(self._task, total=None, words=self._tokens(int(job.get("tokens") or 0)))
        else:
            self._bars.update(self._task, total=1.0, completed=load_fraction(job) or 0.0, words=words)
        phase = f"{status} {progress.get('phase')} {job.get('attempt')}"
        if phase != self._phase:
            self._phase = phase
            self._say(words)

    def output(self, event: Event, data: Any) -> None:
        if self._text is not None and isinstance(data, dict) and (found := _delta(data)):
            self._text.add(found)

    def restart(self, data: Any) -> None:
        self._first = None
        reason = data.get("reason") if isinstance(data, dict) else None
        if self._text is not None:
            self._text.void()
        click.echo(f"begun anew{f' ({reason})' if reason else ''}: what came before is void", err=True)

    def trouble(self, why: str) -> None:
        self._bars.update(self._task, words=why)
        self._say(why)

    def end(self, job: dict[str, Any]) -> None:
        status = str(job.get("status"))
        completed = 1.0 if status == "completed" else 0.0
        self._bars.update(self._task, total=1.0, completed=completed, words=f"{status}, {job.get('tokens')} tokens")
        if self._text is not None:
            self._text.end(completed=status == "completed")
        elif status == "completed":
            click.echo(f"{self._job} is completed, {job.get('tokens')} tokens", err=True)

    def _say(self, words: str) -> None:
        if self._told and self._text is None:
            click.echo(f"{self._job} {words}", err=True)

    def _tokens(self, tokens: int) -> str:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, tokens)
        return f"in progress, {tokens_words(tokens, tokens - self._first[1], now - self._first[0])}"


def _delta(data: dict[str, Any]) -> str:
    """The text in a chunk of a chat, a completion or a response; '' in all else."""
    if data.get("type") == "response.output_text.delta":
        return str(data.get("delta", ""))
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    choice = choices[0]
    delta = choice.get("delta")
    found = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return found if isinstance(found, str) else ""
