"""The first load makes the snapshot: ``python -m worker.engines.torch.capturing JOB``, a process beside the engine.

It reads the checkpoint again, which is in the page cache then, behind others at processor and disk. It
imports no torch, dies with the host, and leaves at most a staging folder, which the next capture removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path

import msgspec

from rewarm_vllm import Loaded
from snapshots import (
    Canary,
    CaptureOptions,
    CheckpointError,
    Measured,
    SnapshotError,
    SnapshotExists,
    Store,
    capture_checkpoint,
)
from worker.containment import die_with_parent, spawn
from worker.engines.hostfile import HostFile
from worker.pacing import priority

_log = logging.getLogger("rewarm.worker.capture")


class Job(msgspec.Struct, frozen=True):
    host: int  # pid
    store: str
    capacity_bytes: int | None
    floor_bytes: int
    model: str
    source: str
    writer: str
    canary: Canary | None
    measured: Measured


def wanted(host: HostFile, loaded: Loaded) -> bool:
    """Without a proof of the model nothing says that its weights are right."""
    return bool(host.snapshots) and host.spec.snapshot != "off" and host.spec.verify and loaded.snapshot_id is None


def job(host: HostFile, writer: str, canary: Canary | None, measured: Measured) -> Job:
    return Job(
        os.getpid(),
        host.snapshots,
        host.snapshots_capacity_bytes,
        host.snapshots_floor_bytes,
        host.spec.model,
        str(host.spec.source),
        writer,
        canary,
        measured,
    )


async def run(job: Job) -> None:
    """Until the capture has ended; cancelled, it ends too. The replica serves whether or not a snapshot comes of it."""
    argv = [sys.executable, "-m", __spec__.name, msgspec.json.encode(job).decode()]
    try:
        process = await spawn(argv, env=os.environ, cwd=str(Path.cwd()), log=sys.stderr.fileno(), new_session=False)
    except OSError as error:
        _log.warning("event=no-capture error=%s", error)
        return
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    job = msgspec.json.decode(argv[1], type=Job)
    if not die_with_parent(job.host):
        return 1
    priority.work_behind()
    try:
        store = Store(Path(job.store), capacity_bytes=job.capacity_bytes, floor_bytes=job.floor_bytes)
        store.collect()  # what a killed one left
        options = CaptureOptions(canary=job.canary, writer=job.writer, measured=job.measured)
        manifest = capture_checkpoint(store, job.model, Path(job.source), options)
    except SnapshotExists as error:
        _log.info("event=captured-before snapshot=%s", error.snapshot_id)
        return 0
    except (SnapshotError, CheckpointError, OSError) as error:
        _log.warning("event=capture-failed model=%s error=%s: %s", job.model, type(error).__name__, error)
        return 1
    _log.info("event=captured snapshot=%s bytes=%d", manifest.snapshot_id, manifest.total_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
