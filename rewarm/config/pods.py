"""The section ``knative``: what is said of workers that are pods. `rewarm serve` reads nothing of it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rewarm.config.base import Duration, Section, Size, seconds

_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


class TolerationConfig(Section):
    """As in a pod's ``tolerations``."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class VolumeConfig(Section):
    """A folder of worker pods. ``pvc`` and ``hostPath`` need a feature flag of Knative."""

    kind: Literal["emptyDir", "pvc", "hostPath", "none"]
    claim: str | None = None  # pvc: the claim's name
    path: str | None = None  # hostPath: the folder on the node
    size: Size | None = None  # emptyDir: the most it may take on the node
    read_only: bool = False

    @model_validator(mode="after")
    def _fits(self) -> VolumeConfig:
        if self.kind == "pvc" and not self.claim:
            raise ValueError("a pvc needs `claim`, the claim's name")
        if self.kind == "hostPath" and not (self.path and PurePosixPath(self.path).is_absolute()):
            raise ValueError("a hostPath needs `path`, an absolute path on the node")
        for name, kind in (("claim", "pvc"), ("path", "hostPath"), ("size", "emptyDir")):
            if getattr(self, name) is not None and self.kind != kind:
                raise ValueError(f"`{name}` belongs to {kind}, and this volume is {self.kind}")
        return self


class PodConfig(Section):
    """What a worker's pod is made of."""

    image: str = "rewarm-worker-gpu:0.1.0"
    gpus: int | None = Field(default=None, ge=0, le=64)  # by default 1 for vllm, else 0
    gpu_resource: str = "nvidia.com/gpu"
    cpu: float | None = Field(default=None, gt=0)  # cores requested
    memory: Size | None = None  # requested, and the limit
    shared_memory: Size | None = None  # /dev/shm, where several GPUs serve one model; counts as memory
    node_selector: dict[str, str] = {}
    tolerations: tuple[TolerationConfig, ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    env: dict[str, str] = {}

    @field_validator("env")
    @classmethod
    def _not_ours(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name == "PORT" or name.startswith("K_"):
                raise ValueError(f"{name} is set by Knative")
        return value


class KnativeConfig(Section):
    """Workers as pods: for `rewarm knative` and for the controller's backends that drive a cluster."""

    namespace: str = "rewarm"
    cluster_domain: str = "cluster.local"
    ingress: str | None = None  # host:port that wake-up requests are sent to; by default the place's own host name
    unschedulable_after: Duration = Field(default=seconds(1), ge=seconds(0))  # without a node: then the load fails
    pod_stall: Duration = Field(default=seconds(600), ge=seconds(1))  # a pod of which nothing new is heard fails
    timeout: Duration = Field(default=seconds(600), ge=seconds(1))  # timeoutSeconds, and the pod's grace period
    response_start: Duration | None = Field(default=None, ge=seconds(1))  # by default as long as `timeout`
    window: Duration = seconds(60)  # without a request before Knative takes the pod away
    progress_deadline: Duration = seconds(3600)  # until a pod must be ready for the first time
    initial_scale_zero: bool = False  # a new Service starts no pod; needs allow-zero-initial-scale
    image_pull_secrets: tuple[str, ...] = ()
    weights: VolumeConfig = VolumeConfig(kind="hostPath", path="/srv/models", read_only=True)
    weights_mount: str = "/srv/models"  # where `source` paths begin, in a pod
    snapshots: VolumeConfig = VolumeConfig(kind="emptyDir")
    pod: PodConfig = PodConfig()
    models: dict[str, PodConfig] = {}  # model → the fields of `pod` that differ for it

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        if not _LABEL.match(value):
            raise ValueError("lower-case letters, digits and - only, at most 63")
        return value

    @field_validator("weights_mount")
    @classmethod
    def _mount(cls, value: str) -> str:
        if not PurePosixPath(value).is_absolute() or value == "/":
            raise ValueError("write an absolute path, for example /srv/models")
        return value

    @model_validator(mode="after")
    def _order(self) -> KnativeConfig:
        if self.response_start is not None and self.response_start > self.timeout:
            raise ValueError("response_start is longer than timeout, which ends the request before")
        return self

    def pod_of(self, model: str) -> PodConfig:
        """``pod``, with what ``models`` says of this one in its place."""
        own = self.models.get(model)
        if own is None:
            return self.pod
        return self.pod.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

    @property
    def response_start_or_timeout(self) -> timedelta:
        return self.response_start or self.timeout
