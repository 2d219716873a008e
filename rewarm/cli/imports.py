"""``rewarm import llama-swap FILE``: another program's configuration as ours."""

from __future__ import annotations

from pathlib import Path

import click

from rewarm.cli.files import write_new
from rewarm.config import parse
from rewarm.errors import ConfigInvalid, ConfigNotFound, ImportPartial
from rewarm.imports import Remark, from_llama_swap


@click.group("import", short_help="Write a configuration from another program's.")
def imports() -> None:
    """Write a configuration from another program's."""


@imports.command("llama-swap", short_help="From llama-swap's config.yaml.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write there, not to stdout.")
@click.option("--force", is_flag=True, help="Replace the output file.")
def llama_swap(source: Path, output: Path | None, force: bool) -> None:
    """From llama-swap's config.yaml: models, aliases, macros, ttl, groups, keys, peers.

    What cannot be said in a configuration of ours is named on stderr with its line, and the exit code is 12.
    Relative paths are taken from the folder that a file lies in: write the result beside FILE.
    """
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigNotFound(f"{source}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
    imported = from_llama_swap(text, source.name)
    if output is None:
        click.echo(imported.text, nl=False)
    else:
        write_new(output, imported.text, force=force)
    for remark in imported.remarks:
        _say(source, remark)
    _check(imported.text, output or Path("the result"))
    if imported.partial:
        raise ImportPartial(
            f"{sum(remark.lost for remark in imported.remarks)} things of {source} are not in the result"
        )


def _say(source: Path, remark: Remark) -> None:
    level = click.style("not converted", fg="yellow") if remark.lost else "note"
    click.echo(f"{source}:{remark.line}: {level}: {remark.field}: {remark.text}", err=True)


def _check(text: str, path: Path) -> None:
    """Two aliases that are the same, a name with a space: llama-swap may allow what we do not."""
    try:
        parse(text, path)
    except ConfigInvalid as error:
        click.secho("The result needs your hand:", fg="red", err=True)
        raise error
