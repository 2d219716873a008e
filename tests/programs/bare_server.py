"""An aiohttp server that does nothing but hold: what a held request costs before a gateway adds anything to it.

    python tests/programs/bare_server.py --port 9100

Any POST is read to its end and then waits for ever.
"""

from __future__ import annotations

import argparse
import asyncio

import uvloop
from aiohttp import web


async def hold(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    await asyncio.Event().wait()
    return web.Response()


async def serve(port: int) -> None:
    server = web.Server(hold, access_log=None, handler_cancellation=True)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port, backlog=4096)
    await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
