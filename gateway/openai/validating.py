"""The first look at a batch's input: every line is read once before any of them runs."""

from __future__ import annotations

import asyncio

from fleet import Files
from gateway.openai.lease import Lease
from gateway.openai.lines import CheckLine, Splitter, Validation, read_line
from rewarm.files import BatchSpec, StoredFile

_LINES_AT_ONCE = 50
"""Between two breaths of the event loop, which also serves requests."""


async def validate(
    spec: BatchSpec, file: StoredFile, files: Files, lease: Lease, *, max_body: int, check: CheckLine
) -> Validation:
    """Raise LeaseLost."""
    seen = Validation()
    splitter = Splitter()

    async def read(lines: list[tuple[int, int, bytes]]) -> None:
        for start in range(0, len(lines), _LINES_AT_ONCE):
            for number, end, raw in lines[start : start + _LINES_AT_ONCE]:
                seen.add(read_line(number, end, raw, endpoint=spec.endpoint, max_body=max_body, check=check))
                if seen.hopeless:
                    return
            await asyncio.sleep(0)

    async for piece in files.read(file):
        await lease.keep()
        await read(list(splitter.feed(piece)))
        if seen.hopeless:
            return seen
    await read(list(splitter.finish()))
    return seen
