"""``python -m benchmarks._packed_engine MODEL LOAD_FORMAT EXTRA``: one vLLM engine in one process, asked by lines.

It says ``started`` with how long ``load_model`` took and how much memory was its own before; then answers ``answer``
(tokens a second of one greedy stream), ``memory``, and ends with ``end``. Everything it says is a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_PROMPT = "The capital of France is the city of"
_TOKENS = 24
KV_BYTES = 128 * 2**20


def memory() -> dict[str, int]:
    """In bytes, of this process. ``anonymous`` is what nobody else can share, and no cache can drop."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return {"pss": fields["Pss"], "private": private, "anonymous": fields["Anonymous"], "rss": fields["Rss"]}


def _say(**what: Any) -> None:
    sys.__stdout__.write(json.dumps(what) + "\n")  # type: ignore[union-attr]  # there is one: the benchmark reads it
    sys.__stdout__.flush()  # type: ignore[union-attr]


def main(argv: list[str]) -> None:
    model, load_format, extra = argv
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from rewarm_vllm import register

    register()
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as LOADERS

    loads: list[tuple[float, dict[str, int]]] = []
    for loader in {DefaultModelLoader, LOADERS["rewarm"]}:
        _watch(loader, loads)
    llm = LLM(
        model=model,
        load_format=load_format,
        model_loader_extra_config=json.loads(extra),
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=2,
        kv_cache_memory_bytes=KV_BYTES,
        use_tqdm_on_load=False,
    )
    seconds, before = loads[-1]
    _say(load_s=seconds, before=before)
    params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)
    first = SamplingParams(temperature=0.0, max_tokens=1)
    for line in sys.stdin:
        if line.strip() == "memory":
            _say(**memory())
        elif line.strip() == "answer":
            started = time.perf_counter()
            llm.generate([_PROMPT], first, use_tqdm=False)
            first_s = time.perf_counter() - started
            started = time.perf_counter()
            (answer,) = llm.generate([_PROMPT], params, use_tqdm=False)
            took = time.perf_counter() - started
            _say(tokens=list(answer.outputs[0].token_ids), tokens_per_s=_TOKENS / took, first_token_s=first_s)
        else:
            break


def _watch(loader: Any, loads: list[tuple[float, dict[str, int]]]) -> None:
    """Time the whole of ``load_model``, which is what an engine waits for, the same way for every loader."""
    original = loader.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = memory()
        started = time.perf_counter()
        model = original(self, *args, **kwargs)
        loads.append((time.perf_counter() - started, before))
        return model

    loader.load_model = load_model


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
