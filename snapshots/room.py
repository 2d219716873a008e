"""Room on the disk: who has to go before something new may be written. The caller holds the store's lock."""

from __future__ import annotations

import logging
from pathlib import Path

from snapshots.catalogue import Catalogue
from snapshots.entry import Entry
from snapshots.errors import StoreFull
from snapshots.evict import plan_eviction, shortage
from snapshots.state import State
from snapshots.trash import Trash

log = logging.getLogger("rewarm.snapshots.store")


class Room:
    def __init__(self, catalogue: Catalogue, trash: Trash, *, capacity_bytes: int | None, floor_bytes: int) -> None:
        self._catalogue, self._trash, self._folders = catalogue, trash, catalogue.folders
        self.capacity_bytes, self.floor_bytes = capacity_bytes, floor_bytes

    def make(self, need: int) -> None:
        """Evict what is least worth keeping until ``need`` bytes fit. Raise StoreFull, and evict nothing, if
        they cannot."""
        usage = self._catalogue.usage()
        short = shortage(
            need_bytes=need,
            free_bytes=usage.free_bytes,
            floor_bytes=self.floor_bytes,
            used_bytes=usage.used_bytes,
            capacity_bytes=self.capacity_bytes,
        )
        if short == 0:
            return
        entries = {entry.folder: entry for entry in self._catalogue.with_leases(locked=True)}
        plan = plan_eviction((entry.candidate() for entry in entries.values()), short)
        if plan.missing_bytes:
            raise StoreFull(
                f"{self._folders.root}: {need} bytes are needed, and {plan.missing_bytes} are missing even with"
                " everything evicted that is neither pinned nor in use"
            )
        for victim in plan.victims:
            gone = self.evict(entries[victim.folder])
            if not self._trash.remove(gone):
                # A reader came between the plan and the rename. It goes on reading; its space comes later.
                log.info("evicted while read id=%s", victim.snapshot_id)

    def evict(self, entry: Entry) -> Path:
        """Take it out of sight, and return where it lies now."""
        log.info("evicted id=%s bytes=%d", entry.snapshot_id, entry.size_bytes)
        gone = self._trash.put(entry.folder)
        states, name, state = self._catalogue.states, entry.folder.parent.name, entry.state
        other = self._folders.published if entry.quarantined else self._folders.quarantined
        if not other(entry.model, entry.version).exists():
            states.forget(name, entry.version)
        elif entry.quarantined:  # a sound copy took its place meanwhile, and keeps what is not about the bad one
            states.write(name, entry.version, State(state.priority, state.pinned))
        else:
            states.write(name, entry.version, State(quarantine=state.quarantine))
        return gone
