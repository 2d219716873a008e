"""The errors of :mod:`snapshots` as a message and an exit code, for the commands that work with weights."""

from __future__ import annotations

import json
from typing import Any

import click

from snapshots import CheckpointError, PrepareFailed, SnapshotError

EXIT_REFUSED = 9  # the store or the source will not, or cannot
EXIT_DAMAGED = 10  # weights are missing or not what they were


class _Typed(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SnapshotError as error:
            _report(ctx, error.code, str(error), error.advice)
            ctx.exit(EXIT_REFUSED)
        except CheckpointError as error:
            _report(ctx, str(error.reason), str(error), "Take the file from its source again.")
            ctx.exit(EXIT_DAMAGED)
        except PrepareFailed as error:
            _report(ctx, "prepare_failed", str(error), "The message says what is missing.")
            ctx.exit(EXIT_REFUSED)


class WeightsGroup(_Typed, click.Group):
    pass


class WeightsCommand(_Typed):
    pass


def _report(ctx: click.Context, code: str, message: str, advice: str) -> None:
    if ctx.meta.get("rewarm.json"):
        click.echo(json.dumps({"error": {"code": code, "message": message, "advice": advice}}))
        return
    click.secho(f"rewarm: {message}", fg="red", err=True)
    click.echo(f"        {advice}  [{code}]", err=True)
