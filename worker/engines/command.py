"""``python -m worker.engines.command HOSTFILE``: any OpenAI-compatible server by command line, behind the gate.

The command gets a free loopback port for ``${PORT}``, or the one it is fixed to. What it does is seen from outside
only: bytes it reads (against the size of its source, where one is configured), its port opening, its readiness path
answering 200; then it is warmed up and must give one real answer. It runs in the host's process group and dies with it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason, ReplicaState
from rewarm.upstream import UpstreamError, UpstreamPool
from worker import procs
from worker.engines import proof
from worker.engines.host import HostContext, HostFailed, announce_ready, make_gate, run_host
from worker.engines.hostfile import HostFile
from worker.engines.program import Program
from worker.gate.gate import Gate
from worker.gate.listen import open_gate_sockets
from worker.gate.proxy import GateProxy, serve_gate

S = ReplicaState

NO_PATH = "none"
"""For ``readiness_path``: ready once its port is open."""

_LOOK_EVERY_S = 0.1
_FIRST_BYTES = 2**20  # reads below this are the program itself and its libraries, not yet weights
_PROBE_TIMEOUT_S = 2.0
_HEALTH_EVERY_S = 5.0
_ENDING_S = 1.0  # how long an end may take to be seen here, after its consequences were


async def serve(host: HostFile, context: HostContext) -> None:
    pool = UpstreamPool()
    gate = make_gate(host, context.reporter)
    sockets, endpoint = open_gate_sockets(host.socket, host.advertise)
    program = await Program.start(host, context)
    proxy = GateProxy(gate, pool, program.endpoint, host.spec.upstream_model)
    try:
        async with serve_gate(proxy, sockets):
            exited = asyncio.ensure_future(program.process.wait())
            stopping = asyncio.ensure_future(context.stopping.wait())
            work = asyncio.ensure_future(_load_and_watch(host, context, program, pool, gate, proxy, endpoint))
            try:
                await asyncio.wait((exited, stopping, work), return_when=asyncio.FIRST_COMPLETED)
                if exited.done() and not stopping.done():
                    raise await program.failure(context, exited.result())
                if work.done() and not stopping.done():
                    await _judge(work, exited, program, context)
            finally:
                for task in (exited, stopping, work):
                    task.cancel()
                await asyncio.gather(exited, stopping, work, return_exceptions=True)
    finally:
        await program.stop()
        await pool.close()


async def _judge(
    work: asyncio.Future[None], exited: asyncio.Future[int], program: Program, context: HostContext
) -> None:
    """The load failed: because the program is just ending? Then its exit is the cause to report."""
    try:
        work.result()
    except HostFailed as failure:
        await asyncio.wait((exited,), timeout=_ENDING_S)
        if exited.done():
            raise await program.failure(context, exited.result()) from failure
        raise


async def _load_and_watch(
    host: HostFile,
    context: HostContext,
    program: Program,
    pool: UpstreamPool,
    gate: Gate,
    proxy: GateProxy,
    endpoint: str,
) -> None:
    spec, reporter = host.spec, context.reporter
    await _until_ready(host, context, program, pool)
    post = proof.poster(pool, program.endpoint)
    model = spec.upstream_model or spec.served_names[0]
    reporter.phase(S.WARMING, 0.0, "warming up")
    kind = await proof.warm_up(post, spec, model, lambda done, words: reporter.phase(S.WARMING, done, words))
    answer = ""
    if spec.verify:
        reporter.phase(S.VERIFYING, 0.0, "asking for one real answer")
        answer = await proof.verify(post, kind, model)
    announce_ready(gate, reporter, endpoint, answer)
    await _watch(spec, program, pool, proxy)


async def _until_ready(host: HostFile, context: HostContext, program: Program, pool: UpstreamPool) -> None:
    """Report what can be seen until the readiness path answers 200. The agent's stall timer ends what does not move."""
    reporter, total = context.reporter, host.read_bytes
    phase, said = S.STARTING, set[str]()
    while True:
        opened = procs.listens_on(program.port)
        done = min(total, await asyncio.to_thread(_bytes_read, os.getpid())) if total else 0
        status = await _probe(pool, program, host.spec.readiness_path) if opened else 0
        if status == 200:
            if total:
                reporter.bytes(total, total) if done >= total else reporter.bytes(done, total)
            return
        if phase is S.STARTING and total and done > _FIRST_BYTES:
            phase = S.RESTORING
            reporter.phase(phase, 0.0, "reading weights")
        if phase in (S.STARTING, S.RESTORING) and opened and done >= total:
            phase = S.INITIALISING
            reporter.phase(phase, 0.0, f"port {program.port} is open")
        if phase is S.RESTORING:
            reporter.bytes(done, total)
        path = host.spec.readiness_path
        words = f"{path} answers {status or 'nothing'}" if opened else await asyncio.to_thread(program.closed)
        if words not in said:  # once each: an engine that wavers between two answers makes no progress
            said.add(words)
            reporter.phase(phase, 0.0, words)
        await asyncio.sleep(_LOOK_EVERY_S)


def _bytes_read(host_pid: int) -> int:
    """Most that any process of the host's session but the host itself has read."""
    pids = [p.pid for p in procs.all_processes() if p.session == host_pid and p.pid != host_pid]
    return max((procs.read_bytes(pid) for pid in pids), default=0)


async def _probe(pool: UpstreamPool, program: Program, path: str) -> int:
    """Status of the readiness path; 0 when there is no answer in time. Without a path an open port is 200."""
    if path == NO_PATH:
        return 200 if procs.listens_on(program.port) else 0
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            response = await pool.request(program.endpoint, "GET", path, [], b"")
            response.abort()
            return response.status
    except (UpstreamError, TimeoutError):
        return 0


async def _watch(spec: ReplicaSpec, program: Program, pool: UpstreamPool, proxy: GateProxy) -> None:
    """While ready: an engine that neither answers its readiness path nor sends anything hangs. A busy one still
    sends."""
    loop = asyncio.get_running_loop()
    alive_s = loop.time()
    while True:
        await asyncio.sleep(min(_HEALTH_EVERY_S, spec.answer_stall_s / 4))
        if await _probe(pool, program, spec.readiness_path):
            alive_s = loop.time()
        silent_s = loop.time() - max(alive_s, proxy.moved_s)
        if silent_s >= spec.answer_stall_s:
            raise HostFailed(FailureReason.STALLED, f"the engine has not answered anything for {silent_s:.0f} s")


if __name__ == "__main__":
    sys.exit(run_host(serve, sys.argv))
