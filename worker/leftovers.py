"""What a killed agent's replicas started elsewhere: containers, say, which no signal of ours reaches and which do not
die with us. The next agent runs their ``stop_cmd``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable

from worker.containment import spawn
from worker.engines.hostfile import HostFile

_UNKNOWN = ("${PID}", "${PORT}")  # of a host that is gone
_log = logging.getLogger("rewarm.worker.leftovers")


async def stop_elsewhere(hosts: Iterable[HostFile]) -> None:
    """Run each one's ``stop_cmd``, as far as it does not depend on what died with its host."""
    async with asyncio.TaskGroup() as group:
        for host in hosts:
            command = host.spec.stop_command
            if command and not any(word in part for part in command for word in _UNKNOWN):
                group.create_task(_stop(host))


async def _stop(host: HostFile) -> None:
    spec = host.spec
    try:
        env = {**os.environ, **spec.env}
        process = await spawn(spec.stop_command, env=env, cwd=host.cwd, log=sys.stderr.fileno())
    except OSError as error:
        _log.error("event=leftover-not-stopped replica=%s error=%s", host.replica, error)
        return
    try:
        async with asyncio.timeout(spec.stop_grace_s):
            status = await process.wait()
        _log.warning("event=leftover-stopped replica=%s status=%d", host.replica, status)
    except TimeoutError:
        process.kill()
        await process.wait()
        _log.error("event=leftover-not-stopped replica=%s error=no end within %g s", host.replica, spec.stop_grace_s)
