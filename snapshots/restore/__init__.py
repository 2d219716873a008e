"""From a leased snapshot into memory: one reader, three paths.

In: a :class:`snapshots.Lease` and a :class:`Destination`. Out: the destination filled and every chunk's digest
compared, or a typed error that names file and offset. :func:`restore_weights` chooses for each file between O_DIRECT
(cold) and the page cache (warm); :func:`map_weights` is for engines that compute from mapped memory;
:func:`verify_snapshot` reads and keeps nothing.
"""

from snapshots.restore.destination import Destination, Discard, HostMemory, TensorView
from snapshots.restore.mapped import MappedWeights, map_weights
from snapshots.restore.paths import Facts, ReadPath, choose, facts
from snapshots.restore.reader import Restored, read_extra, restore_weights, verify_snapshot
from snapshots.restore.run import THREADS, RestoreOptions

__all__ = [
    "THREADS",
    "Destination",
    "Discard",
    "Facts",
    "HostMemory",
    "MappedWeights",
    "ReadPath",
    "RestoreOptions",
    "Restored",
    "TensorView",
    "choose",
    "facts",
    "map_weights",
    "read_extra",
    "restore_weights",
    "verify_snapshot",
]
