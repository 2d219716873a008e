"""The backend that a name means. The library that speaks to a cluster is loaded for those alone that need it."""

from __future__ import annotations

from controller.backends.base import Backend, LocalAgents
from rewarm.config import KnativeConfig
from rewarm.errors import ClusterUnavailable


def backend(name: str, config: KnativeConfig) -> Backend:
    """One of ``rewarm.knative.names.BACKENDS``. Raise ClusterUnavailable where there is no library or no cluster."""
    if name == "local":
        return LocalAgents()
    try:
        from controller.backends import cluster
        from controller.backends.deployments import Deployments
        from controller.backends.knative import KnativeServices
    except ImportError as error:
        raise ClusterUnavailable(f"the backend {name!r} needs a library that is not installed: {error}") from error
    cluster.configured()
    return KnativeServices(config) if name == "knative" else Deployments(config)
