"""From a checked host file to a running engine: import, configure, start the engine core. Blocks the event loop.

vLLM's client waits for its engine core in the constructor, in the loop's own thread; until it returns, nothing is
served anyhow. SIGTERM meanwhile is answered by a plain signal handler.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewarm.states import FailureReason, ReplicaState
from rewarm.units import format_bytes
from snapshots import inspect
from worker.engines.host import HostContext, HostFailed
from worker.engines.hostfile import HostFile
from worker.engines.need import Need
from worker.engines.vllm import adapters, arguments, failure, loaded
from worker.engines.vllm.captor import Captor, fork_captor
from worker.engines.vllm.environment import TemporaryFolder
from worker.engines.vllm.fork import forking
from worker.engines.vllm.image import connect, taking_over
from worker.engines.vllm.prepared import Prepared, using

STOPPED_EXIT_STATUS = 128 + signal.SIGTERM

_IMPORTS: Sequence[tuple[str, float]] = (
    ("torch", 0.05),
    ("transformers", 0.2),
    ("vllm.entrypoints.launchers.api_server.entry", 0.3),
    ("vllm.v1.engine.async_llm", 0.5),
)
"""What takes long to import, and how far the start is before each (the share of its time on two cores)."""

_EXIT_STATUS = re.compile(r"Failed core proc\(s\): \{.*?: (-?\d+)")


@dataclass(frozen=True, slots=True)
class Engine:
    client: Any  # vllm.v1.engine.async_llm.AsyncLLM
    arguments: argparse.Namespace
    captor: Captor | None = None
    prepared: Prepared | None = None  # what the pool did ahead
    trusted: bool = False  # one that was built ahead and forked just so has answered rightly


def start(
    host: HostFile,
    need: Need,
    context: HostContext,
    sockets: Sequence[socket.socket],
    folder: TemporaryFolder,
    prepared: Prepared | None = None,
    proven: Sequence[str] = (),
) -> Engine:
    """``proven``: weights that an engine with the same preparation has been tried out with in full. Raise HostFailed
    with the cause that the engine core recorded, if there is one."""
    cause = folder.path / "failure.json"
    os.environ[failure.FAILURE_ENV] = str(cause)
    os.environ[loaded.LOADED_ENV] = str(loaded_file(folder))
    with _answering_sigterm(folder), _verdict(context, cause):
        return _start(host, need, context, sockets, prepared, proven)


def _start(
    host: HostFile,
    need: Need,
    context: HostContext,
    sockets: Sequence[socket.socket],
    prepared: Prepared | None,
    proven: Sequence[str],
) -> Engine:
    report = context.reporter
    for module, fraction in _IMPORTS:
        if module not in sys.modules:
            report.phase(ReplicaState.STARTING, fraction, f"importing {module.partition('.')[0]}")
            importlib.import_module(module)
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    report.phase(ReplicaState.STARTING, 0.6, "reading arguments, configuration and tokenizer")
    cpu: bool = current_platform.is_cpu()
    options, config = configure(host, need, cpu=cpu) if prepared is None else (prepared.options, prepared.config)
    if cpu:
        report.phase(ReplicaState.STARTING, 0.7, "importing the engine's worker")
        importlib.import_module(arguments.CPU_WORKER.rpartition(".")[0])  # in here, so that the fork has it
    report.phase(ReplicaState.STARTING, 0.8, "starting the engine core")
    captor = None
    image = None if prepared is None else prepared.image
    trusted = image is not None and image.trusted(proven)
    with forking(sockets) if cpu else nullcontext(), using(prepared), taking_over(image, trusted=trusted):
        if cpu and image is None:
            captor = fork_captor(host, config)  # before vLLM starts threads of its own in here
        if image is not None:
            client = connect(image)
        else:
            client = AsyncLLM.from_vllm_config(
                vllm_config=config,
                usage_context=UsageContext.OPENAI_API_SERVER,
                enable_log_requests=options.enable_log_requests,
                disable_log_stats=options.disable_log_stats,
            )
    return Engine(client, options, captor, prepared, trusted)


def configure(host: HostFile, need: Need, *, cpu: bool) -> tuple[argparse.Namespace, Any]:
    """vLLM's options and its engine configuration. Raise ArgumentsRefused, HostFailed, and what vLLM raises."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.logger import configure_logging_from_args
    from vllm.usage.usage_lib import UsageContext

    options = arguments.parse(host.spec.args, cpu=cpu)
    shares = _shares(host, need, options, cpu=cpu)
    arguments.complete(options, host.spec, need.context, shares, cpu=cpu, snapshots=host.snapshots)
    if host.spec.adapters:
        adapters.find(host.spec, inspect(Path(str(host.spec.source)))).complete(options, cpu=cpu)
    configure_logging_from_args(options)
    _load_plugins(options)
    made = AsyncEngineArgs.from_cli_args(options)
    if options.seed is None:
        made.seed = arguments.any_seed()
    return options, made.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def _shares(host: HostFile, need: Need, options: argparse.Namespace, *, cpu: bool) -> arguments.Shares:
    if cpu:
        return arguments.Shares(kv_bytes=host.kv_bytes or need.kv_bytes)
    from vllm.platforms import current_platform

    total = current_platform.get_device_total_memory()  # asks NVML, which leaves CUDA untouched
    return gpu_shares(host, need, total, stages=options.pipeline_parallel_size)


