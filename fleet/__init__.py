"""The shared state in Redis: keys, Lua scripts, the queue of held requests, the registry of workers, the leader.

In come tickets (gateway), claims (worker agents), heartbeats (both) and what the leader wants (controller); out go
grants on each gateway's stream, wants to each worker, and :class:`FleetView`, one reading of everything. Every change
is one Lua script over declared keys that all carry the tag ``{rw:<fleet>}``; deadlines are compared with Redis
``TIME``, never with a client's clock. Nothing here decides what to run where, and nothing here knows HTTP or engines.

When Redis cannot be reached, is loading, read-only or out of memory, every method raises
:class:`rewarm.errors.QueueUnavailable` within seconds (``QueueFull`` where an enqueue meets a full Redis). All methods
may be repeated after that: a repeat of a call whose reply was lost changes nothing.

Durable jobs (:class:`Jobs`) wait in the same order, in bands after the interactive ones, and are leased instead of
granted: every write of the worker that runs one names its attempt, and is refused once the lease is another's. Their
bodies, output and results lie here too, bounded in bytes, and go a while after the end. :class:`Files` keeps what
batches read and write, :class:`Batches` how far each one is and which gateway works on it.
"""

from fleet._reap import Reaped
from fleet.batches import Batches, Step, error_id, line_job_id, output_id
from fleet.bell import Bell, BellEvent, Hint, Lost, Reconnected, Tick
from fleet.client import FleetClient
from fleet.commands import Commands
from fleet.embedded import EmbeddedRedis
from fleet.files import PIECE_BYTES, FileLimits, Files
from fleet.hooks import Delivery, Hooks, HookStatus
from fleet.jobs import JOB_LEASE_MS, Cancelled, Chunk, InChain, JobLimits, Jobs, Renewal, Submitted, chain_of
from fleet.keys import ALL_BANDS, BANDS, JOB_BANDS, Keys
from fleet.leader import Leader, LostLeadership
from fleet.publisher import Publisher
from fleet.queue import GRANT_TTL_MS, Claimed, Enqueued, Queue
from fleet.receipts import Receipts
from fleet.registry import Registry
from fleet.spending import Spending, Spent
from fleet.view import FleetView, Waiting
from fleet.wakes import Wakes

__all__ = [
    "ALL_BANDS",
    "BANDS",
    "GRANT_TTL_MS",
    "JOB_BANDS",
    "JOB_LEASE_MS",
    "PIECE_BYTES",
    "Batches",
    "Bell",
    "BellEvent",
    "Cancelled",
    "Chunk",
    "Claimed",
    "Commands",
    "Delivery",
    "EmbeddedRedis",
    "Enqueued",
    "FileLimits",
    "Files",
    "FleetClient",
    "FleetView",
    "Hint",
    "HookStatus",
    "Hooks",
    "InChain",
    "JobLimits",
    "Jobs",
    "Keys",
    "Leader",
    "Lost",
    "LostLeadership",
    "Publisher",
    "Queue",
    "Reaped",
    "Receipts",
    "Reconnected",
    "Registry",
    "Renewal",
    "Spending",
    "Spent",
    "Step",
    "Submitted",
    "Tick",
    "Waiting",
    "Wakes",
    "chain_of",
    "error_id",
    "line_job_id",
    "output_id",
]
