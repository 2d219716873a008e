"""One engine, one host process: ``python -m worker.engines.<engine> HOSTFILE``, started by the agent.

In: a :class:`HostFile` (specification, sockets, secrets). Out: reports over the report socket, a gate that serves the
endpoint, the engine's own output in the model's log. What all hosts share is in ``worker.engines.host``, warm-up and
verification in ``worker.engines.proof``; how much memory an engine needs is estimated in ``worker.engines.estimate``.
"""
