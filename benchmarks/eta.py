"""How right the ETA is half-way through a wake: fifty wakes of three models whose every start takes another while.

    python -m benchmarks.eta [--json] [--wakes 50]

`rewarm serve` runs with three models of the fake engine: one that mostly starts, one that mostly reads weights, one
that gives no sign between. Each start varies: a factor of its own (σ 0.08, log-normal), one for each phase (σ 0.10),
and one start in 25 has a phase that takes four times as long. Each model is woken three times before anything counts:
that is its history. Then they are woken in turn, and what `GET /v1/models` tells is written down twenty times a second.

The error is of what was told at the middle of the time from the engine's start to ready, against what was really left,
as a share of it; 0.1 is a tenth. Beside it stands the agent's own account of the same (`rewarm ps --last`).
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks._http import get, post
from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import ROOT, Program, free_port, running, wait_for_port
from benchmarks._stats import median, quantile

TARGET = 0.20
HISTORY = 3  # wakes of each model before anything counts
_LOOK_EVERY_S = 0.05
_ENGINE = str(ROOT / "benchmarks" / "_varying_engine.py")


def models(folder: Path) -> dict[str, dict[str, Any]]:
    """Name → its section of the configuration."""
    out: dict[str, dict[str, Any]] = {}
    for name, megabytes, knobs in (
        ("starts", 10, ("--start", "4.0", "--settle", "0.5")),
        ("reads", 120, ("--start", "1.0", "--mbps", "35", "--settle", "0.5")),
        ("silent", 0, ("--start", "3.0", "--settle", "2.0")),
    ):
        cmd = [sys.executable, _ENGINE, "--port", "${PORT}", *knobs]
        section: dict[str, Any] = {"engine": "command", "slots": 2, "memory": "64MiB", "idle_after": "1h"}
        if megabytes:
            weights = folder / f"{name}.bin"
            weights.write_bytes(random.randbytes(megabytes * 10**6))
            cmd += ["--read", str(weights)]
            section["source"] = str(weights)
        out[name] = {**section, "cmd": cmd}
    return out


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Program, int]]:
    port = free_port()
    config = folder / "serve.yaml"
    data = {
        "fleet": "benchmark",
        "state_dir": str(folder / "state"),
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "models": models(folder),
    }
    config.write_text(yaml.safe_dump(data))
    with running("serve", [sys.executable, "-m", "rewarm", "serve", str(config)], folder) as program:
        wait_for_port(program, port)
        _until(program, lambda: bool(get(port, "/rewarm/v1/status")["workers"]), "a worker reports")
        yield program, port


def _until(program: Program, condition: Any, what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        program.alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}\n{program.tail()}")
        time.sleep(0.05)


@dataclass
class Wake:
    model: str
    took_s: float
    shown: float | None  # error of what was shown half-way, told less true, as a share of the true; None: nothing was
    agents: float | None  # the agent's own account


def wake(program: Program, port: int, model: str) -> Wake:
    """One request wakes the model; then it is put to sleep again."""
    seen: list[tuple[float, float]] = []
    began_at = 0.0
    asked = threading.Thread(target=_ask, args=(port, model))
    asked.start()
    while True:
        now = time.perf_counter()
        told = get(port, f"/v1/models/{model}")["rewarm"]
        if told["state"] == "ready":
            break
        if told["phase"] not in (None, "cold"):
            began_at = began_at or now
            if told["eta_s"] is not None:
                seen.append((now - began_at, told["eta_s"]))
        program.alive()
        time.sleep(_LOOK_EVERY_S)
    took_s = now - began_at
    asked.join()
    replica = _replicas(port)[0]
    post(port, "/rewarm/v1/commands", {"kind": "sleep", "target": model})
    _until(program, lambda: not _replicas(port), f"{model} is gone")
    return Wake(model, took_s, _error(seen, took_s), replica["eta_error"])


def _ask(port: int, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # http only
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310  # http only
        answer.read()


def _replicas(port: int) -> list[Any]:
    status = get(port, "/rewarm/v1/status")
    return [r for worker in status["workers"] for r in worker["replicas"] if r["state"] != "stopped"]


def _error(seen: list[tuple[float, float]], took_s: float) -> float | None:
    half = took_s / 2
    before = [(at, eta) for at, eta in seen if at <= half]
    if not before:
        return None
    at, eta = before[-1]
    return (max(0.0, eta - (half - at)) - half) / half


def run(wakes: int) -> dict[str, Any]:
    done: list[Wake] = []
    with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as name:
        with serving(Path(name)) as (program, port):
            names = list(get(port, "/rewarm/v1/status")["models"])
            for index in range(HISTORY * len(names)):
                note(f"history: {index + 1} of {HISTORY * len(names)}")
                wake(program, port, names[index % len(names)])
            for index in range(wakes):
                done.append(wake(program, port, names[index % len(names)]))
                note(f"wake {index + 1} of {wakes}: {done[-1]}")
    shown = [abs(one.shown) for one in done if one.shown is not None]
    return {
        "rounds": 1,
        "wakes": len(done),
        "history": HISTORY,
        "target": TARGET,
        "median_error": round(median(shown), 3),
        "p90_error": round(quantile(shown, 0.9), 3),
        "without_a_guess": sum(one.shown is None for one in done),
        "agents_median_error": round(median([abs(one.agents) for one in done if one.agents is not None]), 3),
        "models": [_of(name, [one for one in done if one.model == name]) for name in names],
        "met": median(shown) <= TARGET,
    }


def _of(name: str, wakes: list[Wake]) -> dict[str, Any]:
    took = [one.took_s for one in wakes]
    shown = [abs(one.shown) for one in wakes if one.shown is not None]
    return {
        "name": name,
        "wakes": len(wakes),
        "took_median_s": round(median(took), 2),
        "took_min_s": round(min(took), 2),
        "took_max_s": round(max(took), 2),
        "median_error": round(median(shown), 3),
        "p90_error": round(quantile(shown, 0.9), 3),
    }


def tables(result: dict[str, Any]) -> list[Any]:
    rows = [
        [
            row["name"],
            str(row["wakes"]),
            f"{row['took_median_s']:.1f} ({row['took_min_s']:.1f} – {row['took_max_s']:.1f})",
            f"{row['median_error']:.0%}",
            f"{row['p90_error']:.0%}",
        ]
        for row in result["models"]
    ]
    rows.append(["all", str(result["wakes"]), "", f"{result['median_error']:.0%}", f"{result['p90_error']:.0%}"])
    caption = f"target: a median of {result['target']:.0%}: {'met' if result['met'] else 'missed'}; by the agent's own "
    caption += f"account {result['agents_median_error']:.0%}"
    columns = ["model", "wakes", "seconds", "median error half-way", "p90"]
    return [table("How right the ETA is half-way", columns, rows, caption)]


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--wakes", type=int, default=50, help="that count, of all three models together")
    args = parser.parse_args()
    result = run(args.wakes)
    emit("eta", result, tables(result), args.json)


if __name__ == "__main__":
    main()
