"""The rounds: every reader once in each, in an order that moves, cold first and then warm."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapshots.bench import child, fio
from snapshots.bench.data import bring_into_cache, drop_from_cache, make
from snapshots.bench.report import summarise
from snapshots.linux import cached_fraction

PEERS = {  # and the module that each needs
    "safetensors": "safetensors",
    "safetensors_unfaulted": "safetensors",
    "fastsafetensors": "fastsafetensors",
    "runai_model_streamer": "runai_model_streamer",
}
COLD = ("rewarm", "rewarm_no_digests", "rewarm_unfaulted", *PEERS)
WARM = ("rewarm", "rewarm_no_digests", "rewarm_unfaulted", "rewarm_map", *PEERS)


@dataclass(frozen=True, slots=True)
class Sample:
    round: int
    seconds: float
    cpu_s: float


class _Process:
    """One reader's process; asked again and again."""

    def __init__(self, python: str, reader: str, path: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(Path(child.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        command = [python, str(child.__file__), reader, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def read(self, *, cold: bool) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"cold": cold}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: its last words say why
        line = self._process.stdout.readline()
        if not line:
            _, error = self._process.communicate()
            raise OSError(error.strip().splitlines()[-1] if error.strip() else "the reader ended without a word")
        answer = json.loads(line)
        return answer["seconds"], answer["cpu_s"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Bench:
    """``peers``: interpreters of environments that hold a peer, by its name; others are looked for in our own.
    ``only``: these readers (and fio), not all."""

    def __init__(
        self,
        folder: Path,
        *,
        gb: float = 3.0,
        rounds: int = 7,
        peers: dict[str, str] | None = None,
        only: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder, self._size, self._rounds = folder, int(gb * 1e9), rounds
        self._peers, self._only, self._say = peers or {}, only, say

    def run(self) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="rewarm-bench-", dir=self._folder))
        try:
            self._say("writing the weights to read")
            path = make(root / "store", self._size)
            return self._measure(path)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _measure(self, path: Path) -> dict[str, Any]:
        missing: dict[str, str] = {}
        best: list[fio.Setting] = []
        swept: dict[str, float] = {}
        if fio.available():
            self._say("fio: looking for its best settings")
            best, swept = fio.best(path)
        if not best:
            missing["fio"] = "not installed, or it cannot read this file"
        with self._processes(path, missing) as processes:
            cold = self._rounds_of(COLD, processes, path, best, missing, cold=True)
            warm = self._rounds_of(WARM, processes, path, [], missing, cold=False)
        return summarise(
            path.stat().st_size,
            self._rounds,
            cold,
            warm,
            missing=missing,
            fio={"best": [setting.name for setting in best], "sweep_s": swept},
        )

    @contextmanager
    def _processes(self, path: Path, missing: dict[str, str]) -> Iterator[dict[str, _Process]]:
        processes: dict[str, _Process] = {}
        try:
            for reader in dict.fromkeys((*COLD, *WARM)):
                if self._only and reader not in self._only:
                    continue
                python = self._python(reader)
                if python is None:
                    missing[reader] = "not installed"
                else:
                    processes[reader] = _Process(python, reader, path)
            yield processes
        finally:
            for process in processes.values():
                process.close()

    def _python(self, reader: str) -> str | None:
        if reader in self._peers:
            return self._peers[reader]
        if reader in PEERS and any(importlib.util.find_spec(name) is None for name in (PEERS[reader], "torch")):
            return None
        return sys.executable

    def _rounds_of(
        self,
        readers: Sequence[str],
        processes: dict[str, _Process],
        path: Path,
        best: Sequence[fio.Setting],
        missing: dict[str, str],
        *,
        cold: bool,
    ) -> dict[str, list[Sample]]:
        names = [*(["fio"] if best else []), *(name for name in readers if name in processes)]
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        word = "cold" if cold else "warm"
        for number in range(self._rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                if name in missing:
                    continue
                self._say(f"{word}, round {number + 1} of {self._rounds}: {name}")
                self._prepare(path, cold=cold)
                try:
                    if name == "fio":
                        seconds, cpu_s = fio.read_best(path, list(best))
                    else:
                        seconds, cpu_s = processes[name].read(cold=cold)
                except OSError as error:
                    missing[name] = str(error)
                    continue
                samples[name].append(Sample(number, seconds, cpu_s))
        return {name: found for name, found in samples.items() if found}

    @staticmethod
    def _prepare(path: Path, *, cold: bool) -> None:
        if not cold:
            bring_into_cache(path)
            return
        drop_from_cache(path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            left = cached_fraction(descriptor)
        finally:
            os.close(descriptor)
        if left > 0.01:
            raise OSError(f"{path}: {left:.0%} of it stay in the page cache: somebody has it mapped")
