"""``python -m tests.rewarm_vllm.engine_program FOLDER``: real vLLM engines for tests, one after the other.

It imports vLLM once (five seconds) and then forks for every line of JSON that it is given, so that an engine costs what
its load and its answers cost. It runs one OpenMP thread, which is what makes that safe.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Once upon a time", "The three laws of motion say that")
TOKENS = 24


def answers(options: dict[str, Any]) -> dict[str, Any]:
    """Load a model, answer greedily, and say what the loader said."""
    from vllm import LLM, SamplingParams

    from rewarm_vllm import Loaded, Observer, use_observer

    loads: list[Loaded] = []
    counts: list[tuple[int, int]] = []

    class Remembering(Observer):
        def loaded(self, loaded: Loaded) -> None:
            loads.append(loaded)

        def bytes(self, done: int, total: int) -> None:
            counts.append((done, total))

    use_observer(Remembering())
    llm = LLM(**{"enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 2**26, **options})
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, logprobs=2, ignore_eos=True)
    out: list[dict[str, Any]] = []
    for answer in llm.generate(list(PROMPTS), params, use_tqdm=False):
        said = answer.outputs[0]
        assert said.logprobs is not None
        each = [{str(token): chance.logprob for token, chance in step.items()} for step in said.logprobs]
        out.append({"tokens": list(said.token_ids), "logprobs": each})
    told = [{"tier": x.tier, "id": x.snapshot_id, "reasons": list(x.reasons)} for x in loads]
    from torch._dynamo.utils import counters

    graphs = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
    return {"answers": out, "loads": told, "bytes": counts, "graphs": graphs}


def capture(options: dict[str, Any]) -> dict[str, Any]:
    """Capture ``model`` into ``store``; with ``canary``, hold the capture to that answer."""
    from vllm import EngineArgs

    from rewarm_vllm import CaptureJob
    from rewarm_vllm import capture as run
    from snapshots import Canary, Flavour, Store

    canary = options.pop("canary", None)
    job = CaptureJob(
        Store(Path(options.pop("store")), floor_bytes=0, capacity_bytes=options.pop("capacity_bytes", None)),
        options.pop("name"),
        frozenset(Flavour(flavour) for flavour in options.pop("flavours")),
        None if canary is None else Canary(canary["prompt"], tuple(canary["tokens"])),
    )
    settings = {"enforce_eager": True, "max_model_len": 512, "load_format": "rewarm", **options}
    return {"made": [made.snapshot_id for made in run(job, EngineArgs(**settings).create_engine_config())]}


def main(argv: list[str]) -> int:
    # TMPDIR: vLLM leaves its rendezvous files behind, and other tests look for such.
    os.environ |= {"TMPDIR": argv[0]}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401 -- imported for the forks

    from rewarm_vllm import register

    register()
    _answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
            child = os.fork()
            if child == 0:
                _run(request, own)
            os.waitpid(child, 0)
        _answer({"done": request["result"]})
    return 0


def _run(request: dict[str, Any], own: str) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO)
    _compile_alone(own)
    work = {"answers": answers, "capture": capture}[request["do"]]
    try:
        result = work(request["options"])
    except BaseException as error:  # noqa: BLE001 -- the test is told
        traceback.print_exc()
        result = {"failed": f"{type(error).__name__}: {error}"}
    Path(request["result"]).write_text(json.dumps(result))
    os._exit(0)


def _compile_alone(own: str) -> None:
    """Nothing that another engine compiled is found by this one, but through a snapshot."""
    os.environ["TMPDIR"] = own
    tempfile.tempdir = None  # computed once and kept by Python: ask again
    os.environ["VLLM_CACHE_ROOT"] = os.environ["TMPDIR"]
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


def _answer(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
