"""Telling clients about their jobs: signed POSTs from the outbox in Redis, by whichever gateway comes first.

In come a job's webhook (to be checked before the job is accepted) and the outbox's events; out go HTTP requests to
hosts that are not ours, and how far they got. Nothing here runs in a worker: a dead receiver costs nobody a slot.

``Webhooks`` is the door. Deciding is pure (``addresses``, ``schedule``, ``hosts``, ``signing``); ``sender`` holds the
only socket.
"""

from gateway.webhooks.addresses import Allowed
from gateway.webhooks.door import Webhooks
from gateway.webhooks.signing import Secret, read_secrets

__all__ = ["Allowed", "Secret", "Webhooks", "read_secrets"]
