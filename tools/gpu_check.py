"""What a GPU's own ways to start fast do on this machine, in under ten minutes: ``make gpu-check``.

    python -m tools.gpu_check MODEL_FOLDER

One JSON line for each step, with what it took, why it was left out, or how it failed; the exit status counts failures.
On stock torch: how fast weights get to the device. With vLLM: a start, the same with the plan of its first one
(``VLLM_ENABLE_STARTUP_PLAN``), sleep at both levels with ``reload_weights`` after the second, weights out of another
process's memory (``ipc_cache``), and whether ``vllm snapshot`` could be used. **Not run yet on any GPU.**
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_STEP_S = 80.0  # seven steps of these, and it is still under ten minutes
_PROMPT = "The capital of France is the city of"


def main(argv: list[str]) -> int:
    """Each step in a process of its own: a crash, or memory that stays on the device, ends with it."""
    if len(argv) == 4 and argv[1] == "--step":
        say(**STEPS[argv[2]](argv[3]))
        return 0
    (model,) = argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as cache:
        env = {**os.environ, "VLLM_CACHE_ROOT": cache, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        for name in STEPS:
            failed += not run(name, model, env | dict(_ENVIRONMENT.get(name, {})))
    return failed


def run(name: str, model: str, env: Mapping[str, str]) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "tools.gpu_check", "--step", name, model]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_STEP_S)
    except subprocess.TimeoutExpired:
        say(step=name, failed=f"no end after {_STEP_S:.0f} s")
        return False
    took_s = round(time.monotonic() - began, 2)
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not said:
        say(step=name, failed=done.stderr.strip().splitlines()[-1:] or done.returncode, seconds=took_s)
        return False
    say(step=name, seconds=took_s, **json.loads(said[-1]))
    return True


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


# --- steps: what each says -------------------------------------------------------------------------------------------


def copies(model: str) -> dict[str, Any]:
    """GB/s from pageable and from pinned memory to the device: what a restore can reach at best."""
    import torch

    out: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": str(torch.__version__)}
    for kind, pinned in (("pageable", False), ("pinned", True)):
        block = torch.empty(2**30, dtype=torch.uint8, pin_memory=pinned)
        block.to("cuda", non_blocking=pinned)
        torch.cuda.synchronize()
        began = time.perf_counter()
        block.to("cuda", non_blocking=pinned)
        torch.cuda.synchronize()
        out[f"{kind}_gb_per_s"] = round(block.numel() / 1e9 / (time.perf_counter() - began), 1)
    return out


def start(model: str) -> dict[str, Any]:
    """Twice in one run of the check: without a plan, and with the one that the first left."""
    began = time.perf_counter()
    llm = _engine(model)
    ready_s = time.perf_counter() - began
    return {"ready_s": round(ready_s, 2), "text": _answer(llm)}


def sleep(model: str) -> dict[str, Any]:
    import torch

    llm = _engine(model, enable_sleep_mode=True)
    before, out = _answer(llm), {}
    for level in (1, 2):
        held = torch.cuda.mem_get_info()[0]
        began = time.perf_counter()
        llm.sleep(level=level)
        asleep = time.perf_counter()
        out[f"level_{level}_freed_bytes"] = torch.cuda.mem_get_info()[0] - held
        if level == 1:
            llm.wake_up()
        else:
            llm.wake_up(tags=["weights"])
            llm.collective_rpc("reload_weights")
            llm.wake_up(tags=["kv_cache"])
        out[f"level_{level}_s"] = [round(asleep - began, 3), round(time.perf_counter() - asleep, 3)]
        after = _answer(llm)
        if after != before:
            raise RuntimeError(f"level {level}: {after!r} after the sleep, {before!r} before it")
    return out


def ipc_cache(model: str) -> dict[str, Any]:
    """Weights that another process holds on the device."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "preload", "--model", model, "--enforce-eager"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        began = time.perf_counter()
        llm = _engine(model, load_format="ipc_cache")  # waits for the daemon
        return {"ready_s": round(time.perf_counter() - began, 2), "text": _answer(llm)}
    finally:
        daemon.terminate()
        daemon.wait(10)


def snapshot(model: str) -> dict[str, Any]:
    """Whether CRIU and cuda-checkpoint are there, and may be used."""
    try:
        from vllm.snapshot.runtime import LocalSnapshotTools
    except ImportError as error:
        return {"left_out": f"this vLLM has no `vllm snapshot`: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            LocalSnapshotTools().preflight("create", Path(folder) / "image")
        except Exception as error:  # noqa: BLE001 -- whatever it misses is the answer
            return {"usable": False, "why": str(error)[:300]}
    return {"usable": True}


def _with_vllm(step: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    def checked(model: str) -> dict[str, Any]:
        try:
            import vllm  # noqa: F401 -- whether it is there
        except ImportError as error:
            return {"left_out": f"vLLM: {error}"}
        return step(model)

    return checked


def _engine(model: str, **more: Any) -> Any:
    from vllm import LLM

    return LLM(model=model, max_model_len=1024, enforce_eager=True, gpu_memory_utilization=0.3, **more)


def _answer(llm: Any) -> str:
    from vllm import SamplingParams

    (answer,) = llm.generate([_PROMPT], SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
    return str(answer.outputs[0].text)


STEPS: dict[str, Callable[[str], dict[str, Any]]] = {
    "copies": copies,
    "start": _with_vllm(start),
    "start that plans": _with_vllm(start),
    "start by plan": _with_vllm(start),
    "sleep": _with_vllm(sleep),
    "ipc_cache": _with_vllm(ipc_cache),
    "snapshot": _with_vllm(snapshot),
}
_PLANS = {"VLLM_ENABLE_STARTUP_PLAN": "1"}
_ENVIRONMENT: Mapping[str, Mapping[str, str]] = {"start that plans": _PLANS, "start by plan": _PLANS}


if __name__ == "__main__":
    sys.exit(main(sys.argv))
