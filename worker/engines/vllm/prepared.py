"""What a process of the pool has done ahead for one model, handed to vLLM where it would do it itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from worker.engines.need import Need
from worker.engines.vllm.image import EngineImage


@dataclass(frozen=True, slots=True)
class Prepared:
    """``app`` was built for an engine that does ``tasks``; where there is an ``image``, its state is made as well."""

    options: argparse.Namespace
    config: Any  # vllm.config.VllmConfig
    renderer: Any  # vllm.renderers.base.BaseRenderer: tokenizer and chat template
    app: Any  # fastapi.FastAPI
    tasks: tuple[str, ...]
    need: Need
    image: EngineImage | None = None

    def application(self, tasks: Sequence[str]) -> Any:
        """The built application; None where the engine turned out to do something else."""
        return self.app if tuple(tasks) == self.tasks else None


@contextmanager
def using(prepared: Prepared | None) -> Iterator[None]:
    """Inside, an engine that is made of ``prepared.config`` gets ``prepared.renderer``. vLLM has no argument for it."""
    if prepared is None:
        yield
        return
    from vllm.v1.engine import async_llm

    original = async_llm.renderer_from_config

    def renderer_from_config(config: Any, **more: Any) -> Any:
        return prepared.renderer if config is prepared.config else original(config, **more)

    async_llm.renderer_from_config = renderer_from_config
    try:
        yield
    finally:
        async_llm.renderer_from_config = original
