"""``rewarm wake | sleep | drain``: tell the fleet's leader what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from rewarm.cli.api import Gateway, gateway_options
from rewarm.cli.options import json_option, paths_of
from rewarm.cli.table import progress_words
from rewarm.config import Config, load
from rewarm.errors import ModelNotFound, WakeFailed

POLL_S = 0.5
_TAIL_LINES = 12
_GRACE_S = 3.0
"""How long a failure from before the command may still be shown: the leader takes commands within a second."""
_STILL_S = 5.0
"""Between two attempts of a load nothing of it may be seen for a moment."""
_TAKEN_WITHIN_S = 60.0
"""A command that no leader took for this long is forgotten."""


@click.command(short_help="Load a model without a request, and show how far it is.")
@click.argument("model")
@gateway_options
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@click.option("--timeout", "timeout_s", type=float, default=3600.0, show_default=True, help="Seconds to wait.")
@json_option
def wake(
    model: str,
    url: str | None,
    config_path: Path | None,
    key: str | None,
    no_wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Load MODEL without a request, and show how far it is until it is ready."""
    gateway = Gateway.find(url, config_path, key)
    name = _known(gateway, model, base=True)
    gateway.command("wake", name)
    if no_wait:
        _say(as_json, {"command": "wake", "model": name}, f"{name} wakes")
        return
    started = time.monotonic()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task(name, total=1.0, words="")

        def show(phase: str, fraction: float, words: str) -> None:
            progress.update(task, description=f"{name} {phase}", completed=fraction, words=words)

        try:
            replica = _until_ready(gateway, name, timeout_s, show)
        except WakeFailed as error:
            progress.stop()
            _engine_log(error, name, config_path)
            if not as_json:
                _show_log(error)
            raise
    took_s = round(time.monotonic() - started, 2)
    found = {"command": "wake", "model": name, "state": "ready", "replica": replica, "seconds": took_s}
    _say(as_json, found, f"{name} is ready after {took_s:g} s ({replica})")


@click.command(short_help="Put a model to sleep, or stop it where it cannot; the next request wakes it.")
@click.argument("model")
@gateway_options
@json_option
def sleep(model: str, url: str | None, config_path: Path | None, key: str | None, as_json: bool) -> None:
    """Let MODEL give its memory back once running requests have finished: it sleeps where it can (`rewarm ps` says why
    it cannot), else it stops. A load is cancelled. The next request wakes it again; `rewarm drain` stops it. Refused
    while requests or jobs wait for it."""
    gateway = Gateway.find(url, config_path, key)
    name = _known(gateway, model)
    entry: Mapping[str, Any] = gateway.status().get("models", {}).get(name, {})
    gateway.command("sleep", name)  # in any case: a wake may be on its way
    if entry.get("state") == "asleep" and not entry.get("waiting"):
        _say(as_json, {"command": "sleep", "model": name}, f"{name} sleeps already; `rewarm drain {name}` stops it")
        return
    if entry.get("replicas") == 0 and not entry.get("waiting"):
        _say(as_json, {"command": "sleep", "model": name}, f"{name} is already at zero: nothing of it runs")
        return
    _say(as_json, {"command": "sleep", "model": name}, f"{name} goes to sleep; running requests finish first")


@click.command(short_help="Drain a replica, or everything on a worker.")
@click.argument("target", metavar="WORKER|REPLICA")
@gateway_options
@json_option
def drain(target: str, url: str | None, config_path: Path | None, key: str | None, as_json: bool) -> None:
    """Drain a replica, or everything on a worker, which then takes nothing new until it is restarted."""
    gateway = Gateway.find(url, config_path, key)
    workers = {str(w.get("worker")) for w in gateway.status().get("workers", ())}
    gateway.command("drain", target)
    kind = "worker" if target in workers else "replica"
    _say(as_json, {"command": "drain", kind: target}, f"{kind} {target} drains; running requests finish first")


def _known(gateway: Gateway, model: str, *, base: bool = False) -> str:
    """The model that a name or alias means; with ``base`` of an adapter its base. Raise ModelNotFound."""
    for name, entry in gateway.status().get("models", {}).items():
        if model == name or model in entry.get("aliases", ()):
            return str((base and entry.get("adapter_of")) or name)
    raise ModelNotFound(f"no model is named {model!r}; `rewarm ps` lists them")


class Stirring:
    """Whether anybody still works on a wake, by what the fleet shows of the model."""

    def __init__(self, started_s: float) -> None:
        self._seen = False
        self._still_since_s = started_s

    def given_up(self, entry: Mapping[str, Any], now_s: float) -> str:
        """Why nothing more will come of it; '' while something may."""
        asked_for = entry.get("waits_for") or entry.get("waiting") or entry.get("jobs_waiting")
        if entry.get("state") != "cold" or asked_for:
            self._seen, self._still_since_s = True, now_s
            return ""
        still_s = now_s - self._still_since_s
        if self._seen:
            return "it is cold again: somebody put it to sleep, or its load was given up" if still_s > _STILL_S else ""
        return "no leader takes the command" if still_s > _TAKEN_WITHIN_S else ""


def _until_ready(gateway: Gateway, model: str, timeout_s: float, show: Callable[[str, float, str], None]) -> str:
    """The replica that is ready. Raise WakeFailed."""
    started = time.monotonic()
    stirring = Stirring(started)
    while True:
        status = gateway.status()
        entry: Mapping[str, Any] = status.get("models", {}).get(model, {})
        replicas = [r for w in status.get("workers", ()) for r in w.get("replicas", ()) if r.get("model") == model]
        ready = next((r for r in replicas if r.get("state") == "ready"), None)
        if ready is not None:
            return str(ready.get("replica"))
        waited_s = time.monotonic() - started
        if entry.get("state") == "failed" and waited_s > _GRACE_S:
            failure: Mapping[str, Any] = entry.get("failure") or {}
            tail = {"log_tail": failure["log_tail"]} if failure.get("log_tail") else {}
            why = failure.get("message", "no reason is known")
            raise WakeFailed(f"{model!r} could not be loaded: {why}", extra=tail)
        if why := stirring.given_up(entry, time.monotonic()):
            raise WakeFailed(f"{model!r} does not wake: {why}")
        if waited_s > timeout_s:
            raise WakeFailed(f"{model!r} is not ready after {timeout_s:g} s; the load goes on")
        loads: list[Mapping[str, Any]] = [r["progress"] for r in replicas if r.get("progress")]
        best = max(loads, key=lambda p: float(p.get("fraction") or 0), default={})
        show(str(best.get("phase", "waiting")), float(best.get("fraction") or 0.0), progress_words(best))
        time.sleep(POLL_S)


def _engine_log(error: WakeFailed, model: str, config_path: Path | None) -> None:
    """Where the engine's whole log is, as far as it lies on this machine."""
    path = paths_of(load(config_path) if config_path is not None else Config()).engine_log(model)
    if path.is_file():
        error.extra["log"] = str(path)


def _show_log(error: WakeFailed) -> None:
    lines = str(error.extra.get("log_tail", "")).rstrip().splitlines()[-_TAIL_LINES:]
    path = error.extra.get("log")
    if lines:
        click.echo(f"the last lines of the engine's log{f' {path}' if path else ''}:", err=True)
        for line in lines:
            click.echo(f"    {line}", err=True)
    elif path:
        click.echo(f"the engine's log: {path}", err=True)


def _say(as_json: bool, found: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(found) if as_json else text)
