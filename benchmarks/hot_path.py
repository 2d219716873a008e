"""What a request costs when its model is ready: our gateway beside nginx, litellm's proxy and no proxy at all.

    python -m benchmarks.hot_path [--json] [--rounds 3] [--seconds 5]

One process each: `rewarm gateway` (with an API key to look up, its leader, heartbeats and receipts in a real Redis),
nginx with one worker, litellm's proxy with one worker. All stand before the same very cheap engine
(tests/programs/fast_engine.py), ours and nginx once over TCP and once over a unix socket, which `rewarm serve` uses. In
each round, interleaved:

- throughput: wrk, 64 connections, a 250-byte JSON request, a 250-byte answer; requests per CPU second (user + system)
  of the proxy's process, and that as a share of nginx's over the same kind of socket. Rates are not compared: on two
  cores the load and the engine take their part.
- added latency: one request at a time, alternating between the proxy and the engine; the difference of the medians and
  of the 99th percentiles.
- streams: 64 at once, each 200 events paced at 20 ms; CPU of the proxy per event. Unpaced streams would hide it: many
  events would share a write. The 99th percentile of the gap between arrivals shows a proxy that holds events back.

Medians of the rounds. Target: ours at least 0.25 of nginx's requests per CPU second.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import _peers
from benchmarks._fleet import API_KEY, Stub, fleet
from benchmarks._load import alternate, body_of, request_of, streams, wrk
from benchmarks._output import arguments, emit, note, table
from benchmarks._processes import PROGRAMS, cpu_s, free_port, raise_file_limit, running, wait_for_port
from benchmarks._stats import median, quantile, spread

TARGET_SHARE = 0.25
CONNECTIONS = 64
STREAMS = 64
EVENTS = 200
PACED_MS = 20
ASKED = 1500
"""Requests for the latency figure in a round."""

SLOWER = 8
"""litellm gets so many times fewer connections, requests and streams: what each costs is the same."""


@dataclass(frozen=True)
class Proxy:
    """One way to the engine. ``base`` names the proxy that it is compared with."""

    name: str
    pid: int
    port: int
    model: str
    base: str
    slow: bool = False


@contextlib.asynccontextmanager
async def proxies(folder: Path) -> AsyncIterator[tuple[int, list[Proxy]]]:
    """The engine's port, and everything that stands before it."""
    port, path = free_port(), folder / "engine.sock"
    argv = [sys.executable, str(PROGRAMS / "fast_engine.py"), "--port", str(port), "--unix", str(path)]
    tcp, unix = f"127.0.0.1:{port}", f"unix:{path}"
    async with contextlib.AsyncExitStack() as stack:
        engine = stack.enter_context(running("engine", [*argv, "--paced-ms", str(PACED_MS)], folder))
        wait_for_port(engine, port)
        nginx, ports = stack.enter_context(_peers.nginx(folder / "nginx", [tcp, unix]))
        ours = await stack.enter_async_context(
            fleet(folder / "rewarm", {"fast": Stub(f"tcp:{tcp}"), "fast-unix": Stub(unix)})
        )
        found = [
            Proxy("nginx", nginx.pid, ports[0], "fast", "nginx"),
            Proxy("rewarm", ours.gateway.pid, ours.port, "fast", "nginx"),
            Proxy("nginx, unix socket", nginx.pid, ports[1], "fast", "nginx, unix socket"),
            Proxy("rewarm, unix socket", ours.gateway.pid, ours.port, "fast-unix", "nginx, unix socket"),
        ]
        if _peers.LITELLM.exists():
            note("starting litellm")
            program, litellm_port = stack.enter_context(_peers.litellm(folder / "litellm", port, API_KEY))
            found.append(Proxy("litellm", program.pid, litellm_port, "fast", "nginx", slow=True))
        else:
            note("litellm is not installed: run benchmarks/setup.sh")
        yield port, found


Samples = dict[str, list[float]]


