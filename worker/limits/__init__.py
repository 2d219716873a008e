"""What one engine may take of the machine, so that its runaway is its own end and nobody else's.

In: a model's ``memory_limit`` and ``cpus``, and a group of processes. Out: a control group around them where this user
may make one (``worker.limits.cgroups``: v2 where it was delegated, v1 where it is writable), else a watch on their
memory (``worker.limits.watchdog``) and an affinity to some of the cores. Never a limit of address space: importing vLLM
alone maps 1.35 GB for 0.5 GB resident.

The same group is what a load is slowed down by (:mod:`worker.pacing`).
"""
