"""Any order of captures, leases, evictions, pins, quarantines, damage and collections, against a model of a few
sets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from snapshots.capture import capture_checkpoint
from snapshots.errors import DigestMismatch, SnapshotExists, SnapshotPinned
from snapshots.lease import Lease
from snapshots.restore import HostMemory, restore_weights, verify_snapshot
from tests.depth import examples
from tests.snapshots.making import make_checkpoint, make_store

MODELS = ("a", "org/b")
SEEDS = (1, 2, 3)

_checkpoints = Path(tempfile.mkdtemp(prefix="rewarm-test-"))
_bytes: dict[int, dict[str, bytes]] = {}


@pytest.fixture(scope="module", autouse=True)
def checkpoints() -> object:
    for seed in SEEDS:
        _bytes[seed] = make_checkpoint(_checkpoints / str(seed), seed=seed, rows=16)
    yield
    shutil.rmtree(_checkpoints)


class StoreMachine(RuleBasedStateMachine):
    snapshots = Bundle("snapshots")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="rewarm-test-"))
        self.now = 0.0
        self.store = make_store(self.root / "store", now=self.tick)
        self.published: dict[str, int] = {}  # id → seed
        self.pinned: set[str] = set()
        self.quarantined: set[str] = set()
        self.held: dict[Lease, int] = {}

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def teardown(self) -> None:
        for lease in self.held:
            lease.close()
        shutil.rmtree(self.root)

    @rule(target=snapshots, model=st.sampled_from(MODELS), seed=st.sampled_from(SEEDS))
    def capture(self, model: str, seed: int) -> object:
        try:
            made = capture_checkpoint(self.store, model, _checkpoints / str(seed)).snapshot_id
        except SnapshotExists as exists:
            there = self.published[exists.snapshot_id]
        else:
            there = 0
        if there:
            assert there == seed
            return multiple()
        assert made not in self.published
        self.published[made] = seed
        return made

    @rule(target=leases, snapshot=snapshots)
    def lease(self, snapshot: str) -> object:
        if snapshot not in self.published:
            return multiple()
        lease = self.store.lease(snapshot)
        self.held[lease] = self.published[snapshot]
        return lease

    @rule(lease=leases)
    def read(self, lease: Lease) -> None:
        if lease not in self.held:
            return
        memory = HostMemory()
        restore_weights(lease, memory)
        got = {name: bytes(view.data) for name, view in memory.tensors().items()}
        assert got == {**_bytes[self.held[lease]]}

    @rule(lease=consumes(leases))
    def let_go(self, lease: Lease) -> None:
        del self.held[lease]
        lease.close()

    @rule(snapshot=snapshots)
    def evict(self, snapshot: str) -> None:
        if snapshot not in self.published and snapshot not in self.quarantined:
            return
        read_by = [lease for lease in self.held if lease.snapshot_id == snapshot and not lease.evicted]
        if snapshot in self.pinned:
            with pytest.raises(SnapshotPinned):
                self.store.evict(snapshot)
            return
        gone = self.store.evict(snapshot)
        if snapshot in self.published:
            assert gone == (not read_by)
            del self.published[snapshot]
        else:
            self.quarantined.discard(snapshot)

    @rule(snapshot=snapshots, pinned=st.booleans())
    def pin(self, snapshot: str, pinned: bool) -> None:
        if snapshot in self.published:
            self.store.set_state(snapshot, pinned=pinned)
            (self.pinned.add if pinned else self.pinned.discard)(snapshot)

    @rule(snapshot=snapshots)
    def damage(self, snapshot: str) -> None:
        """A bit flips; verification finds it, and the snapshot goes into quarantine."""
        if snapshot not in self.published or any(lease.snapshot_id == snapshot for lease in self.held):
            return
        path = self.store.find(snapshot).folder / "model-rank-0-part-0.safetensors"
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.chmod(0o644)
        path.write_bytes(raw)
        with self.store.lease(snapshot) as lease:
            with pytest.raises(DigestMismatch):
                verify_snapshot(lease)
        self.store.quarantine(snapshot, "digest", "a bit flipped")
        del self.published[snapshot]
        self.quarantined.add(snapshot)
        self.pinned.discard(snapshot)

    @rule(quarantined=st.booleans())
    def collect(self, quarantined: bool) -> None:
        self.store.collect(quarantined=quarantined)
        if quarantined:
            self.quarantined.clear()

    @invariant()
    def the_store_shows_what_is_there(self) -> None:
        entries = self.store.list()
        assert {entry.snapshot_id for entry in entries if not entry.quarantined} == set(self.published)
        assert {entry.snapshot_id for entry in entries if entry.quarantined} == self.quarantined
        assert {entry.snapshot_id for entry in entries if entry.state.pinned} == self.pinned
        assert all(entry.problem is None for entry in entries)

    @invariant()
    def only_what_is_still_read_waits_in_the_trash(self) -> None:
        waiting = {lease.folder.name for lease in self.held if lease.evicted}
        assert bool(waiting) >= bool(list((self.root / "store" / "trash").iterdir()))
        assert list((self.root / "store" / "staging").iterdir()) == []


StoreMachine.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=25)
TestStore = StoreMachine.TestCase
