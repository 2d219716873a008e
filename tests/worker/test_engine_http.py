"""An engine's HTTP server, where the engine ends under its requests."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from worker.engines.http import make_server, serving


class Ended(Exception):
    pass


@pytest.mark.parametrize("how", ["the engine died", "it was told to stop"])
def test_a_request_that_nobody_will_answer_is_cut_and_not_apologised_for(how: str, tmp_path: Path) -> None:
    """A gateway takes a broken connection for what it is and asks elsewhere; a status would go to the client."""
    asked = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async def serve(listening: socket.socket) -> None:
        async with serving(make_server(application, lifespan="off"), [listening]):
            await asked.wait()
            if how == "the engine died":
                raise Ended

    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "http.sock"))
        listening.listen()
        client.connect(listening.getsockname())
        client.settimeout(10)
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: engine\r\n\r\n")
        try:
            asyncio.run(serve(listening))  # as a host does: what still runs is cancelled at the end
        except Ended:
            pass
        assert client.recv(4096) == b""
    assert asked.is_set()
