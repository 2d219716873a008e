"""What a model that fits nowhere costs the others: the latency of two that serve while it is asked for, and while not.

    python -m benchmarks.never_fits [--json] [--rounds 5] [--asked 50]

`rewarm serve` runs with memory for two small models, both loaded, and a third that is larger than the whole budget.
Requests go to the two in turns, one after the other, over a connection each. In each round they are timed twice, in
turns: while the third one is asked for again and again, and while a model is that nobody has, so often and by a client
of the same kind: what the client itself costs is in both. Each request for the third must be a typed error, and at the
end the two must run in the same processes as at the beginning. The engines are very cheap ones
(`tests/programs/fast_engine.py`), so that what is measured is ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import PROGRAMS, Program, free_port, running, wait_for_port
from benchmarks._stats import median, quantile, spread
from gateway import TOKEN_HEADER, token_path
from rewarm.paths import Paths

SERVED = ("a", "b")
REQUESTS = 400
"""In each half of a round."""


def post(port: int, model: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    request = urllib.request.Request(  # http only
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 -- http only
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def latencies(port: int) -> list[float]:
    """Milliseconds."""
    out = []
    for number in range(REQUESTS):
        began = time.perf_counter()
        status, body = post(port, SERVED[number % 2])
        out.append((time.perf_counter() - began) * 1000)
        if status != 200:
            raise RuntimeError(f"one that serves answered {status}: {body}")
    return out


def replicas(folder: Path, port: int) -> dict[str, int]:
    """Process by model."""
    headers = {TOKEN_HEADER: token_path(Paths.at(folder / "state")).read_text().strip()}
    with urllib.request.urlopen(  # http only
        urllib.request.Request(f"http://127.0.0.1:{port}/rewarm/v1/status", headers=headers), timeout=10
    ) as answer:
        found = json.loads(answer.read())
    return {one["model"]: one["pid"] for worker in found["workers"] for one in worker["replicas"] if one["pid"]}


def serve(folder: Path, port: int) -> Path:
    engine = {"engine": "command", "idle_after": "1h", "slots": 8, "memory": "64MiB"}
    engine["cmd"] = [sys.executable, str(PROGRAMS / "fast_engine.py"), "--port", "${PORT}"]
    data = {
        "fleet": "benchmark",
        "state_dir": str(folder / "state"),
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "worker": {"memory": "200MiB"},
        "models": {
            **dict.fromkeys(SERVED, engine),
            "huge": engine | {"memory": "10GiB", "failure_memory": "1s"},  # tried anew every second
        },
    }
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump(data))
    return config


def beside_one(port: int, model: str, times: int, errors: list[tuple[int, dict[str, Any]]]) -> list[float]:
    """Of the two, while ``model`` is asked for, evenly and so often."""
    done = threading.Event()
    pause_s = 3.0 / max(1, times)

    def ask() -> None:
        for _ in range(times):
            errors.append(post(port, model))
            done.wait(pause_s)

    asking = threading.Thread(target=ask)
    asking.start()
    found: list[float] = []
    while asking.is_alive() or not found:
        found += latencies(port)
    done.set()
    asking.join()
    return found


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--asked", type=int, default=50, help="how often it is asked for, over all rounds")
    options = parser.parse_args()
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    errors: list[tuple[int, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="rewarm-never-") as name:
        folder, port = Path(name), free_port()
        argv = [sys.executable, "-m", "rewarm", "serve", str(serve(folder, port))]
        with running("serve", argv, folder) as program:
            wait_for_port(program, port)
            for model in SERVED:
                post(port, model)
            before = replicas(folder, port)
            for number in range(options.rounds):
                times = options.asked * (number + 1) // options.rounds - options.asked * number // options.rounds
                for half in ("alone", "beside") if number % 2 == 0 else ("beside", "alone"):
                    if half == "alone":
                        alone.append(beside_one(port, "nobody-has-it", times, []))
                    else:
                        beside.append(beside_one(port, "huge", times, errors))
                note(f"round {number + 1}: p50 {median(alone[-1]):.2f} ms alone, {median(beside[-1]):.2f} ms beside")
            after = replicas(folder, port)
            _check(program, errors, before, after)
    report(alone, beside, errors, options)


def _check(
    program: Program, errors: list[tuple[int, dict[str, Any]]], before: dict[str, int], after: dict[str, int]
) -> None:
    unclear = [one for one in errors if one[0] == 200 or one[1].get("reason") != "never_fits"]
    if unclear:
        raise SystemExit(f"not a clear error: {unclear[0]}\n{program.tail()}")
    if {model: after.get(model) for model in SERVED} != {model: before.get(model) for model in SERVED}:
        raise SystemExit(f"one that served was unloaded: {before} before, {after} after")


def report(alone: list[list[float]], beside: list[list[float]], errors: list[Any], options: Any) -> None:
    def figures(of: list[list[float]], share: float) -> list[float]:
        return [quantile(one, share) for one in of]

    ratios = {
        key: [b / a for a, b in zip(figures(alone, share), figures(beside, share), strict=True)]
        for key, share in (("p50", 0.5), ("p99", 0.99))
    }
    rows = [
        (
            f"{key}, ms",
            f"{median(figures(alone, share)):.2f}",
            f"{median(figures(beside, share)):.2f}",
            f"{median(ratios[key]):.2f} (±{spread(ratios[key]) * 100:.0f} %)",
        )
        for key, share in (("p50", 0.5), ("p99", 0.99))
    ]
    result = {
        "rounds": options.rounds,
        "errors": len(errors),
        "unloaded": 0,
        "alone_p50_ms": median(figures(alone, 0.5)),
        "beside_p50_ms": median(figures(beside, 0.5)),
        "alone_p99_ms": median(figures(alone, 0.99)),
        "beside_p99_ms": median(figures(beside, 0.99)),
        "ratio_p50": ratios["p50"],
        "ratio_p99": ratios["p99"],
    }
    title = f"Two models that serve, while a third that fits nowhere was asked for {len(errors)} times"
    emit(
        "never_fits",
        result,
        [table(title, ("", "beside an unknown model", "beside one that never fits", "ratio"), rows)],
        options.json,
    )


if __name__ == "__main__":
    main()
