"""Decides what the fleet should run, and tells it.

In comes :class:`fleet.FleetView`, one reading of the shared state, on every hint or tick; out go wants to the
workers, the catalogue, remembered failures, and failed tickets. ``decide(state, event, now_ms)`` is pure and holds
all policy: scaling, placement, retry, reload, the operator's commands. ``run`` is the one edge: it campaigns for
leadership among all candidates, reads, decides and acts, each write fenced by the leader's term. Wants become processes
through the workers' agents. That there is a worker is a :class:`Backend`'s matter: :class:`LocalAgents` relies on
machines that run one; in a cluster a backend makes pods come and go (``controller.backends``).

What a leader needs to carry on from another one is in Redis. Its own memory may vanish at any time.
"""

from controller.actions import (
    Action,
    FailWaiting,
    Forget,
    ForgetStatus,
    Keep,
    Note,
    PublishCatalogue,
    SetStatus,
    Start,
    Stop,
)
from controller.backends import Backend, LocalAgents, backend
from controller.decide import Decision, decide
from controller.events import Configured, Elected, Event, Operator, RedisBack, RedisLost, Tick
from controller.run import Reload, run
from controller.state import ControllerState, Memory, StopReason

__all__ = [
    "Action",
    "Backend",
    "Configured",
    "ControllerState",
    "Decision",
    "Elected",
    "Event",
    "FailWaiting",
    "Forget",
    "ForgetStatus",
    "Keep",
    "LocalAgents",
    "Memory",
    "Note",
    "Operator",
    "PublishCatalogue",
    "RedisBack",
    "RedisLost",
    "Reload",
    "SetStatus",
    "Start",
    "Stop",
    "StopReason",
    "Tick",
    "backend",
    "decide",
    "run",
]
