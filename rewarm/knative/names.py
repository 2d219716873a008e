"""Every name that manifests, controller and workers must agree on: objects, labels, ports, paths, variables.

A fleet has a namespace of its own, so that the shared objects have fixed names. A **place** is where one replica of one
model may run: one Knative Service, or one Deployment, of at most one pod. Its name is the object's and the worker's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# --- objects -------------------------------------------------------------------------------------------------------

GATEWAY = "rewarm-gateway"
"""Deployment, Service, ServiceAccount, Role and PodDisruptionBudget of the gateways."""

WORKER_ACCOUNT = "rewarm-worker"
"""ServiceAccount of worker pods. It may do nothing, and no token of it is mounted."""

CONFIG_MAP = "rewarm-config"
CONFIG_KEY = "config.yaml"
"""The ConfigMap's only key: the configuration file, as it was written."""

SECRET = "rewarm"  # noqa: S105 -- an object's name
SECRET_FLEET_KEY = "fleet-secret"  # noqa: S105 -- a key's name
SECRET_REDIS_KEY = "redis-url"  # noqa: S105 -- a key's name

SECRET_GATEWAY_ENVIRONMENT = "rewarm-environment"  # noqa: S105 -- an object's name
SECRET_WORKER_ENVIRONMENT = "rewarm-worker-environment"  # noqa: S105 -- an object's name
"""Further variables, each where it is there: keys of remote models and webhooks; a hub's token."""

CONTAINER = "worker"
"""The container of a worker's pod. Knative adds one of its own, ``queue-proxy``."""

# --- labels and annotations ----------------------------------------------------------------------------------------

LABEL_APP = "app.kubernetes.io/name"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
APP = "rewarm"
COMPONENT_GATEWAY = "gateway"
COMPONENT_WORKER = "worker"

LABEL_PLACE = "rewarm.dev/place"
"""On the Service or Deployment of a place and on its pods."""

ANNOTATION_MODEL = "rewarm.dev/model"
"""The model's name as configured: a label's value could not hold all of them."""

LABEL_KNATIVE_SERVICE = "serving.knative.dev/service"
LABEL_KNATIVE_REVISION = "serving.knative.dev/revision"
"""Set by Knative on Revisions, PodAutoscalers and pods."""

WORKER_SELECTOR = f"{LABEL_APP}={APP},{LABEL_COMPONENT}={COMPONENT_WORKER}"

# --- inside a pod --------------------------------------------------------------------------------------------------

GATEWAY_PORT = 8080

PLACE_PORT = 8080
"""The place server of a worker's pod, which Knative's requests and probes reach. Knative says it in ``PORT`` as well.
Gates listen on ports of their own, which gateways reach by the pod's address."""

HOLD_PATH = "/rewarm/place/hold"
"""Answers when the worker needs its pod no longer; the leader keeps one such request open for each wanted place."""

READY_PATH = "/rewarm/place/ready"
"""200 as soon as the worker can be told what to load: readiness probe and start-up probe."""

DRAIN_PATH = "/rewarm/place/drain"
"""preStop hook of Deployments: drains, and answers when nothing runs any more."""

CONFIG_DIR = "/srv/rewarm"
CONFIG_PATH = f"{CONFIG_DIR}/{CONFIG_KEY}"
"""Where the ConfigMap is mounted. The file's relative paths start here, for gateways and workers alike."""

STATE_HOME = "/var/lib"
STATE_DIR = f"{STATE_HOME}/rewarm"
"""Logs, sockets and, unless the configuration says otherwise, snapshots. The root file system is read-only."""

ENV_STATE_HOME = "XDG_STATE_HOME"
ENV_PLACE = "REWARM_PLACE"
"""Makes `rewarm worker` the worker of this place: it has this name, its pod's address, and the place server."""

ENV_ADDRESS = "REWARM_ADDRESS"
"""The pod's address, where the manifest can say it (`fieldRef`). Elsewhere its worker finds out."""

ENV_REDIS_URL = "REWARM_REDIS_URL"
ENV_BACKEND = "REWARM_BACKEND"
"""Which of the controller's backends a gateway drives: ``local`` (default), ``knative`` or ``deployment``."""

ENV_LISTEN = "REWARM_LISTEN"
"""Takes the place of ``gateway.listen``."""

BACKENDS = ("local", "knative", "deployment")

# --- places --------------------------------------------------------------------------------------------------------

_PREFIX = "model-"
_LONGEST_SLUG = 40
"""Knative appends ``-00001-deployment-…`` to a Service's name; a Revision's name must stay within 63 characters."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where replica ``index`` (from 0) of ``model`` may run."""

    name: str
    model: str
    index: int


def place_name(model: str, index: int) -> str:
    """``model-chat-0``: a DNS-1035 label of at most 52 characters, different for different models."""
    return f"{_PREFIX}{_slug(model)}-{index}"


def places_of(model: str, max_replicas: int) -> tuple[Place, ...]:
    return tuple(Place(place_name(model, index), model, index) for index in range(max_replicas))


def places(max_replicas: Mapping[str, int]) -> tuple[Place, ...]:
    """All places of a fleet, from model → ``max_replicas``."""
    return tuple(place for model, most in max_replicas.items() for place in places_of(model, most))


def by_name(found: Iterable[Place]) -> dict[str, Place]:
    return {place.name: place for place in found}


def hold_url(place: str, namespace: str, cluster_domain: str) -> str:
    """The Service's cluster-local address, through Knative's ingress and activator: what wakes a place at zero."""
    return f"http://{place}.{namespace}.svc.{cluster_domain}{HOLD_PATH}"


def _slug(model: str) -> str:
    """A digest follows wherever the name itself could not stand, so that two models never share one."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    if slug == model and len(slug) <= _LONGEST_SLUG:
        return slug
    digest = hashlib.sha256(model.encode()).hexdigest()[:6]
    return f"{slug[: _LONGEST_SLUG - 7].rstrip('-')}-{digest}"
