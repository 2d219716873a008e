"""The order of a start: check the weights, bind the gate, start the engine, serve behind the gate, prove it, wait."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rewarm.states import FailureReason, ReplicaState
from rewarm.upstream import UpstreamPool
from snapshots import Canary, CheckpointError, Measured, inspect
from worker.containment import WORKER_ENV, memory_of, replica_markers
from worker.engines.host import HostContext, HostFailed, announce_ready, make_gate
from worker.engines.hostfile import HostFile
from worker.engines.http import serving
from worker.engines.need import Need, NeverFits, vllm_need
from worker.engines.proof import Post, first_answer, first_requests, poster, verify, warm_up
from worker.engines.vllm import canary
from worker.engines.vllm.adapters import Adapters, find
from worker.engines.vllm.arguments import ArgumentsRefused, refuse_owned
from worker.engines.vllm.environment import TemporaryFolder, is_cpu_build, prepare
from worker.engines.vllm.loaded import read as read_loaded
from worker.engines.vllm.prepared import Prepared
from worker.engines.vllm.serving import build, engine_core_watch, stop_engine_core
from worker.engines.vllm.sleep import VllmSleeper, why_not
from worker.engines.vllm.start import Engine, engine_core_ended, loaded_file, start
from worker.gate import Gate, open_gate_sockets
from worker.gate.gate import CONTROL_HEADER
from worker.report import AdaptersReport

_FIRST_TOKENS = 2
"""One from the prompt, one from the cache that it filled."""

_log = logging.getLogger("rewarm.worker.vllm")


async def serve(
    host: HostFile, context: HostContext, prepared: Prepared | None = None, proven: Sequence[str] = ()
) -> None:
    """What :func:`worker.engines.host.run_host` runs. Nothing of torch or vLLM may be imported before this, but in a
    process of the pool, which set the same environment before it did; ``prepared`` is what it did ahead, ``proven`` the
    weights that an engine like this one has been tried out with in full."""
    cpu = is_cpu_build()
    prepare(os.environ, host.spec.args, cpu=cpu)
    context.reporter.phase(ReplicaState.STARTING, 0.01, "checking the weights")
    need = checked(host, cpu=cpu) if prepared is None else prepared.need  # of the very same files
    sockets, endpoint = open_gate_sockets(host.socket, host.advertise)
    folder = TemporaryFolder()
    folder.use(os.environ)
    try:
        engine = start(host, need, context, sockets, folder, prepared, proven)
        try:
            context.reporter.phase(ReplicaState.INITIALISING, 0.8, "building the HTTP application")
            gate = make_gate(host, context.reporter)
            adapters = find(host.spec, inspect(Path(str(host.spec.source)))) if host.spec.adapters else Adapters()
            server, broken = await build(engine, gate, adapters)
            if host.spec.adapters:
                context.reporter.send(AdaptersReport(broken=broken))
            with engine_core_watch(engine.client) as ended:
                async with serving(server, sockets) as task:
                    context.reporter.phase(ReplicaState.INITIALISING, 1.0, "the HTTP application serves")
                    running = Running(engine, loaded_file(folder), proven)
                    await _until_over(host, context, gate, endpoint, ended, task, running)
        finally:
            _stop(engine)
    finally:
        folder.remove()
        Path(host.socket).unlink(missing_ok=True)


def checked(host: HostFile, *, cpu: bool) -> Need:
    """Milliseconds that save an engine's start: is the checkpoint whole, does the specification make sense."""
    if host.spec.source is None:
        raise HostFailed(FailureReason.START_REFUSED, "a vllm model needs `source`, the folder of its checkpoint")
    try:
        refuse_owned(host.spec.args)
        return vllm_need(inspect(Path(host.spec.source)), host.spec, gpus=0 if cpu else max(1, host.gpus))
    except CheckpointError as error:
        raise HostFailed(error.reason, str(error)) from error
    except ArgumentsRefused as error:
        raise HostFailed(FailureReason.START_REFUSED, str(error)) from error
    except NeverFits as error:
        raise HostFailed(FailureReason.NEVER_FITS, str(error)) from error


@dataclass(frozen=True, slots=True)
class Running:
    engine: Engine
    loaded: Path  # where the engine core wrote what the weights came from
    proven: Sequence[str] = ()


async def _until_over(
    host: HostFile,
    context: HostContext,
    gate: Gate,
    endpoint: str,
    ended: asyncio.Future[int | None],
    server: asyncio.Task[None],
    running: Running,
) -> None:
    """Prove the engine, open the gate, then wait for a stop. Raise HostFailed when the engine core ends before that."""
    phase = "while it was tried out"
    life = asyncio.create_task(_live(host, context, gate, endpoint, running), name="life")
    stopping = asyncio.create_task(context.stopping.wait(), name="stopping")
    try:
        await asyncio.wait((life, stopping, ended, server), return_when=asyncio.FIRST_COMPLETED)
        if not gate.state.draining or life.done():
            phase = "while it served"
        if stopping.done():
            return
        if ended.done():
            raise HostFailed(*engine_core_ended(context, ended.result(), phase), ended.result())
        if server.done():
            server.result()
            raise HostFailed(FailureReason.ENGINE_EXITED, f"vLLM's HTTP application ended {phase}")
        life.result()
    finally:
        for task in (life, stopping):
            task.cancel()
        await asyncio.wait((life, stopping))


