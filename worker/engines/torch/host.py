"""The order of a start: check the weights, bind the gate, import, load, serve behind the gate, prove it, wait.

What takes long runs in a thread beside the event loop, so that a request to stop is heard at once.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rewarm.states import FailureReason, ReplicaState
from rewarm.upstream import UpstreamPool
from snapshots import Canary, Checkpoint, CheckpointError, Measured, inspect
from worker.engines.host import HostContext, HostFailed, announce_ready, make_gate
from worker.engines.hostfile import HostFile
from worker.engines.need import Need, NeverFits
from worker.engines.proof import Kind, first_requests, poster, verify, warm_up
from worker.engines.torch import canary, capturing
from worker.engines.torch.environment import default_threads, prepare
from worker.engines.torch.need import dtype_of, generates, torch_need
from worker.gate import Gate, open_gate_sockets
from worker.gate.gate import CONTROL_HEADER
from worker.oom import says_out_of_memory
from worker.procs import pss_bytes
from worker.report import LoadedReport

if TYPE_CHECKING:
    from worker.engines.torch.ahead import Prepared
    from worker.engines.torch.model import Model
    from worker.engines.torch.runner import Runner

_FIRST_TOKENS = 2
"""One from the prompt, one from the cache that it filled."""

_IMPORTS: Sequence[tuple[str, float]] = (
    ("torch", 0.05),
    ("transformers", 0.4),
    ("worker.engines.torch.loading", 0.5),
    ("worker.engines.torch.application", 0.6),
    ("worker.engines.http", 0.6),
)
"""What takes long to import, and how far the start is before each."""

_T = TypeVar("_T")
_log = logging.getLogger("rewarm.worker.torch")


class _Stopped(Exception):
    """Asked to stop before it was ready."""


async def serve(
    host: HostFile, context: HostContext, prepared: Prepared | None = None, proven: Sequence[str] = ()
) -> None:
    """What :func:`worker.engines.host.run_host` runs. ``prepared`` is what a process of the pool did ahead, ``proven``
    the weights that an engine like this one has been tried out with in full."""
    prepare(os.environ)
    context.reporter.phase(ReplicaState.STARTING, 0.01, "checking the weights")
    checkpoint, need = checked(host)
    sockets, endpoint = open_gate_sockets(host.socket, host.advertise)
    try:
        trusted = prepared is not None and prepared.trusted(proven)
        model = await _loaded(host, context, checkpoint, need, prepared, trusted)
        from worker.engines.http import make_server, serving
        from worker.engines.torch.application import Application
        from worker.engines.torch.runner import Runner
        from worker.gate import GateMiddleware

        context.reporter.phase(ReplicaState.INITIALISING, 0.5, "building the HTTP application")
        runner = Runner(
            model.skeleton,
            window_s=host.spec.batch_window_s,
            full=host.spec.slots,
            threads=host.spec.threads or default_threads(host.spec.cpus),
            room=_room(host, checkpoint, need),
            on_batch=lambda rows: _log.debug("event=batch rows=%d", rows),
        )
        gate = make_gate(host, context.reporter)
        application = Application(model.skeleton, runner, host.spec.served_names)
        server = make_server(GateMiddleware(application, gate), lifespan="off")
        runner.start()
        try:
            async with serving(server, sockets) as task:
                context.reporter.phase(ReplicaState.INITIALISING, 1.0, "the HTTP application serves")
                trusted = trusted and prepared is not None and model is prepared.model
                await _until_over(host, context, _Serving(gate, endpoint, task, runner, model, proven, trusted))
        finally:
            runner.close()
    except _Stopped:
        return
    finally:
        Path(host.socket).unlink(missing_ok=True)


def checked(host: HostFile) -> tuple[Checkpoint, Need]:
    """Milliseconds that save a start: is the checkpoint whole, does the specification make sense."""
    if host.spec.source is None:
        raise HostFailed(FailureReason.START_REFUSED, "a torch model needs `source`, the folder of its checkpoint")
    if host.spec.args:
        raise HostFailed(FailureReason.START_REFUSED, "the torch engine takes no `args`")
    try:
        checkpoint = inspect(Path(host.spec.source))
        return checkpoint, torch_need(checkpoint, host.spec)
    except CheckpointError as error:
        raise HostFailed(error.reason, str(error)) from error
    except NeverFits as error:
        raise HostFailed(FailureReason.NEVER_FITS, str(error)) from error


def _room(host: HostFile, checkpoint: Checkpoint, need: Need) -> int | None:
    if not generates(checkpoint):
        return None
    dtype = dtype_of(checkpoint, host.spec.dtype)
    return (host.kv_bytes or need.kv_bytes) // checkpoint.shape.kv_bytes_per_token(dtype)


# --- loading ---------------------------------------------------------------------------------------------------------


async def _loaded(
    host: HostFile, context: HostContext, checkpoint: Checkpoint, need: Need, prepared: Prepared | None, trusted: bool
) -> Model:
    cancel = threading.Event()
    work = _in_thread(lambda: _load(host, context, checkpoint, need, prepared, trusted, cancel))
    stopping = asyncio.create_task(context.stopping.wait(), name="stopping")
    try:
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise _Stopped
        return work.result()
    finally:
        cancel.set()
        stopping.cancel()


def _load(
    host: HostFile,
    context: HostContext,
    checkpoint: Checkpoint,
    need: Need,
    prepared: Prepared | None,
    trusted: bool,
    cancel: threading.Event,
) -> Model:
    report = context.reporter
    for module, fraction in _IMPORTS:
        if module not in sys.modules:
            report.phase(ReplicaState.STARTING, fraction, f"importing {module.rpartition('.')[2]}")
            _refusing(lambda module=module: importlib.import_module(module))  # type: ignore[misc]  # mypy has no defaults in lambdas
    from worker.engines.torch.loading import load, take_over
    from worker.engines.torch.model import build

    model = None
    skeleton = None if prepared is None else prepared.skeleton
    if prepared is not None and prepared.model is not None:
        report.phase(ReplicaState.RESTORING, 0.0, "mapping weights")
        model = take_over(prepared.model, report.bytes, cancel, compared=trusted)
        if model is None:
            skeleton = None  # it holds weights that are not to be used
    if model is None:
        if skeleton is None:
            report.phase(ReplicaState.STARTING, 0.7, "reading configuration and tokenizer")
            skeleton = _refusing(lambda: build(checkpoint, dtype_of(checkpoint, host.spec.dtype), need.context))
        report.phase(ReplicaState.RESTORING, 0.0, "reading weights")
        try:
            model = load(host, checkpoint, skeleton, report.bytes, cancel)
        except CheckpointError as error:
            raise HostFailed(error.reason, str(error)) from error
    report.send(LoadedReport(weights=model.loaded.words, seconds=model.loaded.seconds))
    report.phase(ReplicaState.INITIALISING, 0.1, "the weights are in place")
    return model


def _refusing(work: Callable[[], _T]) -> _T:
    """What transformers raises before any weight is read means that it does not want this model."""
    try:
        return work()
    except (HostFailed, MemoryError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:1500]}"
        reason = FailureReason.OUT_OF_MEMORY if says_out_of_memory(words) else FailureReason.START_REFUSED
        raise HostFailed(reason, words) from error


def _in_thread(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """In a daemon thread, which nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where that is the result

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 -- raised where it is awaited
            failed = error
        try:
            loop.call_soon_threadsafe(finish, result, failed)
        except RuntimeError:
            pass  # the loop is closed: the host was asked to stop

    threading.Thread(target=run, name="load", daemon=True).start()
    return future


