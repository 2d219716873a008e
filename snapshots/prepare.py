"""``python -m snapshots.prepare TARGET``: make a checkpoint folder, with a progress bar, or JSON lines for programs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from snapshots.errors import CheckpointError, PrepareFailed
from snapshots.gguf import prepare_gguf, prepare_smollm2
from snapshots.publish import Report, Step


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the folder is complete, 1 when it could not be made, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m snapshots.prepare", description=__doc__)
    parser.add_argument("target", type=Path, help="the folder to make; its parent is made too")
    parser.add_argument("--gguf", type=Path, help="the GGUF file to convert; by default SmolLM2's, from its wheel")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a progress bar")
    options = parser.parse_args(argv)
    # The conversion reads local files only; a hub that does not answer must not hold it up.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        made = _run(options.target, options.gguf, as_json=options.json)
    except (PrepareFailed, CheckpointError) as error:
        if options.json:
            _line({"error": str(error)})
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        _line({"target": str(options.target.absolute()), "made": made})
    return 0


def _run(target: Path, gguf: Path | None, *, as_json: bool) -> bool:
    if as_json:
        return _prepare(
            target, gguf, lambda step: _line({"fraction": round(step.fraction, 3), "message": step.message})
        )
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:30}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("preparing", total=1.0)

        def report(step: Step) -> None:
            progress.update(task, completed=step.fraction, description=step.message[-60:])

        return _prepare(target, gguf, report)


def _prepare(target: Path, gguf: Path | None, report: Report) -> bool:
    return prepare_smollm2(target, report) if gguf is None else prepare_gguf(gguf, target, report)


def _line(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main())
