"""A small program for a pod: answers, streams, waits, dies.

``pod_app.py PORT [--drain]``; with ``--drain`` SIGTERM lets what runs end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aiohttp import web

from rewarm.knative.names import HOLD_PATH, READY_PATH

running = 0
stopping = asyncio.Event()


def main() -> None:
    app = web.Application()
    for path, handler in (
        (READY_PATH, answer),
        ("/answer", answer),
        (HOLD_PATH, stream),
        ("/stream", stream),
        ("/short-stream", short_stream),
        ("/late", late),
        ("/early-headers", early_headers),
        ("/slow", slow),
        ("/die", die),
    ):
        app.router.add_get(path, handler)
    asyncio.run(serve(app, int(sys.argv[1]), drain="--drain" in sys.argv))


async def serve(app: web.Application, port: int, *, drain: bool) -> None:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()
    while drain and running:  # noqa: ASYNC110 -- a handful of requests, looked at until they end
        await asyncio.sleep(0.01)
    await runner.cleanup()


async def answer(_: web.Request) -> web.Response:
    return web.Response(text="answer")


async def stream(request: web.Request, events: int | None = None) -> web.StreamResponse:
    global running
    running += 1
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    try:
        await response.prepare(request)
        number = 0
        while events is None or number < events:
            number += 1
            await response.write(b"data: %d\n\n" % number)
            await asyncio.sleep(0.05)
        await response.write(b"data: end\n\n")
        await response.write_eof()
    finally:
        running -= 1
    return response


async def short_stream(request: web.Request) -> web.StreamResponse:
    return await stream(request, 30)


async def late(_: web.Request) -> web.Response:
    await asyncio.sleep(3)
    return web.Response(text="late")


async def early_headers(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(3)
    await response.write(b"late")
    await response.write_eof()
    return response


async def slow(_: web.Request) -> web.Response:
    await asyncio.sleep(0.1)
    return web.Response(text="slow")


async def die(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half an ans")
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
    return response


if __name__ == "__main__":
    main()
