"""What a worker tells of its pool, of the engines that came from it, and of what they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rewarm.paths import Paths
from snapshots import Flavour, Reference, SnapshotNotFound, Store
from tests.e2e.stack import Process, Stack, until


async def pool_of(stack: Stack, serve: Process) -> dict[str, Any]:
    workers = (await stack.status(serve))["workers"]
    found: dict[str, Any] = workers[0]["pools"][0] if workers and workers[0]["pools"] else {}
    return found


async def filled(stack: Stack, serve: Process) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        pool = await pool_of(stack, serve)
        prepared = [entry for entry in pool.get("prepared", ()) if entry["state"] != "unsuitable"]
        full = pool.get("state") == "ready" and prepared and all(entry["ready"] for entry in prepared)
        return pool if full else None

    pool: dict[str, Any] = await until(there, "the pool is filled", 120)
    return pool


async def replica(stack: Stack, serve: Process, model: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        workers = (await stack.status(serve))["workers"]
        ready = [r for w in workers for r in w["replicas"] if r["model"] == model and r["state"] == "ready"]
        return ready[0] if ready else None

    found: dict[str, Any] = await until(there, f"{model} is ready", 60)
    return found


async def at_zero(stack: Stack, serve: Process, model: str) -> None:
    async def gone() -> bool:
        return not await stack.replicas(serve, model)

    await until(gone, f"{model} is at zero", 60)


async def packed(folder: Path, serve: Process, model: str) -> None:
    """Until the first load has made the snapshot that later ones map, and sleep from."""
    store = Store(Paths.at(folder / f"state-{serve.name}").snapshots)

    def made() -> bool:
        try:
            return store.find(Reference(model, flavour=Flavour.PACKED)).manifest is not None
        except SnapshotNotFound:
            return False

    await until(made, "the snapshot is made", 240)


def phases(replica: dict[str, Any]) -> set[str]:
    return {timing["phase"] for timing in replica["timings"]}
