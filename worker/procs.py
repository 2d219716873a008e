"""What ``/proc`` says about processes. Reads only; a process that ends meanwhile is simply not in the answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """``start`` (clock ticks since boot) tells a process from a later one with the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    state: str  # R, S, D, T (stopped), Z (zombie) …
    start: int


def read_process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The name in parentheses may hold spaces and parentheses itself: split after the last one.
    fields = text[text.rfind(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]))


def all_processes() -> list[Process]:
    # Not Path.iterdir: this runs often, and over every process of the machine.
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 -- see above
    return [process for process in found if process is not None]


def environment_has(pid: int, entries: Iterable[bytes]) -> bool:
    """Whether the process was started with all of ``entries`` (``NAME=value``). Another user's cannot be read:
    False."""
    try:
        variables = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False
    wanted = set(entries)
    return bool(wanted) and wanted <= variables


def pss_bytes(pid: int) -> int:
    """Proportional set size: shared pages divided by their users. 0 when gone or not readable."""
    return _rollup(pid, "Pss:")


def unfiled_bytes(pid: int) -> int:
    """Of :func:`pss_bytes`, what is no file's: a share of the libraries comes and goes with any other program that maps
    them, and the page cache keeps them anyway."""
    return _rollup(pid, "Pss_Anon:") + _rollup(pid, "Pss_Shmem:")


def own_bytes(pid: int) -> int:
    """What comes back when only this process ends: pages that it wrote and shares with nobody. 0 when gone."""
    return _rollup(pid, "Private_Dirty:")


def _rollup(pid: int, field: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def read_bytes(pid: int) -> int:
    """Bytes the process has read from files, by whichever of three measures saw most: read calls, storage, mapped
    pages."""
    most = 0
    try:
        with open(f"/proc/{pid}/io") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("rchar", "read_bytes"):
                    most = max(most, int(value))
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("RssFile:"):
                    most = max(most, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return most


def listening_ports(pids: Iterable[int]) -> set[int]:
    """TCP ports that any of the processes listens on. Reads their open files: not for a hot path."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {port for port, inode in _listeners() if inode in inodes}


def _sockets(pid: int) -> set[str]:
    out = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names are all that is wanted
            target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 -- not a path of the file system
            if target.startswith("socket:["):
                out.add(target[8:-1])
    except OSError:
        pass  # it ended, or closed the file meanwhile
    return out


def listens_on(port: int) -> bool:
    """Whether some process listens on the TCP port on loopback or all addresses: no connection is made to find out."""
    return any(found == port for found, _ in _listeners())


def _listeners() -> Iterator[tuple[int, str]]:
    """Port and inode of every TCP socket that listens."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                next(file, None)
                for line in file:
                    fields = line.split()
                    if fields[3] == "0A":
                        yield int(fields[1].rpartition(":")[2], 16), fields[9]
        except OSError:
            continue
