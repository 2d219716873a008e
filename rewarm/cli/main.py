"""The command group, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from rewarm import __version__
from rewarm.errors import CommandRefused, ModelNotFound, OperatorError, RewarmError

_COMMANDS = {
    "serve": "rewarm.cli.serve:serve",
    "gateway": "rewarm.cli.gateway:gateway",
    "worker": "rewarm.cli.worker:worker",
    "check": "rewarm.cli.check:check",
    "init": "rewarm.cli.init:init",
    "pull": "rewarm.cli.pull:pull_command",
    "import": "rewarm.cli.imports:imports",
    "ps": "rewarm.cli.ps:ps",
    "wake": "rewarm.cli.operate:wake",
    "sleep": "rewarm.cli.operate:sleep",
    "drain": "rewarm.cli.operate:drain",
    "submit": "rewarm.cli.submit:submit",
    "jobs": "rewarm.cli.jobs:jobs",
    "paths": "rewarm.cli.show_paths:paths",
    "snapshot": "rewarm.cli.snapshot:snapshot",
    "knative": "rewarm.cli.knative:knative",
}


class _Commands(click.Group):
    """Imports a command's module when it is used: `rewarm ps` must not wait for the gateway's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        imported = __import__(module, fromlist=[name])
        command: click.Command = getattr(imported, name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RewarmError as error:
            report(error, as_json="--json" in sys.argv[1:] or bool(ctx.meta.get("rewarm.json")))
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(130)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rewarm")
def main() -> None:
    """A scale-to-zero gateway for language models: they sleep until someone asks."""


def exit_code(error: RewarmError) -> int:
    if isinstance(error, ModelNotFound):  # a gateway's error as well, which has no exit code
        return CommandRefused.exit_code
    return error.exit_code if isinstance(error, OperatorError) else 1


def report(error: RewarmError, *, as_json: bool) -> None:
    """Say what went wrong and what to do: for a person on stderr, for a program as one JSON object on stdout."""
    if as_json:
        told = {"code": error.code, "message": error.message, "advice": error.advice, **error.extra}
        click.echo(json.dumps({"error": told}))
        return
    click.secho(f"rewarm: {error.message}", fg="red", err=True)
    click.echo(f"        {error.advice}  [{error.code}]", err=True)
