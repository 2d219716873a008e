"""``rewarm jobs ls | show | watch | cancel | result``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
from rich.console import Console

from rewarm.cli.api import Gateway, gateway_options
from rewarm.cli.jobs_table import details, table
from rewarm.cli.jobs_watch import follow_job
from rewarm.cli.options import json_option
from rewarm.cli.ps import PIPED_WIDTH
from rewarm.errors import CommandRefused, JobNotCompleted

_PAGE = 100
_STATES = ("queued", "loading", "in_progress", "completed", "failed", "cancelled", "expired")
_KINDS = ("job", "response", "batch")
_BODY_SHOWN = 300


@click.group(short_help="Look at jobs, follow one, cancel, read a result.")
def jobs() -> None:
    """Look at jobs, follow one, cancel, read a result."""


@jobs.command(short_help="List jobs, the newest first.")
@click.option("--status", "states", multiple=True, type=click.Choice(_STATES), help="Only these; may be repeated.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="[default: job and response]")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="The newest so many.")
@click.option("--tenant", help="Another key's jobs; for operators.")
@gateway_options
@json_option
def ls(
    states: tuple[str, ...],
    kinds: tuple[str, ...],
    limit: int,
    tenant: str | None,
    url: str | None,
    config_path: Path | None,
    key: str | None,
    as_json: bool,
) -> None:
    """List jobs, the newest first."""
    gateway = Gateway.find(url, config_path, key)
    query = {"status": ",".join(states), "kind": ",".join(kinds), "tenant": tenant or ""}
    found, more = _list(gateway, {name: value for name, value in query.items() if value}, limit)
    if as_json:
        click.echo(json.dumps({"jobs": found, "has_more": more}, indent=2))
        return
    if not found:
        click.echo("no jobs")
        return
    _console().print(table(found))
    if more:
        click.echo(f"the newest {len(found)}; --limit shows more", err=True)


def _list(gateway: Gateway, query: dict[str, str], limit: int) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    while True:
        page = {**query, "limit": str(min(_PAGE, limit - len(found)))}
        if found:
            page["after"] = str(found[-1]["id"])
        answer = gateway.get(f"/v1/jobs?{urlencode(page)}")
        found += answer.get("data", [])
        more = bool(answer.get("has_more"))
        if not more or len(found) >= limit or not answer.get("data"):
            return found, more


@jobs.command(short_help="Show everything about a job.")
@click.argument("job")
@gateway_options
@json_option
def show(job: str, url: str | None, config_path: Path | None, key: str | None, as_json: bool) -> None:
    """Show everything about JOB."""
    found = Gateway.find(url, config_path, key).get(_path(job))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    _console().print(details(found), soft_wrap=True)


@jobs.command(short_help="Follow a job until it ends.")
@click.argument("job")
@click.option("--text", is_flag=True, help="Print the answer's text: to a terminal as it comes, else at its end.")
@click.option("--patience", default=600.0, show_default=True, help="Seconds that no gateway may answer.")
@gateway_options
@json_option
def watch(
    job: str,
    text: bool,
    patience: float,
    url: str | None,
    config_path: Path | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Follow JOB through the queue, its model's load and its answer, until it ends. Ctrl-C leaves the job running.

    With --json: one object a line for each event.
    """
    gateway = Gateway.find(url, config_path, key)
    gateway.get(_path(job))  # unknown, or no gateway: said at once
    ended = follow_job(gateway, job, _path(job), patience, as_json=as_json, text=text)
    _say_end(job, ended, as_json)


@jobs.command(short_help="Cancel jobs, waiting or running.")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@gateway_options
@json_option
def cancel(job_ids: tuple[str, ...], url: str | None, config_path: Path | None, key: str | None, as_json: bool) -> None:
    """Cancel each JOB: out of the queue at once, out of its engine within a second or so."""
    gateway = Gateway.find(url, config_path, key)
    found = [gateway.post(f"{_path(job)}/cancel") for job in job_ids]
    if as_json:
        click.echo(json.dumps({"jobs": found}, indent=2))
        return
    for job in found:
        status = job.get("status")
        if status == "cancelled" or not job.get("cancel_requested"):
            click.echo(f"{job.get('id')} is {status}")
        else:
            click.echo(f"{job.get('id')} runs, and is being stopped")


@jobs.command(short_help="Print a job's result.")
@click.argument("job")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@click.option("--text", is_flag=True, help="Only the answer's text.")
@gateway_options
@json_option
def result(
    job: str,
    out: Path | None,
    text: bool,
    url: str | None,
    config_path: Path | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Print the result of JOB as the engine gave it. Readable for 7 days after the end."""
    status, body = Gateway.find(url, config_path, key).read(f"{_path(job)}/result")
    if status >= 400:
        raise _no_result(job, status, body)
    data = (_text(body) + "\n").encode() if text else body
    if out is not None:
        try:
            out.write_bytes(data)
        except OSError as error:
            raise click.FileError(str(out), error.strerror or str(error)) from error
        return
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
    sys.stdout.buffer.flush()


def _no_result(job: str, status: int, body: bytes) -> CommandRefused | JobNotCompleted:
    try:
        said = json.loads(body)["error"]
        code, message = str(said.get("code")), str(said.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = f"http_{status}", body[:_BODY_SHOWN].decode(errors="replace")
    if status in (401, 403, 404) or code == "job_not_finished":
        return CommandRefused(f"{message} ({code})")
    return JobNotCompleted(f"{job}: {message} ({code})")


def _text(body: bytes) -> str:
    """Of a chat, a completion or a response. Raise CommandRefused for what has none."""
    try:
        answer = json.loads(body)
        if "output" in answer:
            parts = [part for item in answer["output"] for part in item.get("content") or ()]
            return "".join(str(part.get("text", "")) for part in parts)
        choice = answer["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise CommandRefused("this result has no text; leave out --text") from None


def _say_end(job: str, ended: dict[str, Any], as_json: bool) -> None:
    """Raise JobNotCompleted."""
    status = ended.get("status")
    if status != "completed":
        error = ended.get("error") or {}
        why = f": {error.get('message')} ({error.get('code')})" if error else ""
        raise JobNotCompleted(f"{job} is {status}{why}", extra={"status": status} if as_json else None)


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
