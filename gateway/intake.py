"""Reading a request's body: its size is refused before it is read, it may not take for ever, and it is unpacked."""

from __future__ import annotations

import asyncio
import zlib

from gateway.http import BodyTooLong, BodyUnreadable, Request
from rewarm.errors import BodyTooLarge, InvalidRequest
from rewarm.units import format_bytes

BODY_TIMEOUT_S = 300.0

_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}


async def read_body(request: Request, limit: int) -> bytes:
    """Raise BodyTooLarge or InvalidRequest. A gzip or deflate body is unpacked, up to ``limit``."""
    try:
        if request.complete:  # came along with the headers, as most do
            body = await request.read(limit)
        else:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read(limit)
    except BodyTooLong as error:
        raise BodyTooLarge(f"the body has {error}, and at most {limit} ({format_bytes(limit)}) are read") from error
    except TimeoutError as error:
        raise InvalidRequest(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error
    except BodyUnreadable as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from error
    coding = request.headers.get("Content-Encoding")
    return body if coding is None or not body else unpack(body, coding.strip().lower(), limit)


def unpack(body: bytes, coding: str, limit: int) -> bytes:
    """Raise BodyTooLarge or InvalidRequest. No more than ``limit`` bytes are made, whatever is packed."""
    if coding == "identity":
        return body
    window = _WINDOW.get(coding)
    if window is None:
        raise InvalidRequest(f"a body with Content-Encoding {coding!r} is not read here: send it plain, or gzip")
    unpacker = zlib.decompressobj(window)
    try:
        plain = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body cannot be read: it is not {coding}: {error}") from error
    if len(plain) > limit:
        raise BodyTooLarge(f"the body is over {limit} bytes ({format_bytes(limit)}) when unpacked")
    if not unpacker.eof:
        raise InvalidRequest(f"the body cannot be read: its {coding} data end early")
    return plain
