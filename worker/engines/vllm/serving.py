"""vLLM's OpenAI application behind the gate, and an eye on its engine core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from worker.engines.http import Server, make_server
from worker.engines.vllm.adapters import Adapters, give
from worker.engines.vllm.start import Engine
from worker.gate import Gate, GateMiddleware
from worker.gate.asgi import Application, Receive, Scope, Send

_REAP_S = 0.2


class CutWhenDead:
    """Ends connections instead of letting vLLM apologise for a dead engine core.

    vLLM would answer 500, or end a stream with an error object and ``[DONE]``, which looks complete. A connection that
    breaks is what gateways know: they answer with the typed error, or try elsewhere while nothing was sent.
    """

    def __init__(self, app: Application, is_dead: Callable[[], bool]) -> None:
        self._app = app
        self._is_dead = is_dead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Any) -> None:
            if self._is_dead():
                # The host ends in a moment, and the kernel closes the connection then.
                await asyncio.Event().wait()
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)


async def build(engine: Engine, gate: Gate, beside: Adapters) -> tuple[Server, dict[str, str]]:
    """The server, and the adapters that it is without, with the reason."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    client, options, prepared = engine.client, engine.arguments, engine.prepared
    if prepared is not None and prepared.image is not None:
        app = prepared.app
    else:
        await client.reset_mm_cache()  # don't keep the profiling run's dummy inputs
        tasks = await client.get_supported_tasks()
        app = None if prepared is None else prepared.application(tasks)
        if app is None:
            app = build_app(options, tasks, client.model_config)
        await init_app_state(client, app.state, options, tasks)
    gated = GateMiddleware(CutWhenDead(app, lambda: bool(client.errored)), gate)
    server = make_server(gated, lifespan="on")
    app.state.server = server  # vLLM's exception handlers ask it to leave when the engine is dead
    return server, await give(beside, app.state.openai_serving_models, options)


@contextlib.contextmanager
def engine_core_watch(client: Any) -> Iterator[asyncio.Future[int | None]]:
    """A future that gets the exit status of the first engine core to end. vLLM's own watchdog looks every 5 s."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int | None] = loop.create_future()
    manager = client.engine_core.resources.engine_manager
    processes = list(manager.processes) if manager is not None else []

    def gone(process: Any) -> None:
        loop.remove_reader(process.sentinel)
        process.join(_REAP_S)  # its pipe closes a moment before it can be reaped
        if not ended.done():
            ended.set_result(process.exitcode)

    for process in processes:
        loop.add_reader(process.sentinel, gone, process)
    try:
        yield ended
    finally:
        for process in processes:
            loop.remove_reader(process.sentinel)


def stop_engine_core(client: Any) -> None:
    """At once: a graceful stop takes seconds to end streams that the agent has already drained."""
    client.shutdown(timeout=0)
