"""How fast weights come from this machine's disk: our reader beside fio and the readers that engines use, same bytes.

In: a folder on the disk to measure. Out: a dictionary of medians, ratios taken within each round, and the targets
that were met or missed. Every reader runs in a process of its own; rounds are interleaved, so that other work on the
machine hits all of them alike.
"""

from snapshots.bench.report import render
from snapshots.bench.run import Bench

__all__ = ["Bench", "render"]
