"""Nothing of a replica outlives it: how its processes are started, found, killed and counted.

Each host leads its own session. Three nets catch what it starts: the process group and session; the markers
``REWARM_REPLICA`` and ``REWARM_WORKER`` in the environment, which also a process that called setsid keeps; and the tree
of parents, for one that cleared its environment. The agent is the subreaper, so that orphans become its children and
can be reaped. Hosts ask the kernel to die with the agent (PDEATHSIG); what slips through a killed agent is swept by the
next one, by ``REWARM_WORKER``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.memory import read_machine
from worker.procs import Process, all_processes, environment_has, own_bytes, pss_bytes, read_process

REPLICA_ENV = "REWARM_REPLICA"
WORKER_ENV = "REWARM_WORKER"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_log = logging.getLogger("rewarm.worker.containment")
_libc = ctypes.CDLL(None, use_errno=True)


def worker_marker(name: str, state_dir: Path) -> str:
    """Value of ``REWARM_WORKER``: two agents of one machine may share a name, never a state folder."""
    return f"{name}:{hashlib.sha256(os.fsencode(state_dir.absolute())).hexdigest()[:12]}"


def replica_markers(replica: str, worker: str | None) -> list[str]:
    """What the processes of a replica bear. Both, because another worker of this machine may have a replica of the same
    name. ``worker`` is None for a host that no agent started."""
    markers = [f"{REPLICA_ENV}={replica}"]
    return markers if worker is None else [*markers, f"{WORKER_ENV}={worker}"]


def become_subreaper() -> None:
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _log.warning("event=no-subreaper errno=%d", ctypes.get_errno())


def die_with_parent(parent: int | None = None) -> bool:
    """Ask the kernel for SIGKILL when the parent's thread that started us ends. False when ``parent`` is gone already.

    Call it first thing in a host, and in every process an engine starts (it is not inherited over fork).
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return parent is None or os.getppid() == parent


def _die_with_host() -> None:  # runs between fork and exec: nothing but the system call
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    log: int,
    new_session: bool = True,
    tied: bool = False,
    pass_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start ``argv`` with both outputs on the descriptor ``log``. ``tied``: dies with this process's calling thread.

    Raise OSError (no such file, no permission) when it cannot be started.
    """
    return await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=new_session,
        preexec_fn=_die_with_host if tied else None,
        pass_fds=tuple(pass_fds),
    )


def members(markers: Sequence[str], leader: int | None = None) -> list[Process]:
    """Live processes (zombies excepted) that belong to a replica or a worker, and all their descendants.

    ``markers`` are environment entries ``NAME=value``, which they bear all of; ``leader`` is the pid whose session and
    group count too. This process and its ancestors are never among them, whatever their environment says.
    """
    everything = all_processes()
    spared = _lineage(everything)
    entries = [marker.encode() for marker in markers]
    found: set[int] = set()
    for process in everything:
        in_group = leader is not None and leader in (process.pid, process.group, process.session)
        if process.pid not in spared and (in_group or environment_has(process.pid, entries)):
            found.add(process.pid)
    grown = True
    while grown:
        children = {p.pid for p in everything if p.parent in found and p.pid not in spared} - found
        found |= children
        grown = bool(children)
    return [process for process in everything if process.pid in found and process.state != "Z"]


def _lineage(everything: Sequence[Process]) -> set[int]:
    parents = {process.pid: process.parent for process in everything}
    out: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in out:
        out.add(pid)
        pid = parents.get(pid, 0)
    return out


def send_signal(process: Process, number: int) -> None:
    """Signal exactly this process: through a pidfd, and only if its start time still is the one seen."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read_process(process.pid)
        if now is not None and now.start == process.start:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError) as error:
        if isinstance(error, PermissionError):
            _log.error("event=cannot-signal pid=%d error=%s", process.pid, error)
    finally:
        os.close(descriptor)


async def kill_all(markers: Sequence[str], leader: int | None, *, within_s: float = 10.0) -> list[Process]:
    """SIGKILL everything of it again and again until nothing is left or ``within_s`` is over; what is left then.

    Repeated, because a process can fork between the look and the kill; a stopped or traced one dies of SIGKILL too.
    Zombies are not waited for here: a host's exit status is the event loop's, which would wait for ever if we took it;
    those of orphans are collected by :func:`reap_orphans`.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    killed: dict[int, Process] = {}
    pause_s = 0.005
    while True:
        left = await asyncio.to_thread(members, markers, leader)
        # Descendants of what was killed before: once orphaned, one without marker is no longer found by the tree.
        found = {process.pid for process in left}
        for pid, before in killed.items():
            now = read_process(pid)
            if now is not None and now.state != "Z" and now.start == before.start and pid not in found:
                left.append(now)
        for process in left:
            killed[process.pid] = process
            send_signal(process, signal.SIGKILL)
        if not left or loop.time() >= until:
            return left
        await asyncio.sleep(pause_s)
        pause_s = min(0.1, pause_s * 2)


def reap_orphans(known: set[int], seen: frozenset[int]) -> frozenset[int]:
    """Collect zombies that fell to this subreaper and were ``seen`` the last time too; those seen now.

    ``known`` children are the event loop's to wait for. So is one that was just started and is not known yet: hence
    twice.
    """
    me = os.getpid()
    zombies = {p.pid for p in all_processes() if p.parent == me and p.state == "Z" and p.pid not in known}
    for pid in zombies & seen:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    return frozenset(zombies - seen)


async def sweep(marker: str) -> int:
    """Kill what an earlier agent of this worker left behind; the number of processes. Raise RuntimeError if some
    stay."""
    entry = f"{WORKER_ENV}={marker}"
    before = await asyncio.to_thread(members, [entry])
    if not before:
        return 0
    _log.warning("event=sweep leftovers=%s", [process.pid for process in before])
    left = await kill_all([entry], None)
    if left:
        raise RuntimeError(f"processes of an earlier agent cannot be killed: {[process.pid for process in left]}")
    return len(before)


def memory_of(markers: Sequence[str], leader: int | None) -> int:
    """PSS in bytes of everything of the replica. Reads page tables: call it in a thread, seconds apart."""
    return sum(pss_bytes(process.pid) for process in members(markers, leader))


def memory_back(markers: Sequence[str], leader: int | None) -> int:
    """Bytes that its end gives back for sure: not what it shares with the process that it was forked from, nor pages of
    files. As slow as :func:`memory_of`."""
    return sum(own_bytes(process.pid) for process in members(markers, leader))


MEMORY_NOISE_BYTES = 256 * 2**20
"""What the rest of a machine may allocate while one replica ends, without us waiting for it."""


async def wait_memory_back(before_bytes: int, held_bytes: int, *, within_s: float = 3.0) -> int:
    """After a stop: wait until the machine's available memory has grown by about what the processes held for
    themselves.

    Return how much it grew. Half of it, less the noise, is enough: others allocate meanwhile. Admission measures again;
    this only keeps it from measuring too early.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while True:
        grown = read_machine().available_bytes - before_bytes
        if grown >= held_bytes // 2 - MEMORY_NOISE_BYTES or loop.time() >= until:
            return grown
        await asyncio.sleep(0.05)
