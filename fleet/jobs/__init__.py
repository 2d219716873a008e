"""Durable jobs: tickets that outlive their client, with their body, output and result beside them."""

from fleet.jobs.api import Jobs
from fleet.jobs.limits import JOB_LEASE_MS, Cancelled, Chunk, Deleted, FailJobs, JobLimits, Renewal, Submitted
from fleet.jobs.moving import InChain, chain_of

__all__ = [
    "JOB_LEASE_MS",
    "Cancelled",
    "Chunk",
    "Deleted",
    "FailJobs",
    "InChain",
    "JobLimits",
    "Jobs",
    "Renewal",
    "Submitted",
    "chain_of",
]
