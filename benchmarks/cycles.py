"""Whether waking and sleeping leaves anything behind: wake, answer, sleep, wake by a request, answer, stop; again.

    python -m benchmarks.cycles [--json] [--cycles 1000] [--model models/smollm2]

One `rewarm serve` with three models of a real vLLM, in turn. Every answer has to be the one that the model gave first.
Told are how far off the time to go was half-way through the wakes, the memory of the agent, of the zygote and of all
that the pool holds ready (PSS: what they share, divided by who shares it; without pages of files, of which a share
comes and goes with any other program that maps the same libraries), the agent's descriptors, and what is left of
processes and files when the last model is at zero.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import ROOT
from benchmarks._stats import median
from benchmarks._wakes import Serve, serving
from benchmarks.cold_start import best_dtype
from worker.procs import unfiled_bytes

MODELS = ("one", "two", "three")
CYCLES_BEFORE = 2  # of each model, until nothing is new: snapshots, preparations, first allocations
TARGET_BYTES = 2**20
"""Most that agent and zygote may grow in 100 cycles. The rest of the pool lives a few cycles at most."""

_TEMPORARY = re.compile(r"rewarm-vllm-|vllm_dist_|torch_")


@dataclass(frozen=True)
class Held:
    """What agent and pool hold while every model is at zero. ``cycle``: after so many."""

    cycle: int
    agent_bytes: int
    zygote_bytes: int
    pool_bytes: int  # of all its processes
    processes: int
    agent_descriptors: int
    files: tuple[str, ...]


def held(serve: Serve, folder: Path, cycle: int) -> Held:
    serve.settle()
    agent = next(p for p in psutil.Process(serve.program.pid).children() if "worker" in p.cmdline())
    pool: list[int] = []
    while not pool or not all(pool):  # one that ended meanwhile has none
        pool = [unfiled_bytes(process.pid) for process in agent.children(recursive=True)]
    return Held(
        cycle,
        unfiled_bytes(agent.pid),
        sum(unfiled_bytes(report["pid"]) for report in serve.pools()),
        sum(pool),
        len(pool),
        agent.num_fds(),
        tuple(_files(folder)),
    )


def _files(folder: Path) -> list[str]:
    """Of replicas in the run folder, and of engines in the temporary one."""
    run = [path.name for path in (folder / "state-cycles" / "run").iterdir() if path.suffix in (".sock", ".host")]
    gone = [name for name in run if not name.startswith("redis")]
    return sorted(gone + [path.name for path in (folder / "tmp").iterdir() if _TEMPORARY.match(path.name)])


def cycle(serve: Serve, model: str) -> tuple[list[str], float | None]:
    """One; its answers, and how far off the time to go was half-way through the wake."""
    wake = serve.wake(model)
    answers = [wake.stream.text, serve.wake_from_sleep(model).text]
    serve.stop(model)
    return answers, wake.eta_error


def run(cycles: int, model: Path, dtype: str, every: int) -> dict[str, Any]:
    entry = {"engine": "vllm", "source": str(model), "slots": 2, "context_length": 512, "idle_after": "1h"}
    entry |= {"dtype": dtype}
    with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        with serving("cycles", folder, dict.fromkeys(MODELS, entry), tmp=folder / "tmp") as serve:
            first: dict[str, str] = {}
            for one in MODELS:
                serve.pack(one)
                for _ in range(CYCLES_BEFORE):
                    serve.settle()
                    first[one] = cycle(serve, one)[0][0]
            looks = [held(serve, folder, 0)]
            wrong, errors = 0, list[float]()
            began = time.monotonic()
            for number in range(1, cycles + 1):
                one = MODELS[number % len(MODELS)]
                answers, error = cycle(serve, one)
                wrong += sum(answer != first[one] for answer in answers)
                errors += [] if error is None else [abs(error)]
                if number % every == 0 or number == cycles:
                    looks.append(held(serve, folder, number))
                    note(f"{number} of {cycles} cycles, {wrong} wrong answers, {looks[-1]}")
            took_s = time.monotonic() - began
    return {
        "cycles": cycles,
        "models": len(MODELS),
        "model": model.name,
        "dtype": dtype,
        "answers": 2 * cycles,
        "wrong_answers": wrong,
        "eta_wakes": len(errors),
        "eta_median_error": round(median(errors), 3) if errors else None,
        "seconds_a_cycle": round(took_s / cycles, 2),
        "growth_bytes_per_100": round(growth(looks)),
        "target_bytes_per_100": TARGET_BYTES,
        "met": not wrong and growth(looks) <= TARGET_BYTES and looks[-1].processes <= looks[0].processes,
        "held": [asdict(look) for look in looks],
    }


def growth(looks: Sequence[Held]) -> float:
    """Bytes of agent and zygote in 100 cycles: the slope of the line through all looks (least squares)."""
    xs = [look.cycle / 100 for look in looks]
    ys = [look.agent_bytes + look.zygote_bytes for look in looks]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    below = sum((x - middle_x) ** 2 for x in xs)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / below if below else 0.0


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="cycles between two looks at what is held")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="folder of the checkpoint")
    parser.add_argument("--dtype", default=best_dtype())
    args = parser.parse_args()
    result = run(args.cycles, args.model.resolve(), args.dtype, args.every)
    rows = [
        [
            str(look["cycle"]),
            f"{look['agent_bytes'] / 2**20:.1f}",
            f"{look['zygote_bytes'] / 2**20:.1f}",
            f"{look['pool_bytes'] / 2**20:.1f}",
            str(look["processes"]),
            str(look["agent_descriptors"]),
            ", ".join(look["files"]) or "none",
        ]
        for look in result["held"]
    ]
    columns = ["cycles", "agent, MiB", "zygote, MiB", "pool, MiB", "processes", "descriptors", "files"]
    caption = f"{result['wrong_answers']} of {result['answers']} answers were others than the first; "
    caption += f"growth {result['growth_bytes_per_100'] / 2**20:.2f} MiB in 100 cycles"
    emit("cycles", result, [table("Held with every model at zero", columns, rows, caption)], args.json)


if __name__ == "__main__":
    main()
