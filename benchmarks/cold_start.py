"""How long a request waits for a model at zero, by what its engine starts from; and where that time goes.

    python -m benchmarks.cold_start [--json] [--rounds 7] [--starts stock,both,…] [--model DIR | --large] [--dtype …]

Each start takes its turn in every round, on the same machine, with the same model, precision, slots, context and
request, which is one streamed chat as curl would send it; what counts is the first token that arrives:

- `stock`: `python -m vllm.entrypoints.openai.api_server` in eager mode, from the start of its process.
- `snapshot`, `pool`, `both`: through `rewarm serve`, with the model at zero: a new process over packed weights, a
  forked one over the checkpoint, a forked one that was built ahead over packed weights.
- `agnostic`: as `both`, from a pool that has prepared no model (`pool.models: 0`).
- `cold cache`: as `both`, with the snapshot dropped from the page cache; beside it the disk's own bandwidth.
- `asleep`: the engine of `both`, put to sleep and asked.
- `torch`: the torch engine from its pool. `llama.cpp`: its server with a GGUF of the same precision, if
  `tests/llamacpp/setup.sh` has put it there.

A first round does not count: in it snapshots are made, and engines tried out in full. Medians of the others; ratios
travel between machines, seconds do not. The precision is the model's own where the CPU computes in it, else float32:
without AVX-512 a bfloat16 prefill takes seven times as long, for whoever serves it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _synthetic
from benchmarks._output import arguments, bar, emit, note, table
from benchmarks._processes import ROOT
from benchmarks._starts import LLAMA_SERVER, full_precision, llama_cpp, stock_vllm
from benchmarks._stats import median, spread
from benchmarks._stream import Stream
from benchmarks._wakes import Serve, Wake, serving

SLOTS = 4
CONTEXT = 2048
TARGETS = {"both": 40.0, "agnostic": 14.0}
"""Times faster than `stock` in the same run."""

STARTS = ("stock", "snapshot", "pool", "agnostic", "both", "cold cache", "asleep", "torch", "llama.cpp")
_LARGE = ("stock", "agnostic", "both", "cold cache", "asleep")
_UNFORKED = {"env": {"REWARM_BENCHMARK": "1"}}  # read while the engine is imported: so it is not forked
_READ_BYTES = 8 * 2**20


def best_dtype() -> str:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "auto" if "avx512bw" in flags or "bf16" in flags else "float32"


class Bench:
    def __init__(self, folder: Path, model: Path, dtype: str, starts: Sequence[str]) -> None:
        self._folder, self._model, self._dtype = folder, model, dtype
        self._starts = starts
        self._serve: Serve
        self._agnostic: Serve
        self._gguf: Path | None = None
        self.found: dict[str, list[Stream]] = {start: [] for start in starts}
        self.wakes: dict[str, list[Wake]] = {}
        self.warm: dict[str, list[float]] = {}
        self.loaded: list[float] = []  # llama.cpp
        self.disk: list[float] = []  # bytes a second

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        entry = {"engine": "vllm", "source": str(self._model), "slots": SLOTS, "context_length": CONTEXT}
        entry |= {"idle_after": "1h", "dtype": self._dtype}
        models: dict[str, dict[str, Any]] = {"both": entry}
        if "snapshot" in self._starts:
            models["snapshot"] = entry | _UNFORKED
        if "pool" in self._starts:
            models["pool"] = entry | {"snapshot": "off"}
        if "torch" in self._starts:
            models["torch"] = entry | {"engine": "torch"}
        store = {"dir": str(self._folder / "snapshots")}
        with contextlib.ExitStack() as stack:
            self._serve = stack.enter_context(serving("serve", self._folder, models, snapshots=store))
            for model in {"snapshot", "both", "torch"} & models.keys():
                note(f"{model}: the load that its snapshot is made of")
                self._serve.pack(model)
            if "agnostic" in self._starts:
                one = {"both": entry}
                opened = serving("agnostic", self._folder, one, snapshots=store, pool={"models": 0})
                self._agnostic = stack.enter_context(opened)
            if "llama.cpp" in self._starts:
                self._gguf = _gguf(self._folder, self._dtype)
            yield

    def round(self, number: int) -> None:
        one: dict[str, Callable[[], Stream]] = {
            "stock": self._stock,
            "asleep": self._asleep,
            "cold cache": self._cold_cache,
            "agnostic": lambda: self._wake("agnostic", self._agnostic, "both"),
            "llama.cpp": self._llama,
        }
        for start in self._starts:
            self._serve.settle()
            stream = one[start]() if start in one else self._wake(start, self._serve, start)
            note(f"round {number}: {start} {stream.first_token_s:.3f} s {stream.text!r}")
            if number:
                self.found[start].append(stream)

    def forget(self) -> None:
        """What the first round brought."""
        for kept in (self.wakes, self.warm):
            kept.clear()
        self.loaded.clear()
        self.disk.clear()

    def _stock(self) -> Stream:
        return stock_vllm(self._folder, self._model, self._dtype, SLOTS, CONTEXT)

    def _llama(self) -> Stream:
        assert self._gguf is not None
        stream, loaded_s = llama_cpp(self._folder, self._gguf, 1, CONTEXT)
        self.loaded.append(loaded_s)
        return stream

    def _wake(self, start: str, serve: Serve, model: str) -> Stream:
        if serve is not self._serve:
            serve.settle()
        wake = serve.wake(model)
        serve.stop(model)
        self.wakes.setdefault(start, []).append(wake)
        self.warm.setdefault(start, []).append(wake.warm_s)
        return wake.stream

    def _asleep(self) -> Stream:
        wake = self._serve.wake("both")
        stream = self._serve.wake_from_sleep("both")
        self.warm.setdefault("asleep", []).append(median([wake.warm_s, self._serve.warm_s("both")]))
        self._serve.stop("both")
        return stream

    def _cold_cache(self) -> Stream:
        files = _packed(self._folder)
        _drop(files)
        began, size = time.perf_counter(), 0
        for file in files:
            size += _read(file)
        self.disk.append(size / (time.perf_counter() - began))
        _drop(files)
        return self._wake("cold cache", self._serve, "both")


def _packed(folder: Path) -> list[Path]:
    return list((folder / "snapshots" / "snapshots" / "both").glob("packed-*/*.safetensors"))


def _gguf(folder: Path, dtype: str) -> Path:
    """SmolLM2's own dtype is bfloat16."""
    from snapshots import smollm2_gguf

    return full_precision(smollm2_gguf(), folder / "model.gguf", "F32" if dtype == "float32" else "BF16")


