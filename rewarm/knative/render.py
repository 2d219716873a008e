"""Configuration → manifests of its workers: one Knative Service, or one Deployment, for each place.

What does not depend on the models (gateway, Redis, rights) is in ``deploy/knative/base``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rewarm.config import Config, parse
from rewarm.errors import CannotRender, ConfigInvalid
from rewarm.hub import is_hub
from rewarm.knative import names
from rewarm.knative.annotations import AUTOSCALING
from rewarm.knative.names import Place
from rewarm.knative.pod import Manifest, labels, longest_drain, pod_spec, snapshots_dir, state_dir
from rewarm.knative.quantity import seconds_text
from rewarm.knative.timeouts import STOP_MARGIN_S

Backend = Literal["knative", "deployment"]


def read(text: str, file: str = names.CONFIG_PATH) -> Config:
    """The file as its pods will read it: relative paths begin at ``CONFIG_DIR``.

    Raise ConfigInvalid, whose lines begin with ``file``.
    """
    try:
        return parse(text, Path(names.CONFIG_PATH))
    except ConfigInvalid as error:
        lines = (line.removeprefix(names.CONFIG_PATH) for line in error.message.splitlines())
        raise ConfigInvalid("\n".join(f"{file}{line}" for line in lines)) from error


def render(text: str, backend: Backend = "knative", file: str = names.CONFIG_PATH) -> dict[str, Manifest]:
    """File name → manifest, in the order of the models. The same text always gives the same manifests.

    ``text`` is the configuration's, ``file`` what messages call it. Raise ConfigInvalid, or CannotRender with one line
    per reason.
    """
    config = read(text, file)
    if reasons := list(_reasons(config)):
        raise CannotRender("\n".join(reasons))
    make = service if backend == "knative" else deployment
    out = {"configmap.yaml": config_map(config, text)}
    for place in places(config):
        out[f"{place.name}.yaml"] = make(config, place)
    return out


def places(config: Config) -> tuple[Place, ...]:
    return names.places({name: model.max_replicas for name, model in config.local_models.items()})


def config_map(config: Config, text: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.CONFIG_MAP,
            "namespace": config.knative.namespace,
            "labels": {names.LABEL_APP: names.APP, names.LABEL_MANAGED_BY: names.APP},
        },
        "data": {names.CONFIG_KEY: text},
    }


def service(config: Config, place: Place) -> Manifest:
    """A Knative Service of at most one pod, reachable in the cluster only."""
    knative = config.knative
    spec = pod_spec(config, place)
    # Readiness is queue-proxy's to poll: with 0 every 50 ms until the worker answers.
    spec["containers"][0]["readinessProbe"] = {"httpGet": {"path": names.READY_PATH}, "periodSeconds": 0}
    own = labels(place, names.COMPONENT_WORKER)
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": place.name,
            "namespace": knative.namespace,
            "labels": {**own, "networking.knative.dev/visibility": "cluster-local"},
            "annotations": {names.ANNOTATION_MODEL: place.model},
        },
        "spec": {
            "template": {
                "metadata": {"labels": own, "annotations": _scaling(config, place)},
                "spec": {
                    "containerConcurrency": 0,  # the gate counts; more than one wake-up must get through
                    "timeoutSeconds": int(knative.timeout.total_seconds()),
                    "responseStartTimeoutSeconds": int(knative.response_start_or_timeout.total_seconds()),
                    **spec,
                },
            }
        },
    }


def deployment(config: Config, place: Place) -> Manifest:
    """A Deployment of at most one pod, without ``replicas``: that is the controller's, and a later apply keeps it."""
    own = labels(place, names.COMPONENT_WORKER)
    spec = pod_spec(config, place)
    spec["terminationGracePeriodSeconds"] = int(longest_drain(config).total_seconds()) + STOP_MARGIN_S
    container = spec["containers"][0]
    probe = {"path": names.READY_PATH, "port": names.PLACE_PORT}
    container["readinessProbe"] = {"httpGet": probe, "periodSeconds": 1}
    # In a Knative Service this would need a feature flag, and the worker finds out by itself.
    container["env"].append({"name": names.ENV_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    container["lifecycle"] = {"preStop": {"httpGet": {"path": names.DRAIN_PATH, "port": names.PLACE_PORT}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": place.name,
            "namespace": config.knative.namespace,
            "labels": own,
            "annotations": {names.ANNOTATION_MODEL: place.model},
        },
        "spec": {
            "strategy": {"type": "Recreate"},  # two pods of a place would not fit on its GPU
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": int(config.knative.progress_deadline.total_seconds()),
            "selector": {"matchLabels": {names.LABEL_APP: names.APP, names.LABEL_PLACE: place.name}},
            "template": {
                "metadata": {"labels": own, "annotations": {names.ANNOTATION_MODEL: place.model}},
                "spec": spec,
            },
        },
    }


def kustomization(files: list[str]) -> Manifest:
    """Lets an overlay name the folder as one resource."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files}


def _scaling(config: Config, place: Place) -> dict[str, str]:
    knative = config.knative
    return {
        names.ANNOTATION_MODEL: place.model,
        f"{AUTOSCALING}class": "kpa.autoscaling.knative.dev",
        f"{AUTOSCALING}metric": "concurrency",
        f"{AUTOSCALING}min-scale": "0",
        f"{AUTOSCALING}max-scale": "1",
        f"{AUTOSCALING}initial-scale": "0" if knative.initial_scale_zero else "1",
        f"{AUTOSCALING}target-burst-capacity": "-1",  # the activator stays in the path, and counts the wake-up
        f"{AUTOSCALING}window": seconds_text(knative.window.total_seconds()),
        f"{AUTOSCALING}scale-down-delay": "0s",
        f"{AUTOSCALING}scale-to-zero-pod-retention-period": "0s",
        "serving.knative.dev/progress-deadline": seconds_text(knative.progress_deadline.total_seconds()),
    }


def _reasons(config: Config) -> list[str]:
    """Why the configuration cannot run on a cluster, each as ``field: what, and what to write``."""
    out = []
    if not config.local_models:
        out.append("models: none runs on a worker, so there is nothing to render")
    if not config.keys:
        out.append("keys: in a cluster the gateway listens on every interface: add a key")
    folders = {"state_dir": state_dir(config), "snapshots.dir": snapshots_dir(config)}
    for field, folder in folders.items():
        if folder.is_relative_to(names.CONFIG_DIR):
            out.append(f"{field}: {folder} would lie in the mounted configuration: write an absolute path, or nothing")
    mount = Path(config.knative.weights_mount)
    if mount.is_relative_to(names.CONFIG_DIR):
        out.append(f"knative.weights_mount: {mount} is where the configuration is mounted: write another path")
    if config.knative.weights.kind == "none":
        return out
    for name, model in config.local_models.items():
        source = model.source
        if source is not None and not is_hub(source) and not _normal(source).is_relative_to(mount):
            out.append(
                f"models.{name}.source: in a pod this is {_normal(source)}, which is not below "
                f"knative.weights_mount, {mount}: move one of them, or write knative.weights: {{kind: none}}"
            )
    return out


def _normal(path: Path) -> Path:
    """Without ``..``, and without looking at this machine's files."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)
