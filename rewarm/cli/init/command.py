"""The command: looks, writes one file, says what to do next."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import click

from rewarm.cli.files import write_new
from rewarm.cli.init.find import Found, find_models
from rewarm.cli.init.write import Place, Programs, write
from rewarm.config import parse


@click.command(short_help="Write a configuration from what is on this machine.")
@click.argument(
    "folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("-o", "--output", default="rewarm.yaml", show_default=True, help="File to write; - is stdout.")
@click.option("--force", is_flag=True, help="Replace it.")
def init(folders: tuple[Path, ...], output: str, force: bool) -> None:
    """Write a commented configuration from what is on this machine: memory, GPUs, and the models found in the Hugging
    Face cache, in Ollama's store, and in the FOLDERs, or without any where llama.cpp, LM Studio and people keep them.

    Nothing is started or downloaded, and no file is replaced without --force.
    """
    found = find_models(folders, os.environ, Path.home())
    text = write(found, _places(), _programs())
    served = len(parse(text, Path(output)).models)
    if output == "-":
        click.echo(text, nl=False)
    else:
        write_new(Path(output), text, force=force)
        _say_next(Path(output), found, served)


def _places() -> list[Place]:
    from worker import devices_here

    return [Place(f"{d.label} {d.name}".strip(), d.total_bytes, d.budget_bytes) for d in devices_here()]


def _programs() -> Programs:
    return Programs(
        vllm=importlib.util.find_spec("vllm") is not None,
        torch=all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers")),
        llama_server=shutil.which("llama-server"),
    )


def _say_next(path: Path, found: list[Found], served: int) -> None:
    left = len(found) - served
    click.echo(f"{path}: {served} of {len(found)} models found are served" if found else f"{path}: no model was found")
    if left:
        click.echo(f"The other {left} stand in it as comments, each with the reason.")
    if served:
        click.echo(f"Next: rewarm serve {path}")
    else:
        click.echo(
            f"Next: name a model in {path} (it says how), fetch one with `rewarm pull hf:org/name`,\n"
            "      or give the folder of yours: rewarm init FOLDER"
        )
