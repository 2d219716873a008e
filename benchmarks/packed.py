"""Packed weights against vLLM's default loader: time to load, memory of one's own, sharing, tokens a second.

``python -m benchmarks.packed --json [--rounds 3] [--folder DIR]``. A synthetic Llama of 1.46 billion parameters
(2.93 GB), captured once, then loaded in turn by engines of a process each. For tokens a second one engine of each kind
lives, and they answer in turns, in changing order: on a machine that others use, nothing else can be compared. Engines
run on all cores but one, as a worker's do. Needs 10 GB of disk, 10 GB of memory, vLLM on the CPU, and
``models/smollm2`` for a tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _output, _synthetic
from benchmarks._packed_engine import KV_BYTES
from benchmarks._processes import ROOT, die_with_us
from benchmarks._stats import median
from snapshots import Flavour, Reference, SnapshotNotFound, Store

_CONTEXT = "1024"
_TARGETS = {"load_s": 0.2, "private_mb": 150.0}


class Engine:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.started = self._line()

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM's log comes this way too
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"the engine ended with status {self._process.wait()}")


@contextlib.contextmanager
def _engine(model: Path, load_format: str, extra: dict[str, Any], log: Path) -> Iterator[Engine]:
    argv = [sys.executable, "-m", "benchmarks._packed_engine", str(model), load_format, json.dumps(extra)]
    threads = max(1, (os.cpu_count() or 2) - 1)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TMPDIR": str(log.parent)}
    with log.open("a") as errors:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=die_with_us,
        )
    try:
        yield Engine(process)
    finally:
        process.kill()
        process.communicate()


def _captured(store: Store, model: Path) -> Path:
    """The packed snapshot's weight file. Made if it is not there."""
    wanted = Reference(model.name, flavour=Flavour.PACKED)
    try:
        found = store.find(wanted)
    except SnapshotNotFound:
        _output.note("capturing")
        argv = [sys.executable, "-m", "rewarm_vllm", str(model), "--store", str(store.root), "--flavour", "packed"]
        done = subprocess.run([*argv, "--max-model-len", _CONTEXT], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the capture failed:\n{done.stderr[-3000:]}") from None
        found = store.find(wanted)
    assert found.manifest is not None
    return found.folder / found.manifest.weight_files[0].name


def _warm(files: list[Path]) -> None:
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.read(16 * 2**20):
                pass


def _cool(file: Path) -> None:
    os.sync()
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _one(engine: Engine) -> dict[str, float]:
    before, answer, after = engine.started["before"], engine.ask("answer"), engine.ask("memory")
    return {
        "load_s": engine.started["load_s"],
        "first_token_s": answer["first_token_s"],
        # From before the load to after an answer, less the KV cache: weights, and whatever a pass leaves.
        "private_mb": (after["anonymous"] - before["anonymous"] - KV_BYTES) / 1e6,
        "_digest": hash(tuple(answer["tokens"])),
    }


def _in_turns(default: Engine, packed: Engine, turns: int) -> list[tuple[float, float]]:
    """Tokens a second of both, as many times; who comes first changes."""
    out = []
    for number in range(turns):
        order = ((0, default), (1, packed)) if number % 2 == 0 else ((1, packed), (0, default))
        speeds = [0.0, 0.0]
        for place, engine in order:
            speeds[place] = engine.ask("answer")["tokens_per_s"]
        out.append((speeds[0], speeds[1]))
    return out


def _pair(start: Any) -> dict[str, Any]:
    with start() as one, start() as two:
        for engine in (one, two):
            engine.ask("answer")
        memories = [engine.ask("memory") for engine in (one, two)]
        grown = [m["anonymous"] - e.started["before"]["anonymous"] for m, e in zip(memories, (one, two), strict=True)]
    return {
        "pss_mb": [round(m["pss"] / 1e6) for m in memories],
        "rss_mb": [round(m["rss"] / 1e6) for m in memories],
        "private_mb": [round((growth - KV_BYTES) / 1e6) for growth in grown],
    }


def main() -> int:
    parser = _output.arguments(__doc__, rounds=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/packed"), help="model and store; kept")
    options = parser.parse_args()
    model = _synthetic.make(options.folder / "synthetic", ROOT / "models" / "smollm2")
    store = Store(options.folder / "store", floor_bytes=2**30)
    packed_file = _captured(store, model)
    sources = sorted(model.glob("*.safetensors"))
    log = options.folder / "engines.log"
    ours = {"store": str(store.root), "name": model.name}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {"default": ("auto", {}), "packed": ("rewarm", ours)}
    rounds: dict[str, list[dict[str, float]]] = {"default": [], "packed": [], "packed, cold": []}
    for number in range(options.rounds):
        for kind, (load_format, extra) in kinds.items():
            _output.note(f"round {number + 1}: {kind}")
            _warm([packed_file] if kind == "packed" else sources)
            with _engine(model, load_format, extra, log) as engine:
                rounds[kind].append(_one(engine))
        _output.note(f"round {number + 1}: packed, cold")
        _cool(packed_file)
        with _engine(model, "rewarm", ours, log) as engine:
            rounds["packed, cold"].append(_one(engine))
    _output.note("two engines on one snapshot")
    pair = _pair(lambda: _engine(model, "rewarm", ours, log))
    _output.note("tokens a second, in turns")
    with _engine(model, *kinds["default"], log) as default, _engine(model, *kinds["packed"], log) as packed:
        turns = _in_turns(default, packed, 4 * options.rounds)
    answers = {measured["_digest"] for each in rounds.values() for measured in each}
    result = _result(rounds, pair, turns, same_answers=len(answers) == 1)
    _output.emit("packed", result, [_table(result)], options.json)
    return 0 if all(target["met"] for target in result["targets"].values()) else 1


def _result(
    rounds: dict[str, list[dict[str, float]]],
    pair: dict[str, Any],
    turns: list[tuple[float, float]],
    *,
    same_answers: bool,
) -> dict[str, Any]:
    figures = ("load_s", "first_token_s", "private_mb")
    engines = {
        kind: {name: round(median([one[name] for one in each]), 3) for name in figures} for kind, each in rounds.items()
    }
    ratios = [packed / default for default, packed in turns]
    shared = sum(pair["pss_mb"]) / sum(pair["rss_mb"])
    targets = {
        "load_s_warm": (engines["packed"]["load_s"], _TARGETS["load_s"]),
        "private_mb": (engines["packed"]["private_mb"], _TARGETS["private_mb"]),
    }
    checks = {
        name: {"value": value, "at_most": limit, "met": value <= limit} for name, (value, limit) in targets.items()
    }
    speed = round(median(ratios), 3)
    checks["tokens_per_s_to_default"] = {"value": speed, "at_least": 1.0, "met": speed >= 1.0}
    checks["pss_to_rss_of_two"] = {"value": round(shared, 3), "at_most": 0.75, "met": shared <= 0.75}
    checks["same_answers"] = {"value": same_answers, "met": same_answers}
    speeds = {
        "default": round(median([default for default, _ in turns]), 2),
        "packed": round(median([packed for _, packed in turns]), 2),
        "ratios": sorted(round(ratio, 3) for ratio in ratios),
    }
    return {
        "engines": engines,
        "tokens_per_s_in_turns": speeds,
        "two_engines": pair,
        "targets": checks,
        "rounds": len(rounds["packed"]),
    }


def _table(result: dict[str, Any]) -> Any:
    columns = ("engine", "load s", "first token s", "own memory MB")
    rows = [[kind, *(f"{value:.3g}" for value in figures.values())] for kind, figures in result["engines"].items()]
    pair = result["two_engines"]
    speeds = result["tokens_per_s_in_turns"]
    caption = (
        f"two engines: PSS {pair['pss_mb']} MB, grown by {pair['private_mb']} MB of their own; tokens/s in turns: "
        f"default {speeds['default']}, packed {speeds['packed']}, ratio {median(speeds['ratios']):.2f}"
    )
    return _output.table("Packed weights", columns, rows, caption)


if __name__ == "__main__":
    sys.exit(main())
