"""What a configuration says of each process: Redis, the gateway, the worker with its snapshots and pools, tracing."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rewarm.config.base import Duration, Section, Size, seconds

ProgressMode = Literal["comments", "chunks", "none"]

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}$")
"""Of a worker, a model, a key."""

DEVICE = re.compile(r"^(ram|\d{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{4,80})$")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class RedisConfig(Section):
    url: str | None = None  # none: `serve` runs a private one on a unix socket

    @field_validator("url")
    @classmethod
    def _scheme(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("write redis://host:6379/0, rediss://… or unix:///path/to/redis.sock")
        return value


class HoldingConfig(Section):
    """Bounds on requests that wait, so that a backlog cannot exhaust the gateway's memory. Per gateway."""

    max_requests: int = Field(default=2000, ge=1)
    max_bytes: Size = Field(default=512 * 2**20, ge=1)
    max_bytes_per_model: Size = Field(default=256 * 2**20, ge=1)
    patience: Duration = seconds(600)  # when the client names none
    max_patience: Duration = seconds(3600)
    stream_status_after: Duration = seconds(2)  # how long a stream's status line is held back
    comment_every: Duration = seconds(4)
    chunk_first_after: Duration = seconds(20)
    chunk_every: Duration = seconds(45)
    plain_status_after: Duration = seconds(15)  # then whitespace padding starts
    pad_every: Duration = seconds(10)


class GatewayConfig(Section):
    listen: str = "127.0.0.1:8080"
    max_body: Size = Field(default=32 * 2**20, ge=1024)
    progress: ProgressMode = "comments"
    controller: bool = True  # candidate for leader
    holding: HoldingConfig = HoldingConfig()
    watch: bool = True  # read the file again when it changes, not only on SIGHUP
    shutdown_deadline: Duration = seconds(300)  # streams may finish for this long after SIGTERM

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        host, separator, port = value.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError("write host:port, for example 127.0.0.1:8080 or [::1]:8080")
        return value

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])


class DeviceConfig(Section):
    """Memory that replicas live in: ``ram``, or a GPU by NVML's index or its UUID."""

    id: str
    memory: Size | None = Field(default=None, ge=1)  # budget; by default a share of the device's memory

    @field_validator("id", mode="before")
    @classmethod
    def _id(cls, value: object) -> object:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(text, str) and not DEVICE.match(text):
            raise ValueError("write ram, a GPU's index, or its UUID (GPU-…), as nvidia-smi -L lists them")
        return text


class WorkerConfig(Section):
    name: str = Field(default_factory=socket.gethostname)
    memory: Size | None = Field(default=None, ge=1)  # budget of RAM for all replicas; by default 80 % of the machine's
    devices: tuple[DeviceConfig, ...] | None = None  # by default RAM, and every GPU that NVML lists
    advertise: str | None = None  # host that gateways elsewhere reach this machine by: gates then listen on TCP
    load_guard: Literal["on", "off"] = "on"  # loads stand back while they slow down what is served
    cgroups: Literal["auto", "off"] = "auto"  # off: limits are only watched
    heartbeat: Duration = seconds(1)
    shutdown_deadline: Duration = seconds(300)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.match(value):
            raise ValueError("letters, digits and . _ : / - only, at most 96")
        return value

    @model_validator(mode="after")
    def _devices(self) -> WorkerConfig:
        seen: set[str] = set()
        for device in self.devices or ():
            if device.id in seen:
                raise ValueError(f"devices: {device.id} is given twice")
            seen.add(device.id)
            if device.id == "ram" and device.memory is not None and self.memory is not None:
                raise ValueError("devices: ram has a budget here and in `memory`: give one")
        return self


class SnapshotsConfig(Section):
    """Where a worker keeps weight snapshots, and how much of the disk they may take."""

    dir: Path | None = None  # by default `snapshots` in the state folder; relative to the configuration file
    capacity: Size | None = None  # most that they may occupy; by default all but the floor
    floor: Size = Field(default=2 * 2**30, ge=0)  # stays free on the disk


class PoolConfig(Section):
    """Processes that have an engine imported, from which a worker starts engines in a fraction of a second."""

    enabled: Literal["auto", "off"] = "auto"  # auto: where a model of this worker can use it
    models: int = Field(default=8, ge=0, le=1000)  # prepared at most, the most recently used
    ready: int = Field(default=1, ge=0, le=16)  # processes forked ahead for each
    memory: Size = Field(default=3 * 2**30, ge=0)  # most that all of it may take
    build_ahead: Literal["auto", "off"] = "auto"  # auto: whole engines, where a snapshot of the model can be mapped
    fork_timeout: Duration = Field(default=seconds(3), gt=seconds(0))  # then the start is a plain one


class TracingConfig(Section):
    """OpenTelemetry spans of requests and wakes, sent to a collector. Off unless ``endpoint`` is set."""

    endpoint: str | None = None  # OTLP over HTTP; the path /v1/traces is added where there is none
    sample: float = Field(default=1.0, ge=0, le=1)  # of traces that begin here; a client's own decision is kept
    service: str = Field(default="rewarm", min_length=1)
    timeout: Duration = Field(default=seconds(5), gt=seconds(0))  # of one sending

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("write http://host:4318")
        return value

    @property
    def traces_url(self) -> str | None:
        if self.endpoint is None:
            return None
        _, _, path = self.endpoint.partition("://")[2].partition("/")
        return self.endpoint if path else f"{self.endpoint.rstrip('/')}/v1/traces"
