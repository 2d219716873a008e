"""One agent per machine: it runs the replicas that the leader wants, and hands their slots to waiting tickets.

In: wants of the leader and hints (``fleet``), reports of its engines' hosts (``worker.report``), and requests of
gateways at each replica's gate. Out: heartbeats with every replica's state, progress of loads, claims of tickets,
output and results of durable jobs (``worker.jobs``), engine processes.

The life of a replica is decided in ``worker.lifecycle``, what to start and stop in ``worker.reconcile``, who may run in
``worker.gate.ledger``: pure functions. ``worker.replica`` and ``worker.agent`` carry it out. An engine's host process
imports ``worker.report``, ``worker.gate`` and ``worker.engines.host`` only, so this door loads nothing before it is
asked.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.devices.adding_up import problems_here as problems_here
    from worker.devices.here import devices_here as devices_here
    from worker.engines.vllm.adapters import check as check_adapter
    from worker.place import own_address as own_address
    from worker.run import run_agent as run_agent

__all__ = ["check_adapter", "devices_here", "own_address", "problems_here", "run_agent"]


def __getattr__(name: str) -> Any:
    if name == "run_agent":
        from worker.run import run_agent

        return run_agent
    if name == "own_address":
        from worker.place import own_address

        return own_address
    if name == "check_adapter":
        from worker.engines.vllm.adapters import check

        return check
    if name == "devices_here":
        from worker.devices.here import devices_here

        return devices_here
    if name == "problems_here":
        from worker.devices.adding_up import problems_here

        return problems_here
    raise AttributeError(f"module 'worker' has no attribute {name!r}")
