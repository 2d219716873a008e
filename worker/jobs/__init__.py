"""Jobs that this worker runs: leased to it by a claim, run at the replica's own gate or at an upstream elsewhere
(:mod:`worker.jobs.remote`), told to Redis as they go.

In come leases (``worker.granter``), the worker's bell (a cancel) and its end; out go requests with the lease's grant to
the replica's gate, and chunks, results and renewals to ``fleet.Jobs``. The decisions are pure: what the engine is sent
(:mod:`worker.jobs.ask`), what its stream amounts to (:mod:`worker.jobs.assemble`), when a chunk is due
(:mod:`worker.jobs.batching`), what the end of an attempt means (:mod:`worker.jobs.verdict`). :mod:`worker.jobs.run`
and :mod:`worker.jobs.runner` carry them out.
"""

from worker.jobs.door import Door, GateDoor
from worker.jobs.remote import RemoteJobs
from worker.jobs.runner import JobRunner
from worker.jobs.verdict import Broke, End, Refused

__all__ = ["Broke", "Door", "End", "GateDoor", "JobRunner", "Refused", "RemoteJobs"]
