"""The first load makes the snapshot: a process that waits from the engine's start until the model has answered.

It is forked from the host beside the engine core, when everything is imported and only one thread runs: it costs
nothing while it waits, and a capture no second start. Once the replica is ready it is told the answer that the engine
gave, captures behind others at processor and disk, and ends. It dies with the host, and leaves at most a
staging folder, which the next one removes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from rewarm_vllm import CaptureJob, capture, lacks_snapshot
from snapshots import Canary, CheckpointError, Flavour, Measured, SnapshotError, Store
from worker.engines.hostfile import HostFile
from worker.engines.vllm.environment import THREADS_ENV
from worker.engines.vllm.failure import FAILURE_ENV
from worker.engines.vllm.loaded import LOADED_ENV
from worker.pacing import priority
from worker.report import REPORT_ENV

_log = logging.getLogger("rewarm.worker.capture")


class _Go(msgspec.Struct, frozen=True):
    canary: Canary
    measured: Measured


class Captor:
    def __init__(self, connection: Connection, process: multiprocessing.process.BaseProcess) -> None:
        self._connection = connection
        self._process = process

    def go(self, canary: Canary, measured: Measured) -> None:
        """The replica is ready, and this is what it said."""
        try:
            self._connection.send_bytes(msgspec.json.encode(_Go(canary, measured)))
        except OSError as error:
            _log.warning("event=no-capture error=%s", error)
        self._connection.close()

    def dismiss(self) -> None:
        """The host ends: so does a capture, wherever it is."""
        self._connection.close()
        self._process.kill()
        self._process.join()


def fork_captor(host: HostFile, vllm_config: Any) -> Captor | None:
    """Inside :func:`worker.engines.vllm.fork.forking`. None where a packed snapshot fits already, or snapshots are
    off."""
    flavour = wanted(host, vllm_config, lacks_snapshot)
    if flavour is None:
        return None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_main, args=(theirs, ours, host, vllm_config, flavour), name="rewarm-capture", daemon=True
    )
    process.start()
    theirs.close()
    return Captor(ours, process)


def wanted(host: HostFile, vllm_config: Any, lacks: Callable[[Any], Flavour | None]) -> Flavour | None:
    if not host.snapshots or host.spec.snapshot == "off" or not host.spec.verify:
        return None  # without a proof of the model there is no answer to hold a snapshot to
    try:
        return lacks(vllm_config)
    except (CheckpointError, OSError) as error:
        _log.warning("event=no-capture error=%s", error)
        return None


def _main(connection: Connection, parents: Connection, host: HostFile, vllm_config: Any, flavour: Flavour) -> None:
    parents.close()
    try:
        go = msgspec.json.decode(connection.recv_bytes(), type=_Go)
    except EOFError:
        return  # dismissed
    for name in (REPORT_ENV, FAILURE_ENV, LOADED_ENV):
        os.environ.pop(name, None)  # the engine in here is nobody's replica
    os.environ[THREADS_ENV] = "1"
    priority.work_behind()
    try:
        _capture(go, host, vllm_config, flavour)
    except (SnapshotError, CheckpointError) as error:  # a full disk, another capture, a changed checkpoint
        _log.warning("event=no-capture model=%s error=%s", host.spec.model, error)
    except Exception:  # noqa: BLE001 -- the replica serves whether or not a snapshot comes of it
        _log.exception("event=capture-failed model=%s", host.spec.model)
    # Past the interpreter's teardown, which would wait for threads of the engine that are daemons anyhow.
    logging.shutdown()
    os._exit(0)


def _capture(go: _Go, host: HostFile, vllm_config: Any, flavour: Flavour) -> None:
    capacity = host.snapshots_capacity_bytes
    store = Store(Path(host.snapshots), capacity_bytes=capacity, floor_bytes=host.snapshots_floor_bytes)
    store.collect()  # what a killed one left
    job = CaptureJob(store, host.spec.model, frozenset((flavour,)), go.canary, go.measured)
    for manifest in capture(job, vllm_config):
        _log.info("event=captured snapshot=%s bytes=%d", manifest.snapshot_id, manifest.total_bytes)
