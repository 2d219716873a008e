"""What a held request costs in memory: 2,000 of them at one gateway, while their model loads.

    python -m benchmarks.held [--json] [--rounds 3] [--requests 2000]

A `rewarm gateway` (with Redis, leader, and a worker that reports a load that never ends) gets 2,000 chat requests at
once, each on its own connection. When all of them are tickets in Redis and progress has been sent for a while, the
growth of the gateway's PSS is divided by their number, and the request's body is taken off: the body has to be kept,
since it never leaves the gateway. Once for streams (which get progress comments), once for plain requests (which wait
silently), beside a bare aiohttp server that reads a request and waits. Each is a fresh process in each round: memory
that Python has freed but kept would hide the next round's growth. 100 requests come and go first, so that what is
allocated once is not counted.

Then all of them go away and as many come again. The second wave must fit into what the first one left: what it adds
shows a leak. Target: at most 40 KiB a request beside its body.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._fleet import API_KEY, Stub, fleet
from benchmarks._load import body_of, request_of
from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import PROGRAMS, free_port, raise_file_limit, running, wait_for_port
from benchmarks._stats import median
from worker.procs import pss_bytes

TARGET_KIB = 40.0
WARM_UP = 100
SETTLE_S = 10.0
"""Long enough for the status line (2 s) and two progress comments (4 s apart) of every stream."""


@dataclass
class Server:
    pid: int
    port: int
    waiting: Callable[[], Awaitable[int]] | None  # how many the server holds, where it can be asked


@contextlib.asynccontextmanager
async def gateway(folder: Path, requests: int) -> AsyncIterator[Server]:
    holding = {"max_requests": requests + WARM_UP}
    async with fleet(folder, {"cold": Stub(None)}, holding=holding) as running_fleet:
        program = running_fleet.gateway
        yield Server(program.pid, running_fleet.port, lambda: running_fleet.waiting("cold"))


@contextlib.asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Server]:
    folder.mkdir()
    port = free_port()
    with running("bare", [sys.executable, str(PROGRAMS / "bare_server.py"), "--port", str(port)], folder) as program:
        await asyncio.to_thread(wait_for_port, program, port)
        yield Server(program.pid, port, None)


class Held(asyncio.Protocol):
    """One held request: it throws away what comes, and remembers whether the server hung up."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.lost = asyncio.get_running_loop().create_future()
        self.closing = False
        self.answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.answer = self.answer or data[:64]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)

    async def close(self) -> None:
        self.closing = True
        self._transport.close()
        await self.lost


async def hold(server: Server, request: bytes, count: int) -> list[Held]:
    """``count`` requests, all of them held."""
    loop = asyncio.get_running_loop()
    held = []
    for _ in range(count):
        one = Held(request)
        await loop.create_connection(lambda one=one: one, "127.0.0.1", server.port)  # type: ignore[misc]
        held.append(one)
    async with asyncio.timeout(120):
        while server.waiting is not None and await server.waiting() < count:
            refused = [one.answer for one in held if one.answer and not one.answer.startswith(b"HTTP/1.1 200")]
            if refused:
                raise RuntimeError(f"{len(refused)} of {count} were refused: {refused[0]!r}")
            await asyncio.sleep(0.2)
    return held


async def release(server: Server, held: list[Held]) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(one.close() for one in held))
        while server.waiting is not None and await server.waiting():  # noqa: ASYNC110  # it has no event for us
            await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)


@dataclass(frozen=True)
class Growth:
    per_request_kib: float  # body taken off
    again_kib: float  # what a second wave added, per request


async def measure(server: Server, body: bytes, requests: int) -> Growth:
    request = request_of(body, API_KEY)
    await release(server, await hold(server, request, WARM_UP))
    before = pss_bytes(server.pid)
    waves = [await _wave(server, request, requests) for _ in range(2)]
    return Growth(
        ((waves[0] - before) / requests - len(body)) / 1024,
        (waves[1] - waves[0]) / requests / 1024,
    )


async def _wave(server: Server, request: bytes, requests: int) -> int:
    """PSS in bytes while all are held."""
    held = await hold(server, request, requests)
    await asyncio.sleep(SETTLE_S)
    gone = sum(one.lost.done() for one in held)
    if gone:
        raise RuntimeError(f"{gone} of {requests} held requests were closed by the server")
    pss = pss_bytes(server.pid)
    await release(server, held)
    return pss


async def run(rounds: int, requests: int) -> dict[str, Any]:
    plain, stream = body_of("cold"), body_of("cold", stream=True)
    samples: dict[str, list[Growth]] = {"stream": [], "plain": [], "bare aiohttp": []}
    with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as name:
        for index in range(rounds):
            folder = Path(name) / str(index)
            folder.mkdir()
            note(f"round {index + 1} of {rounds}")
            async with gateway(folder / "stream", requests) as server:
                samples["stream"].append(await measure(server, stream, requests))
            async with gateway(folder / "plain", requests) as server:
                samples["plain"].append(await measure(server, plain, requests))
            async with bare(folder / "bare") as server:
                samples["bare aiohttp"].append(await measure(server, plain, requests))
    rows = [
        {
            "name": kind,
            "kib_per_request": round(median([growth.per_request_kib for growth in growths]), 1),
            "kib_second_wave": round(median([growth.again_kib for growth in growths]), 1),
            "rounds_kib": [round(growth.per_request_kib, 1) for growth in growths],
        }
        for kind, growths in samples.items()
    ]
    worst = max(float(str(row["kib_per_request"])) for row in rows[:2])
    return {
        "rounds": rounds,
        "requests": requests,
        "body_bytes": len(stream),
        "target_kib": TARGET_KIB,
        "met": worst <= TARGET_KIB,
        "held": rows,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--requests", type=int, default=2000, help="held at once")
    args = parser.parse_args()
    raise_file_limit()
    result = asyncio.run(run(args.rounds, args.requests))
    rows = [
        [
            row["name"],
            f"{row['kib_per_request']:.1f}",
            ", ".join(f"{value:.1f}" for value in row["rounds_kib"]),
            f"{row['kib_second_wave']:+.1f}",
        ]
        for row in result["held"]
    ]
    caption = (
        f"{args.requests} requests held; target: rewarm ≤ {TARGET_KIB:.0f} KiB: {'met' if result['met'] else 'missed'}"
    )
    columns = ["", "KiB per held request", "rounds", "added by a second wave"]
    emit("held", result, [table("Held requests", columns, rows, caption)], args.json)


if __name__ == "__main__":
    main()
