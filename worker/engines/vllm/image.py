"""An engine that is built ahead, in the process that engines of one model are forked from.

Most of a forked engine's start is the making of objects: the worker, the model without its weights' bytes, the cache,
the scheduler; the client, and what the HTTP application answers with. Where the weights come from a packed snapshot all
of it is the same each time, and takes no memory worth the name: the weights and the cache are maps that nobody has
touched. So it is made once. A forked host connects the client, and the engine core that it forks takes over what is
there.

What makes that possible: with one rank the process groups are never asked for anything, so torch's *fake* backend
does, which starts no thread; and whatever belongs to one start (threads of OpenMP, digests, reports) is done by the
fork, in ``ReportingWorker.resume``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rewarm_vllm import Loaded, Observer, use_observer, why_not_mapped
from worker.engines.forking import InParts
from worker.engines.vllm.arguments import any_seed

_VERIFY = "verify"
_building = False


def building() -> bool:
    """Whether the engine core that is being made in this process is one to fork from."""
    return _building


class NotBuilt(Exception):
    """The process is of no use any more: what was begun cannot be undone."""


@dataclass(frozen=True, slots=True)
class EngineImage:
    """``loaded``: what the model came from. ``tasks``: what it can be asked for."""

    config: Any  # vllm.config.VllmConfig
    core: Any  # vllm.v1.engine.core.EngineCore
    client: Any  # vllm.v1.engine.async_llm.AsyncLLM, not connected
    tasks: tuple[str, ...]
    loaded: Loaded
    no_sleep: str  # why engines like it cannot sleep; empty: they can
    seeded: bool  # the operator wants the same chance in each of them

    def trusted(self, proven: Sequence[str]) -> bool:
        """Whether an engine that came from here has answered rightly with the same weights."""
        return self.loaded.words in proven


def build(config: Any, options: argparse.Namespace) -> EngineImage:
    """Inside :func:`worker.engines.vllm.prepared.using`, for the client's renderer.

    Raise InParts where no packed snapshot fits, or an engine like this keeps more than maps; NotBuilt, and what vLLM
    raises.
    """
    if why := _more_than_maps(config) or why_not_mapped(config):
        raise InParts(why)
    heard = _Heard()
    use_observer(heard)
    with _flagged(), _one_rank(), _reading_nothing(config), _environment_not_cached():
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        core = EngineCore(config, Executor.get_class(config), not options.disable_log_stats)
    use_observer(Observer())
    if heard.last is None or heard.last.tier != "packed":
        raise NotBuilt("the snapshot that fitted could not be mapped; the engine's log says why")
    tasks = core.get_supported_tasks()
    core.collective_rpc("let_go")
    (no_sleep,) = core.collective_rpc("why_no_sleep")
    client, seeded = _client(config, options, tasks), options.seed is not None
    return EngineImage(config, core, client, tasks, heard.last, no_sleep, seeded)


def _more_than_maps(config: Any) -> str:
    if config.lora_config is not None:
        return "it has LoRA adapters"
    if config.speculative_config is not None:
        return "it decodes speculatively"
    if config.model_config.is_multimodal_model:
        return "it is multimodal"  # its workers share a lock, and forks would share it with each other
    return "it has several ranks" if config.parallel_config.world_size > 1 else ""


def connect(image: EngineImage) -> Any:
    """The client, with an engine core of its own. Inside :func:`taking_over` and a running loop."""
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.executor.abstract import Executor

    client = image.client
    client.engine_core = EngineCoreClient.make_async_mp_client(
        vllm_config=image.config,
        executor_class=Executor.get_class(image.config),
        log_stats=client.log_stats,
        renderer=client.renderer,
    )
    client._run_output_handler()
    return client


@contextmanager
def taking_over(image: EngineImage | None, *, trusted: bool) -> Iterator[None]:
    """Inside, a forked engine core that is to be made of ``image.config`` is the one that is there. vLLM has no
    argument for it."""
    if image is None:
        yield
        return
    from vllm.v1.engine.core import EngineCore

    original = EngineCore.__init__

    def take_over(self: Any, vllm_config: Any, *args: Any, **more: Any) -> None:
        if vllm_config is not image.config:
            original(self, vllm_config, *args, **more)
            return
        _become(self, image, *args, **more)
        seed = None if image.seeded else any_seed()
        image.core.collective_rpc("resume", args=(image.loaded, trusted, seed))

    EngineCore.__init__ = take_over
    try:
        yield
    finally:
        EngineCore.__init__ = original


def _become(
    core: Any,
    image: EngineImage,
    executor_class: Any,
    log_stats: bool,
    executor_fail_callback: Any = None,
    include_finished_set: bool = False,
) -> None:
    """``core`` has queues and addresses of its own, and nothing yet of what an engine core makes."""
    from vllm import envs

    vars(core).update(vars(image.core))
    envs.enable_envs_cache()  # as every engine core does at its end
    core.step_fn = core.step if core.batch_queue is None else core.step_with_batch_queue
    if executor_fail_callback is not None:
        core.model_executor.register_failure_callback(executor_fail_callback)


@contextmanager
def _flagged() -> Iterator[None]:
    global _building  # vLLM makes the worker itself
    _building = True
    try:
        yield
    finally:
        _building = False


class _NoCore:
    """In the place of the client's connection until there is one."""

    engine_ranks_managed = (0,)


def _client(config: Any, options: argparse.Namespace, tasks: tuple[str, ...]) -> Any:
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine import async_llm

    original = async_llm.EngineCoreClient.make_async_mp_client
    async_llm.EngineCoreClient.make_async_mp_client = staticmethod(lambda **_: _NoCore())
    try:
        client = async_llm.AsyncLLM.from_vllm_config(
            vllm_config=config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=options.enable_log_requests,
            disable_log_stats=options.disable_log_stats,
        )
    finally:
        async_llm.EngineCoreClient.make_async_mp_client = staticmethod(original)
    client._supported_tasks = tasks  # asked for with every request; else the first asks the engine core
    return client


class _Heard(Observer):
    def __init__(self) -> None:
        self.last: Loaded | None = None

    def loaded(self, loaded: Loaded) -> None:
        self.last = loaded


@contextmanager
def _one_rank() -> Iterator[None]:
    """Process groups of one, without gloo's threads and sockets."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    make, set_threads = distributed.new_group, torch.set_num_threads

    def new_group(*args: Any, backend: Any = None, **more: Any) -> Any:
        return make(*args, backend="fake", **more)

    distributed.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=1)
    distributed.new_group = new_group
    try:
        yield
    finally:
        distributed.new_group = make
        torch.set_num_threads = set_threads  # vLLM takes it away; the fork needs it


@contextmanager
def _reading_nothing(config: Any) -> Iterator[None]:
    load = config.load_config
    before = load.model_loader_extra_config
    load.model_loader_extra_config = {**before, _VERIFY: "later"}
    try:
        yield
    finally:
        load.model_loader_extra_config = before


@contextmanager
def _environment_not_cached() -> Iterator[None]:
    """vLLM keeps what it has read of the environment once an engine core is made; each fork's is another."""
    from vllm import envs

    before = dict(os.environ)
    try:
        yield
    finally:
        envs.disable_envs_cache()
        for name in os.environ.keys() - before.keys():  # VLLM_DIST_IDENT: of a file that this start has not
            del os.environ[name]
