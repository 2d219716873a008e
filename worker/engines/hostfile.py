"""The file by which the agent tells a host what to run. JSON, mode 0600 in the run folder: it carries secrets."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rewarm.messages import SCHEMA_VERSION, Message, ReplicaSpec, UnknownSchema

HOST_MODULES = {
    "vllm": "worker.engines.vllm",
    "torch": "worker.engines.torch",
    "command": "worker.engines.command",
}
"""Engine name → module that ``python -m`` runs."""


class HostFile(Message, frozen=True, kw_only=True):
    replica: str
    agent_pid: int  # the host dies with it
    spec: ReplicaSpec
    attempt: int = 1
    socket: str  # unix path of the gate
    report: str  # unix path of the report channel
    token: str  # authorises control requests at the gate
    secret: str = ""  # the fleet's, asked of callers over TCP
    advertise: str | None = None  # also listen on TCP, under this name
    cwd: str = "/"  # where a `command` is run: the agent's own
    need_bytes: int = 0  # what the memory ledger reserved for this replica
    gpus: int = 0  # it lies on so many, a like share on each; 0: in RAM
    weights_bytes: int = 0  # of it for the weights in memory
    read_bytes: int = 0  # what the load reads from disk, for byte progress; 0 when unknown
    kv_bytes: int = 0  # of it for the KV cache: what vLLM's own share is derived from
    snapshots: str = ""  # the store's folder; empty: none
    snapshots_capacity_bytes: int | None = None
    snapshots_floor_bytes: int = 0


def write_host_file(path: Path, host: HostFile) -> None:
    data = msgspec.json.encode(host)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def read_host_file(path: Path) -> HostFile:
    """Raise OSError, or UnknownSchema for anything that is no host file of this version."""
    try:
        host = msgspec.json.decode(path.read_bytes(), type=HostFile)
    except msgspec.MsgspecError as error:
        raise UnknownSchema(f"{path}: {error}") from error
    if host.v != SCHEMA_VERSION:
        raise UnknownSchema(f"{path}: schema version {host.v}, this process speaks {SCHEMA_VERSION}")
    return host
