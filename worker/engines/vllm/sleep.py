"""vLLM's sleep, behind :class:`worker.gate.rest.Sleeper`. On the CPU our worker class does what vLLM does not.

**Not run yet**: all of it that is for a GPU.
"""

from __future__ import annotations

from typing import Any

_GPU_REFUSES = "the model's `args` lack --enable-sleep-mode"


class VllmSleeper:
    """``client`` is vLLM's AsyncLLM. Its scheduler holds back whatever comes in between."""

    def __init__(self, client: Any, *, cpu: bool) -> None:
        self._client = client
        self._cpu = cpu
        self._level = 1

    async def sleep(self, level: int) -> None:
        self._level = level
        # Nothing runs: what a client left behind in mid-answer may only still be on its way out of the engine.
        await self._client.sleep(level=level, mode="abort")

    async def wake(self) -> None:
        if self._cpu or self._level == 1:
            await self._client.wake_up()
            return
        # Level 2 has dropped the weights: read again before the cache has its memory, or both would not fit.
        await self._client.wake_up(tags=["weights"])
        await self._client.collective_rpc("reload_weights")
        await self._client.wake_up(tags=["kv_cache"])


async def why_not(client: Any, *, cpu: bool) -> str:
    """Why this engine cannot sleep; empty when it can."""
    if not cpu:
        return "" if client.model_config.enable_sleep_mode else _GPU_REFUSES
    answers = await client.collective_rpc("why_no_sleep")
    return next((str(answer) for answer in answers if answer), "")
