"""The pod of a worker: the same for both backends, but for what only one of them has."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from rewarm.config import Config, PodConfig, VllmModel, VolumeConfig
from rewarm.knative import names
from rewarm.knative.names import Place
from rewarm.knative.quantity import size_text

USER_ID = 10001
"""Of the images' user; a folder of a node that workers write to must belong to it."""

SNAPSHOTS, STATE, CONFIGURATION, WEIGHTS, TEMPORARY, SHARED_MEMORY = (
    "snapshots", "state", "config", "weights", "tmp", "shm",
)  # fmt: skip
"""Volumes in their order. ``snapshots`` is the first, where there is one: overlays replace it by its place."""

CPU_OVERHEAD_BYTES = 2**30
"""Of the agent, its pool and Python, beside an engine whose memory the configuration states."""

Manifest = dict[str, Any]


def labels(place: Place | None, component: str) -> dict[str, str]:
    out = {
        names.LABEL_APP: names.APP,
        names.LABEL_COMPONENT: component,
        names.LABEL_MANAGED_BY: names.APP,
    }
    return out if place is None else {**out, names.LABEL_PLACE: place.name}


def state_dir(config: Config) -> Path:
    """Where a worker's state lies in its pod."""
    return config.state_dir or Path(names.STATE_DIR) / config.fleet


def snapshots_dir(config: Config) -> Path:
    return config.snapshots.dir or state_dir(config) / "snapshots"


def gpus_of(config: Config, model: str) -> int:
    pod = config.knative.pod_of(model)
    if pod.gpus is not None:
        return pod.gpus
    return 1 if isinstance(config.local_models[model], VllmModel) else 0


def longest_drain(config: Config) -> timedelta:
    """How long the requests of a worker may go on after they should end."""
    return max(config.worker.shutdown_deadline, *(model.drain_deadline for model in config.local_models.values()))


def pod_spec(config: Config, place: Place) -> Manifest:
    """``containers``, ``volumes`` and what the configuration asks of the node."""
    pod = config.knative.pod_of(place.model)
    spec: Manifest = {
        "serviceAccountName": names.WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(config, place, pod)],
        "volumes": [{"name": name, **source} for name, source, _ in _volumes(config, pod)],
    }
    if config.knative.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in config.knative.image_pull_secrets]
    if pod.node_selector:
        spec["nodeSelector"] = dict(sorted(pod.node_selector.items()))
    if pod.tolerations:
        spec["tolerations"] = [toleration.model_dump(exclude_none=True) for toleration in pod.tolerations]
    if pod.runtime_class:
        spec["runtimeClassName"] = pod.runtime_class
    if pod.priority_class:
        spec["priorityClassName"] = pod.priority_class
    if config.knative.snapshots.kind == "pvc" and not config.knative.snapshots.read_only:
        spec["securityContext"] = {"fsGroup": USER_ID}  # a fresh claim belongs to root
    return spec


def _container(config: Config, place: Place, pod: PodConfig) -> Manifest:
    return {
        "name": names.CONTAINER,
        "image": pod.image,
        "args": ["worker", names.CONFIG_PATH],
        "env": _env(config, place, pod),
        "envFrom": [{"secretRef": {"name": names.SECRET_WORKER_ENVIRONMENT, "optional": True}}],
        "ports": [{"containerPort": names.PLACE_PORT}],
        "resources": _resources(config, place, pod),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsGroup": USER_ID,
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": name, **mount} for name, _, mount in _volumes(config, pod)],
    }


def _env(config: Config, place: Place, pod: PodConfig) -> list[Manifest]:
    plain = {
        **dict(sorted(pod.env.items())),
        "HOME": names.STATE_DIR,  # caches of engines; the image's own home is read-only
        "REWARM_LOG_JSON": "1",
        names.ENV_STATE_HOME: names.STATE_HOME,
        names.ENV_PLACE: place.name,
    }
    secret = {names.ENV_REDIS_URL: names.SECRET_REDIS_KEY, config.secret_env: names.SECRET_FLEET_KEY}
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": names.SECRET, "key": key}}}
            for name, key in secret.items()
        ),
    ]


def _resources(config: Config, place: Place, pod: PodConfig) -> Manifest:
    """Devices by their limit alone; memory is requested as it is limited, so that no pod dies of another's need."""
    gpus = gpus_of(config, place.model)
    model = config.local_models[place.model]
    memory = pod.memory
    if memory is None and not gpus and model.memory is not None:
        memory = model.memory + CPU_OVERHEAD_BYTES
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if pod.cpu is not None:
        requests["cpu"] = f"{pod.cpu:g}"
    if memory is not None:
        requests["memory"] = limits["memory"] = size_text(memory)
    if gpus:
        limits[pod.gpu_resource] = str(gpus)
    out: Manifest = {}
    if requests:
        out["requests"] = requests
    if limits:
        out["limits"] = limits
    return out


def _volumes(config: Config, pod: PodConfig) -> list[tuple[str, Manifest, Manifest]]:
    """(name, source, mount) of each, in the order of a pod's lists."""
    knative = config.knative
    state = str(config.state_dir) if config.state_dir else names.STATE_DIR
    found: list[tuple[str, Manifest | None, Manifest]] = [
        (SNAPSHOTS, _source(knative.snapshots, write=True), {"mountPath": str(snapshots_dir(config))}),
        (STATE, {"emptyDir": {}}, {"mountPath": state}),
        (CONFIGURATION, {"configMap": {"name": names.CONFIG_MAP}}, {"mountPath": names.CONFIG_DIR, "readOnly": True}),
        (WEIGHTS, _source(knative.weights, write=False), {"mountPath": knative.weights_mount}),
        (TEMPORARY, {"emptyDir": {}}, {"mountPath": "/tmp"}),  # noqa: S108 -- a path in the pod
    ]
    if pod.shared_memory is not None:
        memory = {"medium": "Memory", "sizeLimit": size_text(pod.shared_memory)}
        found.append((SHARED_MEMORY, {"emptyDir": memory}, {"mountPath": "/dev/shm"}))  # noqa: S108 -- likewise
    read_only = {SNAPSHOTS: knative.snapshots.read_only, WEIGHTS: knative.weights.read_only}
    return [
        (name, source, {**mount, "readOnly": True} if read_only.get(name) else mount)
        for name, source, mount in found
        if source is not None
    ]


def _source(volume: VolumeConfig, *, write: bool) -> Manifest | None:
    if volume.kind == "none":
        return None
    if volume.kind == "pvc":
        claim: Manifest = {"claimName": volume.claim}
        return {"persistentVolumeClaim": {**claim, "readOnly": True} if volume.read_only else claim}
    if volume.kind == "hostPath":
        return {"hostPath": {"path": volume.path, "type": "DirectoryOrCreate" if write else "Directory"}}
    return {"emptyDir": {} if volume.size is None else {"sizeLimit": size_text(volume.size)}}
