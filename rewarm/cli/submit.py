"""``rewarm submit FILE.jsonl``: many jobs at once, and their results in one file."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from rewarm.cli.api import Gateway, gateway_options
from rewarm.cli.jobs_table import job_words
from rewarm.cli.options import json_option
from rewarm.cli.submit_client import JobsClient
from rewarm.cli.submit_file import BadLine, Input, read_file
from rewarm.cli.submit_output import Output
from rewarm.cli.submit_run import Options, Run
from rewarm.errors import CommandRefused, InputInvalid, JobNotCompleted, LineRefused

_SHOW_EVERY_S = 0.2
_SHOWN_BAD = 20


@click.command(short_help="Submit the requests of a file as jobs, and write their results in order.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Results.  [default: FILE.results.jsonl]")
@click.option("--endpoint", default="/v1/chat/completions", show_default=True, help="For lines that name none.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), help="[default: the key's own]")
@click.option(
    "--on-bad-line",
    type=click.Choice(["reject", "skip"]),
    default="reject",
    show_default=True,
    help="Submit nothing, or the other lines.",
)
@click.option("--run", "name", default="", help="Names the run: the same file under another name makes new jobs.")
@click.option("--no-wait", is_flag=True, help="Return once all are submitted; the same command collects later.")
@click.option("--no-state", is_flag=True, help="Keep no list of jobs beside the output.")
@click.option("--in-flight", default=16, show_default=True, type=click.IntRange(1, 256), help="Requests at once.")
@click.option("--patience", default=600.0, show_default=True, help="Seconds that no gateway may answer.")
@click.option("--key-env", help="Environment variable with the API key.  [default: REWARM_KEY]")
@gateway_options
@json_option
def submit(
    file: Path,
    out: Path | None,
    endpoint: str,
    priority: str | None,
    on_bad_line: str,
    name: str,
    no_wait: bool,
    no_state: bool,
    in_flight: int,
    patience: float,
    key_env: str | None,
    url: str | None,
    config_path: Path | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit each line of FILE as a job, and write the results in the order of the lines.

    A line is the body of a request, or a line of OpenAI's batch format: custom_id, method, url, body. The same command
    goes on with a run that was broken off, and makes no job twice.
    """
    gateway = Gateway.find(url, config_path, _key(key, key_env))
    options = Options(endpoint, priority, name, in_flight, on_bad_line == "skip", not no_wait)
    out = out or file.with_name(f"{file.stem}.results.jsonl")
    console = Console(stderr=True)
    try:
        summary = asyncio.run(_submit(gateway, file, out, options, patience, not no_state, console, quiet=as_json))
    except KeyboardInterrupt:
        click.echo("\ninterrupted: what was submitted goes on. Results, and the rest of the lines:", err=True)
        click.echo(f"    {shlex.join(['rewarm', *sys.argv[1:]])}", err=True)
        raise
    _finish(summary, as_json, out)


async def _submit(
    gateway: Gateway,
    file: Path,
    out: Path,
    options: Options,
    patience_s: float,
    keep_state: bool,
    console: Console,
    *,
    quiet: bool,
) -> dict[str, Any]:
    shown = console.is_terminal and not quiet
    connections = 2 * options.in_flight
    async with JobsClient(gateway, patience_s, connections) as client:
        models = await _models(client)
        given = await asyncio.to_thread(read_file, file, options.endpoint, models)
        _judge(given, options, quiet=quiet)
        run_of = {"file": given.sha256, "run": options.name, "url": gateway.url}
        with Output(out, run_of, keep_state=keep_state or not options.wait) as output:
            run = Run(client, given, output, options, shown=shown)
            showing = asyncio.create_task(_show(run, client, console)) if shown else None
            try:
                await run.run()
            finally:
                if showing is not None:
                    showing.cancel()
                    await asyncio.gather(showing, return_exceptions=True)
                output.abandon()
            if options.wait:
                output.complete()
            return _summary(run, given, output, options)


async def _models(client: JobsClient) -> set[str] | None:
    """All names that exist, for this key. Raise NothingRunning, CommandRefused for a wrong key."""
    answer = await client.once("GET", "/v1/models")
    if answer.status in (401, 403):
        code, message = answer.error()
        raise CommandRefused(f"{message} ({code})")
    listed = answer.json().get("data")
    if not answer.ok or not isinstance(listed, list) or not listed:
        return None  # starting, say: each line will be told
    return {str(model.get("id")) for model in listed}