def _drop(files: Sequence[Path]) -> None:
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _read(file: Path) -> int:
    size = 0
    with file.open("rb", buffering=0) as opened:
        while piece := opened.read(_READ_BYTES):
            size += len(piece)
    return size


# --- together --------------------------------------------------------------------------------------------------------


def run(rounds: int, model: Path, dtype: str, starts: Sequence[str]) -> dict[str, Any]:
    for file in model.glob("*.safetensors"):
        _read(file)  # into the page cache
    with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as name:
        bench = Bench(Path(name), model, dtype, starts)
        with bench.running():
            for number in range(rounds + 1):
                bench.round(number)
                if not number:
                    bench.forget()
        weights = sum(
            file.stat().st_size for file in Path(name).glob("snapshots/snapshots/both/packed-*/*.safetensors")
        )
    return {
        "rounds": rounds,
        "model": model.name,
        "dtype": dtype,
        "weights_bytes": weights,
        "starts": {start: _figures(start, bench) for start in starts},
        "disk_bytes_per_s": round(median(bench.disk)) if bench.disk else None,
        "llama_cpp_loaded_s": round(median(bench.loaded), 3) if bench.loaded else None,
    }


def _figures(start: str, bench: Bench) -> dict[str, Any]:
    first = [stream.first_token_s for stream in bench.found[start]]
    out: dict[str, Any] = {
        "first_token_s": round(median(first), 3),
        "spread": round(spread(first), 3),
        "texts": sorted({stream.text for stream in bench.found[start]}),
    }
    if "stock" in bench.found:
        stock_s = median([stream.first_token_s for stream in bench.found["stock"]])
        out["times_faster"] = round(stock_s / median(first), 1)
    if start in bench.warm:
        out["warm_s"] = round(median(bench.warm[start]), 3)
        out["times_warm"] = round(median(first) / median(bench.warm[start]), 2)
    if start in bench.wakes:
        wakes = bench.wakes[start]
        out["tier"] = sorted({wake.tier + (f" ({wake.tier_reason})" if wake.tier_reason else "") for wake in wakes})
        out["weights"] = sorted({wake.weights.split(" ")[0] for wake in wakes})
        names = {name for wake in wakes for name in wake.phases}
        out["phases_s"] = {name: round(median([wake.phases.get(name, 0.0) for wake in wakes]), 3) for name in names}
    return out


def rows(result: dict[str, Any]) -> list[list[str]]:
    starts: dict[str, dict[str, Any]] = result["starts"]
    longest = max(one["first_token_s"] for one in starts.values())
    return [
        [
            start,
            f"{one['first_token_s']:.2f}",
            f"{one['times_faster']:.1f}" if "times_faster" in one else "",
            f"{one['warm_s']:.3f}" if "warm_s" in one else "",
            f"{one['times_warm']:.2f}" if "times_warm" in one else "",
            bar(one["first_token_s"] / longest),
        ]
        for start, one in starts.items()
    ]


COLUMNS = ("", "first token, s", "× faster", "warm, s", "× warm", "")


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="folder of the checkpoint")
    parser.add_argument("--large", type=Path, metavar="DIR", help="a made-up model of 2.9 GB instead, made in DIR once")
    parser.add_argument("--starts", default="", help=f"which of them, by comma: {', '.join(STARTS)}")
    parser.add_argument("--dtype", default=best_dtype(), help="of all of them")
    args = parser.parse_args()
    if not (args.model / "config.json").exists():
        parser.error(f"{args.model} holds no checkpoint: `make environment` prepares one")
    model = args.model.resolve()
    wanted: Sequence[str] = STARTS
    if args.large is not None:
        size = "1.5b" if args.dtype != "float32" else "0.7b"
        model, wanted = _synthetic.make(args.large.resolve() / size, args.model, size), _LARGE
    starts = [start for start in wanted if not args.starts or start in args.starts.split(",")]
    if not LLAMA_SERVER.exists() and "llama.cpp" in starts:
        note("llama.cpp: not installed (tests/llamacpp/setup.sh)")
        starts.remove("llama.cpp")
    result = run(args.rounds, model, args.dtype, starts)
    title = f"To the first token of {result['model']} ({result['dtype']}), by what it starts from"
    out = table(title, COLUMNS, rows(result), f"medians of {args.rounds} rounds")
    out.columns[-1].justify = "left"
    emit("cold_start", result, [out], args.json)


if __name__ == "__main__":
    main()
