"""`rewarm ps` says of each pool whether a wake can start from it, and of each model why not."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from rewarm.cli.pools_table import pools
from rewarm.messages import PoolReport, PreparedReport, to_json


def shown(*reports: PoolReport) -> str:
    worker: dict[str, Any] = {"worker": "w1", "pools": [to_json(report) for report in reports]}
    table = pools([worker])
    if table is None:
        return ""
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_pool_and_its_models() -> None:
    prepared = (
        PreparedReport(model="small", state="ready", ready=1),
        PreparedReport(model="odd", state="refused", reason="ValueError: config.json has no architecture"),
    )
    text = shown(PoolReport(kind="vllm", state="ready", memory_bytes=900 * 2**20, prepared=prepared, pooled=3, plain=1))
    pool, small, odd = text.splitlines()[1:]
    assert pool.split()[:3] == ["vllm", "w1", "ready"]
    assert "3 of 4" in pool
    assert small.split() == ["small", "ready", "1"]
    assert "config.json has no architecture" in odd


def test_a_model_that_is_ready_in_parts_says_why() -> None:
    why = "prepared in parts: small@packed-01: the device: made for cpu x86_64 avx512f, here is cpu x86_64 avx2"
    prepared = (PreparedReport(model="small", state="ready", ready=1, reason=why),)
    assert why in shown(PoolReport(kind="vllm", state="ready", prepared=prepared))


def test_a_model_whose_files_are_broken_is_shown_where_it_is_the_only_one() -> None:
    why = "/models/[old]/[/x]/config.json at byte 1: not JSON"
    prepared = (PreparedReport(model="odd", state="refused", reason=why),)
    text = shown(PoolReport(kind="vllm", state="waiting", reason="it has not started yet", prepared=prepared))
    (odd,) = (line for line in text.splitlines() if "odd" in line)
    assert "refused" in odd
    assert why in odd, "brackets of a path are no markup"


def test_why_there_is_none() -> None:
    assert "no memory for the pool" in shown(
        PoolReport(kind="vllm", state="no_room", reason="no memory for the pool: …")
    )


def test_a_worker_without_pools_shows_nothing() -> None:
    assert shown() == ""