async def _live(host: HostFile, context: HostContext, gate: Gate, endpoint: str, running: Running) -> None:
    """Proved, then open. An engine that was built ahead is a copy, byte for byte, of one that has proved itself: it
    opens at once, and is asked when the first requests are through. Raise HostFailed."""
    if running.engine.trusted and host.spec.verify:
        lost = await _enable_sleep(gate, running)
        announce_ready(gate, context.reporter, endpoint, "as its like did")
        await asyncio.gather(_until_lost(lost), _check_later(host, gate, running))
    answer, recorded = await _prove(host, context, running)
    lost = await _enable_sleep(gate, running)
    announce_ready(gate, context.reporter, endpoint, answer)
    if running.engine.captor is not None and recorded is not None:
        running.engine.captor.go(recorded, await asyncio.to_thread(_measured, host, running))
    await _until_lost(lost)


async def _until_lost(lost: asyncio.Future[str]) -> None:
    """Raise HostFailed when the engine did not wake from its sleep."""
    raise HostFailed(FailureReason.ENGINE_EXITED, await lost)


async def _check_later(host: HostFile, gate: Gate, running: Running) -> None:
    await first_requests(gate.quiet)
    await _check(host, running)


async def _enable_sleep(gate: Gate, running: Running) -> asyncio.Future[str]:
    """Say at the gate whether the engine can sleep. The future gets the reason when it did not wake from it."""
    cpu, engine = is_cpu_build(), running.engine
    lost = gate.may_sleep(VllmSleeper(engine.client, cpu=cpu))
    image = None if engine.prepared is None else engine.prepared.image
    loaded = read_loaded(running.loaded)
    # What was built ahead was asked once, for all; but not an engine that had to replace its weights since.
    asked = image is not None and loaded is not None and loaded.words == image.loaded.words
    why = image.no_sleep if image is not None and asked else await why_not(engine.client, cpu=cpu)
    if why:
        gate.may_not_sleep(why)
    return lost


async def _check(host: HostFile, running: Running) -> None:
    """The beginning of the recorded answer. Raise HostFailed, with the snapshot in quarantine."""
    pool = UpstreamPool()
    try:
        loaded = read_loaded(running.loaded)
        if loaded is not None:
            await canary.check(_poster(pool, host), host.spec.served_names[0], loaded, _FIRST_TOKENS)
    finally:
        await pool.close()


def _poster(pool: UpstreamPool, host: HostFile) -> Post:
    """Through our own gate, past its slots."""
    return poster(pool, f"unix:{host.socket}", [(CONTROL_HEADER, host.token.encode())])


async def _prove(host: HostFile, context: HostContext, running: Running) -> tuple[str, Canary | None]:
    """Requests of the model's real shapes, then one answer that is looked at; all through our own gate. A model from a
    snapshot has to give the recorded answer too; one that a snapshot will be made of gives it here. Of a fork that has
    the memory and the weights of one that did all this, only the beginning of that answer is asked, or one answer."""
    report, model = context.reporter, host.spec.served_names[0]
    pool = UpstreamPool()
    post = _poster(pool, host)
    try:
        loaded = read_loaded(running.loaded)
        if loaded is not None and loaded.words in running.proven and host.spec.verify:
            report.phase(ReplicaState.VERIFYING, 0.0, "asking for the beginning of an answer")
            if await canary.check(post, model, loaded, _FIRST_TOKENS):
                return "as recorded", None
            answer = await verify(post, await first_answer(post, model), model, strict=True)
            return answer, await _record(post, model, running)
        report.phase(ReplicaState.WARMING, 0.0, "first requests")
        kind = await warm_up(post, host.spec, model, lambda done, say: report.phase(ReplicaState.WARMING, done, say))
        if not host.spec.verify:
            return "", None
        report.phase(ReplicaState.VERIFYING, 0.0, "asking for one answer")
        answer = await verify(post, kind, model, strict=True)
        report.phase(ReplicaState.VERIFYING, 0.5, "answered")
        if loaded is not None:
            await canary.check(post, model, loaded)
        recorded = await _record(post, model, running)
        report.phase(ReplicaState.VERIFYING, 1.0, "the recorded answer was compared")
        return answer, recorded
    finally:
        await pool.close()


async def _record(post: Post, model: str, running: Running) -> Canary | None:
    """What the snapshot is held to that will be made; none will where one fits already."""
    return None if running.engine.captor is None else await canary.ask(post, model)


def _measured(host: HostFile, running: Running) -> Measured:
    """For the snapshot's manifest: what this load took."""
    loaded = read_loaded(running.loaded)
    memory = memory_of(replica_markers(host.replica, os.environ.get(WORKER_ENV)), os.getpid())
    return Measured(
        {"replica_pss": memory, "weights": host.weights_bytes, "kv_cache": host.kv_bytes},
        {} if loaded is None else {"load": loaded.seconds},
    )


def _stop(engine: Engine) -> None:
    if engine.captor is not None:
        engine.captor.dismiss()
    try:
        stop_engine_core(engine.client)
    except Exception:  # noqa: BLE001  # whatever it is, the kernel ends the engine core with this process
        _log.exception("event=engine-core-not-stopped")
