"""How a place comes to have a worker: by nobody (machines with agents), by Knative, or by scaling Deployments.

The leader says which places need a worker (:meth:`Backend.need`), level-triggered, and reads what is seen of them
(:attr:`Backend.places`), which ``controller.places`` turns into something a decision understands. Nothing here decides
what should run. ``conditions`` (what a cluster's objects mean), ``wakeup`` (when a wake-up request is opened) and
``following`` (what a watch does next) are pure.
"""

from controller.backends.base import Backend, LocalAgents
from controller.backends.choosing import backend

__all__ = ["Backend", "LocalAgents", "backend"]
