"""The tests' side of ``engine_program``."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answers:
    """``tiers``: what was loaded from, one after the other; more than one where damage was found after the load."""

    tokens: list[list[int]]
    logprobs: list[list[dict[str, float]]]
    tiers: list[str]
    reasons: list[str]  # of the last load
    bytes: list[tuple[int, int]]
    graphs: dict[str, int]  # taken from inductor's cache ("hit"), compiled ("miss")


class EngineFailed(Exception):
    pass


class Engines:
    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._numbers = itertools.count()

    def answers(
        self, model: Path, load_format: str = "auto", extra: Mapping[str, Any] | None = None, **more: Any
    ) -> Answers:
        options = {"model": str(model), "load_format": load_format, "model_loader_extra_config": dict(extra or {})}
        options |= more
        said = self._do("answers", options)
        each = said["answers"]
        return Answers(
            [one["tokens"] for one in each],
            [one["logprobs"] for one in each],
            [load["tier"] for load in said["loads"]],
            said["loads"][-1]["reasons"] if said["loads"] else [],
            [(done, total) for done, total in said["bytes"]],
            said["graphs"],
        )

    def capture(self, model: Path, store: Path, *flavours: str, name: str = "smollm2", **more: Any) -> list[str]:
        options = {"model": str(model), "store": str(store), "name": name, "flavours": flavours, **more}
        made: list[str] = self._do("capture", options)["made"]
        return made

    def _do(self, what: str, options: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        result, log = self._folder / f"{number}.json", self._folder / f"{number}.log"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"do": what, "options": options, "result": str(result), "log": str(log)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        # A test that ran out of time has left its own answer unread.
        while json.loads(self._process.stdout.readline() or "{}").get("done", str(result)) != str(result):
            pass
        if not result.exists():
            raise EngineFailed(f"the engine was killed\n{log.read_text()[-3000:] if log.exists() else ''}")
        said: dict[str, Any] = json.loads(result.read_text())
        if "failed" in said:
            raise EngineFailed(said["failed"])
        return said


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[Engines]:
    with (folder / "program.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.rewarm_vllm.engine_program", str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), (folder / "program.log").read_text()[-3000:]
        yield Engines(process, folder)
    finally:
        process.kill()
        process.communicate()