def _judge(given: Input, options: Options, *, quiet: bool) -> None:
    """Say what is wrong with which line. Raise InputInvalid where that is not to be skipped, or nothing is left."""
    if given.bad and not options.skip_bad:
        lines = [{"line": bad.number, "problem": bad.problem} for bad in given.bad]
        raise InputInvalid(f"nothing is submitted, {_bad(given.bad)}", extra={"lines": lines})
    if not given.lines:
        raise InputInvalid(f"{given.path} has no request" + (f": {_bad(given.bad)}" if given.bad else ""))
    if given.bad and not quiet:
        click.echo(f"skipped: {_bad(given.bad)}", err=True)


def _bad(lines: tuple[BadLine, ...] | list[BadLine]) -> str:
    shown = "".join(f"\n    {bad}" for bad in lines[:_SHOWN_BAD])
    more = f"\n    and {len(lines) - _SHOWN_BAD} more" if len(lines) > _SHOWN_BAD else ""
    return f"{len(lines)} {'line is' if len(lines) == 1 else 'lines are'} no request:{shown}{more}"


async def _show(run: Run, client: JobsClient, console: Console) -> None:
    """Until cancelled."""
    columns = (
        TextColumn("{task.description}", justify="right"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Bars(*columns, console=console) as bars:
        submitted = bars.add_task("submitted", total=run.progress.lines, words="")
        ended = bars.add_task("done", total=run.progress.lines, words="")
        try:
            while True:
                _update(bars, submitted, ended, run, client)
                await asyncio.sleep(_SHOW_EVERY_S)
        finally:
            _update(bars, submitted, ended, run, client)


def _update(bars: Bars, submitted: TaskID, ended: TaskID, run: Run, client: JobsClient) -> None:
    progress = run.progress
    trouble = client.trouble
    bars.update(submitted, completed=progress.submitted + len(progress.refused), words=trouble)
    bars.update(ended, completed=progress.ended, words=job_words(progress.job) if progress.job else "")


def _summary(run: Run, given: Input, output: Output, options: Options) -> dict[str, Any]:
    progress = run.progress
    refused = sorted(progress.refused, key=lambda bad: bad.number)  # they come as the gateway answers, several at once
    summary: dict[str, Any] = {
        "file": str(given.path),
        "run": options.name,
        "lines": len(given.lines) + len(given.bad),
        "submitted": progress.submitted,
        "submitted_before": progress.again,
        "bad_lines": [{"line": bad.number, "problem": bad.problem} for bad in (*given.bad, *refused)],
    }
    if not options.wait:
        return {**summary, "state": str(output.state), "refused": refused}
    return {**summary, "ended": output.failures, "out": str(output.out), "refused": refused}


def _finish(summary: dict[str, Any], as_json: bool, out: Path) -> None:
    """Raise JobNotCompleted where a job did not, or LineRefused where that was all that went wrong."""
    refused: list[BadLine] = summary.pop("refused")
    ended: Mapping[str, int] | None = summary.get("ended")
    if ended is None:
        said = f"{summary['submitted']} submitted; the same command without --no-wait writes {out}"
    else:
        said = f"{_counts(ended)}: {out}"
    if any(status not in ("completed", "refused") for status in ended or ()):
        raise JobNotCompleted(_with_refused(said, refused), extra=summary)
    if refused:
        raise LineRefused(_with_refused(said, refused), extra=summary)
    click.echo(json.dumps(summary) if as_json else said)


def _counts(ended: Mapping[str, int]) -> str:
    """Of all lines, the skipped ones among those refused: ``5 completed, 1 failed, 2 refused``."""
    others = sorted(status for status in ended if status != "completed")
    return ", ".join(f"{ended.get(status, 0)} {status}" for status in ("completed", *others))


def _with_refused(said: str, refused: list[BadLine]) -> str:
    return f"{said}\n{_bad(refused)}" if refused else said


def _key(key: str | None, key_env: str | None) -> str | None:
    if key_env is None:
        return key
    found = os.environ.get(key_env)
    if not found:
        raise click.BadParameter(f"the environment has no {key_env}", param_hint="--key-env")
    return found