async def measure(folder: Path, engine: int, proxy: Proxy, seconds: int, samples: Samples) -> None:
    body = body_of(proxy.model)
    part = SLOWER if proxy.slow else 1
    await wrk(folder, proxy.port, body, API_KEY, 1, CONNECTIONS // part)
    before = cpu_s(proxy.pid)
    load = await wrk(folder, proxy.port, body, API_KEY, seconds, CONNECTIONS // part)
    used = cpu_s(proxy.pid) - before
    if load.bad:
        raise RuntimeError(f"{proxy.name}: {load.bad} of {load.requests} requests failed")
    samples["per_cpu_s"].append(load.requests / used)
    samples["rate"].append(load.requests / load.seconds)

    request = request_of(body, API_KEY)
    direct, proxied = await asyncio.to_thread(alternate, engine, proxy.port, request, request, ASKED // part)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        samples[f"direct_{name}"].append(quantile(direct, q))
        samples[f"added_{name}"].append(quantile(proxied, q) - quantile(direct, q))

    before = cpu_s(proxy.pid)
    body = body_of(proxy.model, stream=True, max_tokens=EVENTS)
    seen = await streams(proxy.port, body, API_KEY, STREAMS // part)
    used = cpu_s(proxy.pid) - before
    if seen.whole != STREAMS // part:
        raise RuntimeError(f"{proxy.name}: only {seen.whole} of {STREAMS // part} streams were whole")
    samples["per_event_s"].append(used / seen.events)
    samples["gap_p99_ms"].append(seen.gap_p99_ms)


def summary(proxy: Proxy, by_name: dict[str, Samples]) -> dict[str, Any]:
    samples, base = by_name[proxy.name], by_name[proxy.base]
    per_cpu_s = median(samples["per_cpu_s"])
    return {
        "name": proxy.name,
        "requests_per_cpu_s": round(per_cpu_s),
        "share_of_nginx": round(per_cpu_s / median(base["per_cpu_s"]), 4),
        "us_per_request": round(1e6 / per_cpu_s, 1),
        "requests_per_s": round(median(samples["rate"])),
        "added_p50_us": round(median(samples["added_p50"]) * 1e6),
        "added_p99_us": round(median(samples["added_p99"]) * 1e6),
        "direct_p50_us": round(median(samples["direct_p50"]) * 1e6),
        "direct_p99_us": round(median(samples["direct_p99"]) * 1e6),
        "us_per_event": round(median(samples["per_event_s"]) * 1e6, 1),
        "event_gap_p99_ms": round(median(samples["gap_p99_ms"]), 1),
        "spread": round(spread(samples["per_cpu_s"]), 3),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    columns = ["", "requests per CPU s", "× nginx", "µs/request", "added p50, µs", "added p99, µs"]
    columns += ["µs/SSE event", "event gap p99, ms", "±"]
    rows = [
        [
            row["name"],
            f"{row['requests_per_cpu_s']:,}",
            f"{row['share_of_nginx']:.3g}",
            f"{row['us_per_request']:.1f}",
            f"{row['added_p50_us']:,}",
            f"{row['added_p99_us']:,}",
            f"{row['us_per_event']:.1f}",
            f"{row['event_gap_p99_ms']:.1f}",
            f"{row['spread'] * 100:.0f} %",
        ]
        for row in result["proxies"]
    ]
    caption = f"medians of {result['rounds']} rounds; direct: p50 {result['proxies'][0]['direct_p50_us']} µs; "
    caption += f"target: rewarm ≥ {TARGET_SHARE} × nginx: {'met' if result['met'] else 'missed'}"
    return [table("Hot path", columns, rows, caption)]


async def run(rounds: int, seconds: int) -> dict[str, Any]:
    by_name: dict[str, Samples] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="rewarm-bench-") as name:
        folder = Path(name)
        async with proxies(folder) as (engine, found):
            for index in range(rounds):
                for proxy in found:
                    note(f"round {index + 1} of {rounds}: {proxy.name}")
                    await measure(folder, engine, proxy, seconds, by_name[proxy.name])
            rows = [summary(proxy, by_name) for proxy in found]
    share = next(row["share_of_nginx"] for row in rows if row["name"] == "rewarm")
    return {
        "rounds": rounds,
        "seconds": seconds,
        "target_share_of_nginx": TARGET_SHARE,
        "met": share >= TARGET_SHARE,
        "proxies": rows,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=int, default=5, help="of wrk in each round")
    args = parser.parse_args()
    raise_file_limit()
    result = asyncio.run(run(args.rounds, args.seconds))
    emit("hot_path", result, tables(result), args.json)


if __name__ == "__main__":
    main()
