"""What a load costs those that are being served: the 99th percentile of one model's token gaps while another loads.

    python -m benchmarks.load_guard [--json] [--rounds 3] [--model models/smollm2] [--big FOLDER] [--engine torch]

`rewarm serve` runs with two models: SmolLM2, which two clients stream from without a pause, and one of 2.93 GB
(:mod:`benchmarks._synthetic`; made in FOLDER and kept there, else in a temporary one). In each round, once with
`worker.load_guard: on` and once with `off`, the gaps between tokens are measured for a while; then an operator wakes
the large model (nobody waits for it: a load that somebody waits for is not held back), whose files were dropped from
the page cache, and they are measured until it is ready. A fresh fleet each
time, in turns. Medians of the rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks._http import get
from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import ROOT, Program, free_port, running, wait_for_port
from benchmarks._stats import median, quantile
from benchmarks._synthetic import make
from gateway import TOKEN_HEADER, token_path
from rewarm.paths import Paths

CLIENTS = 2
TOKENS = 48
BEFORE_S = 25.0
LOADS_WITHIN_S = 400.0
_BODY = {"model": "small", "stream": True, "temperature": 0, "max_tokens": TOKENS}

_BIG = {"context_length": 128, "sleep_after": "1h", "starting_stall": "10m", "warming_stall": "10m"}
"""Its warm-up computes for long on a few cores, which is no stall."""


@dataclass
class Gaps:
    """Between tokens: (when, seconds)."""

    seen: list[tuple[float, float]] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[float]:
        return [gap for at, gap in self.seen if start <= at <= end]


def stream(port: int, gaps: Gaps, stop: threading.Event, number: int) -> None:
    """Ask again and again until told to stop."""
    count = 0
    while not stop.is_set():
        count += 1
        question = {"role": "user", "content": f"Count to one hundred, in words. This is question {number}-{count}."}
        body = json.dumps(_BODY | {"messages": [question]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
            last, rest = 0.0, b""
            while piece := connection.recv(65536):
                now = time.monotonic()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {") and b'"content"' in line:
                        if last:
                            gaps.seen.append((now, now - last))
                        last = now


@contextlib.contextmanager
def serving(folder: Path, small: Path, big: Path, guard: str, engine: str) -> Iterator[tuple[Program, int]]:
    port = free_port()
    common: dict[str, Any] = {"engine": engine, "context_length": 512, "idle_after": "1h", "snapshot": "off"}
    data = {
        "fleet": "benchmark",
        "state_dir": str(folder / "state"),
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "worker": {"load_guard": guard},
        "pool": {"enabled": "off"},
        "models": {
            "small": common | {"source": str(small), "slots": CLIENTS},
            "big": common | {"source": str(big), "slots": 1, "dtype": "bfloat16"} | _BIG,
        },
    }
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump(data))
    with running("serve", [sys.executable, "-m", "rewarm", "serve", str(config)], folder) as program:
        wait_for_port(program, port)
        yield program, port


def state(port: int, model: str) -> str:
    return str(get(port, "/rewarm/v1/status")["models"][model]["state"])


def until(program: Program, port: int, model: str, wanted: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while (found := state(port, model)) != wanted:
        program.alive()
        if found == "failed" or time.monotonic() > deadline:
            raise RuntimeError(f"{model} is {found}, not {wanted}:\n{program.tail()}")
        time.sleep(0.2)


def forget(folder: Path) -> None:
    """Out of the page cache: the disk has to deliver."""
    for path in folder.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def wake(port: int, model: str) -> None:
    """By a request that does not wait for it."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", "X-Rewarm-Max-Wait": "0"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with contextlib.suppress(urllib.error.HTTPError):  # 503: it is loading
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30).close()


def command(folder: Path, port: int, kind: str, model: str) -> None:
    """As an operator."""
    token = token_path(Paths.at(folder / "state")).read_text().strip()
    headers = {"Content-Type": "application/json", TOKEN_HEADER: token}
    url = f"http://127.0.0.1:{port}/rewarm/v1/commands"
    body = json.dumps({"kind": kind, "target": model}).encode()
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30).close()


def one(small: Path, big: Path, guard: str, engine: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rewarm-guard-") as name:
        folder = Path(name)
        with serving(folder, small, big, guard, engine) as (program, port):
            wake(port, "small")
            until(program, port, "small", "ready", 300)
            gaps, stop = Gaps(), threading.Event()
            clients = [
                threading.Thread(target=stream, args=(port, gaps, stop, number), daemon=True)
                for number in range(CLIENTS)
            ]
            for client in clients:
                client.start()
            try:
                time.sleep(5)  # both stream
                forget(big)
                begin = time.monotonic()
                time.sleep(BEFORE_S)
                woken = time.monotonic()
                command(folder, port, "wake", "big")
                until(program, port, "big", "ready", LOADS_WITHIN_S)
                ready = time.monotonic()
            finally:
                stop.set()
                for client in clients:
                    client.join(60)
    before, during = gaps.between(begin, woken), gaps.between(woken, ready)
    return {
        "before_p50_ms": quantile(before, 0.5) * 1000,
        "before_p99_ms": quantile(before, 0.99) * 1000,
        "during_p50_ms": quantile(during, 0.5) * 1000,
        "during_p99_ms": quantile(during, 0.99) * 1000,
        "ratio_p99": quantile(during, 0.99) / quantile(before, 0.99),
        "load_s": ready - woken,
        "gaps_during": float(len(during)),
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2")
    parser.add_argument("--big", type=Path, help="where the large model is, or is made")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rewarm-big-") as name:
        big = make(options.big or Path(name) / "big", options.model)
        found: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
        for number in range(options.rounds):
            for guard in ("on", "off") if number % 2 == 0 else ("off", "on"):
                measured = one(options.model, big, guard, options.engine)
                note(f"round {number + 1}, guard {guard}: {json.dumps({k: round(v, 2) for k, v in measured.items()})}")
                found[guard].append(measured)
    summary = {
        guard: {name: round(median([one[name] for one in rounds]), 2) for name in rounds[0]}
        for guard, rounds in found.items()
    }
    rows = [
        (
            f"guard {guard}",
            *(f"{result[name]:.1f}" for name in ("before_p50_ms", "before_p99_ms", "during_p50_ms", "during_p99_ms")),
            f"{result['ratio_p99']:.2f}",
            f"{result['load_s']:.1f}",
        )
        for guard, result in summary.items()
    ]
    columns = ("", "p50 before, ms", "p99 before, ms", "p50 during, ms", "p99 during, ms", "p99 ×", "load, s")
    result: dict[str, Any] = {"rounds": options.rounds, "engine": options.engine, "guard": summary, "all": found}
    shown = table("Token gaps of one model while another of 2.93 GB loads", columns, rows)
    emit("load_guard", result, [shown], options.json)


if __name__ == "__main__":
    main()
