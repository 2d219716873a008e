"""An HTTP server of a test, on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def listening(app: web.Application, *, cancels: bool = False) -> AsyncIterator[str]:
    """Its URL. ``cancels``: a handler ends when its client leaves."""
    runner = web.AppRunner(app, handler_cancellation=cancels)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