def gpu_shares(host: HostFile, need: Need, total_bytes: int, *, stages: int) -> arguments.Shares:
    """Of a GPU of ``total_bytes``, with a pipeline of ``stages``. Raise HostFailed where they do not divide the GPUs,
    or more than a whole GPU is needed."""
    gpus = max(1, host.gpus)
    if gpus % stages:
        raise HostFailed(FailureReason.START_REFUSED, f"{gpus} GPUs cannot be a pipeline of {stages} stages")
    fraction = (host.need_bytes or need.total_bytes) / gpus / total_bytes
    if fraction > 1:
        raise HostFailed(
            FailureReason.NEVER_FITS, f"needs {fraction:.2f} of a GPU of {format_bytes(total_bytes)}, on {gpus} of them"
        )
    return arguments.Shares((host.kv_bytes or need.kv_bytes) // gpus, fraction, gpus // stages)


def _load_plugins(options: argparse.Namespace) -> None:
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if options.tool_parser_plugin:
        ToolParserManager.import_tool_parser(options.tool_parser_plugin)
    if options.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(options.reasoning_parser_plugin)
    validate_api_server_args(options)


def loaded_file(folder: TemporaryFolder) -> Path:
    return folder.path / "loaded.json"


@contextmanager
def _answering_sigterm(folder: TemporaryFolder) -> Iterator[None]:
    """The loop cannot run its own handlers while the start blocks it. Nothing is served yet, so leave at once: the
    kernel kills the engine core with us."""

    def leave(number: int, frame: object) -> None:
        folder.remove()
        os._exit(STOPPED_EXIT_STATUS)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _verdict(context: HostContext, cause: Path) -> Iterator[None]:
    """Turn whatever vLLM raises into one reason, preferring what the engine core itself recorded."""
    try:
        yield
    except (HostFailed, KeyboardInterrupt):
        raise
    except arguments.ArgumentsRefused as error:
        raise HostFailed(FailureReason.START_REFUSED, str(error)) from error
    except Exception as error:
        recorded = failure.read_recorded(cause)
        match = _EXIT_STATUS.search(str(error))
        exit_status = int(match[1]) if match else None
        if recorded is not None:
            raise HostFailed(recorded[0], recorded[1], exit_status) from error
        if exit_status is not None:
            raise HostFailed(*engine_core_ended(context, exit_status, "while it started"), exit_status) from error
        raise HostFailed(failure.classify(error), failure.describe(error)) from error


def engine_core_ended(context: HostContext, exit_status: int | None, when: str) -> tuple[FailureReason, str]:
    """Reason and message for an engine core that is gone without having said why."""
    if context.oom.explains(exit_status):
        return FailureReason.OUT_OF_MEMORY, f"the kernel's out-of-memory killer ended the engine core {when}"
    how = "ended"
    if exit_status is not None:
        how = f"exited with status {exit_status}"
        if exit_status < 0:
            how = f"was killed by {signal.Signals(-exit_status).name}"
    return FailureReason.ENGINE_EXITED, f"vLLM's engine core {how} {when}"