# --- serving ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Serving:
    gate: Gate
    endpoint: str
    server: asyncio.Task[None]
    runner: Runner
    model: Model
    proven: Sequence[str]
    trusted: bool
    """A copy, byte for byte, of an engine that has proved itself."""


async def _until_over(host: HostFile, context: HostContext, now: _Serving) -> None:
    """Prove the engine, open the gate, then wait for a stop. Raise HostFailed when the engine breaks before that.

    One that is trusted opens at once, and is asked when the first requests are through.
    """
    phase = "while it was tried out"
    proof: asyncio.Task[tuple[str, Canary | None] | None]
    stopping = asyncio.create_task(context.stopping.wait(), name="stopping")
    if now.trusted and host.spec.verify:
        announce_ready(now.gate, context.reporter, now.endpoint, "as its like did")
        phase = "while it served"
        proof = asyncio.create_task(_check_later(host, now), name="check")
    else:
        proof = asyncio.create_task(_prove(host, context, now), name="proof")
    capture: asyncio.Task[None] | None = None
    try:
        pending: set[asyncio.Future[object]] = {proof, stopping, now.runner.broken, now.server}  # type: ignore[arg-type]
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                return
            if now.runner.broken in done:
                words = now.runner.broken.result()
                reason = FailureReason.OUT_OF_MEMORY if says_out_of_memory(words) else FailureReason.ENGINE_EXITED
                raise HostFailed(reason, f"{words}, {phase}")
            if now.server in done:
                now.server.result()
                raise HostFailed(FailureReason.ENGINE_EXITED, f"the HTTP application ended {phase}")
            proved = proof.result()
            if proved is None:
                continue
            answer, recorded = proved
            announce_ready(now.gate, context.reporter, now.endpoint, answer)
            if capturing.wanted(host, now.model.loaded):
                measured = await asyncio.to_thread(_measured, host, now.model)
                job = capturing.job(host, _signature(now.model), recorded, measured)
                capture = asyncio.create_task(capturing.run(job), name="capture")
            phase = "while it served"
    finally:
        tasks = [task for task in (proof, stopping, capture) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _check_later(host: HostFile, now: _Serving) -> None:
    """The beginning of the recorded answer. Raise HostFailed, with the snapshot in quarantine."""
    await first_requests(now.gate.quiet)
    pool = UpstreamPool()
    try:
        post = poster(pool, f"unix:{host.socket}", [(CONTROL_HEADER, host.token.encode())])
        await canary.check(post, host.spec.served_names[0], now.model.loaded, _signature(now.model), _FIRST_TOKENS)
    finally:
        await pool.close()


async def _prove(host: HostFile, context: HostContext, now: _Serving) -> tuple[str, Canary | None]:
    """Requests of the model's real shapes, then one answer that is looked at; all through our own gate. Mapped weights
    have to give the recorded answer too; those that a snapshot will be made of give it here."""
    report, model, loaded = context.reporter, host.spec.served_names[0], now.model.loaded
    signed = _signature(now.model)
    pool = UpstreamPool()
    post = poster(pool, f"unix:{host.socket}", [(CONTROL_HEADER, host.token.encode())])
    try:
        if loaded.words in now.proven and host.spec.verify:
            report.phase(ReplicaState.VERIFYING, 0.0, "asking for the first tokens of the recorded answer")
            if await canary.check(post, model, loaded, signed, _FIRST_TOKENS):
                return "as recorded", None
        report.phase(ReplicaState.WARMING, 0.0, "first requests")
        kind = await warm_up(post, host.spec, model, lambda done, say: report.phase(ReplicaState.WARMING, done, say))
        if not host.spec.verify:
            return "", None
        report.phase(ReplicaState.VERIFYING, 0.0, "asking for one answer")
        answer = await verify(post, kind, model, strict=True)
        report.phase(ReplicaState.VERIFYING, 0.5, "answered")
        recorded = None
        if kind is not Kind.EMBEDDING:
            await canary.check(post, model, loaded, signed)
            if capturing.wanted(host, loaded):
                recorded = await canary.ask(post, model)
        report.phase(ReplicaState.VERIFYING, 1.0, "the recorded answer was compared")
        return answer, recorded
    finally:
        await pool.close()


def _signature(model: Model) -> str:
    return canary.signature(str(model.skeleton.dtype).removeprefix("torch."))


def _measured(host: HostFile, model: Model) -> Measured:
    """For the snapshot's manifest: what this load took."""
    return Measured(
        {"replica_pss": pss_bytes(os.getpid()), "weights": host.weights_bytes, "kv_cache": host.kv_bytes},
        {"load": model.loaded.seconds},
    )
