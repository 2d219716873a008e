"""What an engine says when it fails its proof, as it goes into a message that clients see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worker.engines.host import HostFailed
from worker.engines.proof import Kind, verify


async def said(body: bytes) -> str:
    async def post(path: str, request: dict[str, Any]) -> tuple[int, bytes]:
        return 500, body

    with pytest.raises(HostFailed) as failed:
        await verify(post, Kind.CHAT, "m")
    return str(failed.value)


@pytest.mark.asyncio
async def test_one_short_line() -> None:
    text = await said(b"Traceback:\r\n  \x1b[31mboom\x00 \xff" + b"x" * 5000)
    assert text.startswith("the verification request got 500: Traceback: [31mboom ")
    assert text.isprintable()
    assert len(text) <= len("the verification request got 500: ") + 200


@pytest.mark.asyncio
async def test_without_the_folders_of_this_machine() -> None:
    text = await said(
        f"in {Path.home()}/secret/place/model.py: no such route /v1/chat/completions, http://h/tmp/a".encode()
    )
    assert "secret" not in text
    assert "…/model.py: no such route /v1/chat/completions, http://h/tmp/a" in text


@pytest.mark.asyncio
async def test_an_engine_that_says_nothing() -> None:
    assert await said(b"") == "the verification request got 500"
