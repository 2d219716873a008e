"""From the store into memory: the right bytes by every path, or an error that names file and offset."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from snapshots.capture import capture_checkpoint
from snapshots.errors import Cancelled, DigestMismatch, FileChanged, WeightsCorrupt, WeightsMissing
from snapshots.lease import Lease
from snapshots.linux import DirectAlignment, cached_fraction
from snapshots.progress import Progress
from snapshots.restore import (
    Facts,
    HostMemory,
    ReadPath,
    RestoreOptions,
    choose,
    facts,
    map_weights,
    read_extra,
    restore_weights,
    verify_snapshot,
)
from snapshots.store import Store
from snapshots.throttle import Throttle
from tests.snapshots.making import make_checkpoint, make_store

ROWS = 150_001  # about 19 MB: several chunks, and a tail that is no whole block
PART = "model-rank-0-part-0.safetensors"
PATHS = [ReadPath.DIRECT, ReadPath.BUFFERED]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, make_checkpoint(folder, rows=ROWS)


@pytest.fixture
def store(tmp_path: Path, checkpoint: tuple[Path, dict[str, bytes]]) -> Store:
    store = make_store(tmp_path / "store")
    capture_checkpoint(store, "m", checkpoint[0])
    return store


@pytest.fixture
def lease(store: Store) -> Iterator[Lease]:
    with store.lease("m") as lease:
        yield lease


def flip(path: Path, offset: int) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("threads", [1, 4])
def test_every_path_gives_the_same_bytes(
    lease: Lease, checkpoint: tuple[Path, dict[str, bytes]], path: ReadPath, threads: int
) -> None:
    memory = HostMemory()
    done = restore_weights(lease, memory, RestoreOptions(path=path, threads=threads))
    assert {name: bytes(view.data) for name, view in memory.tensors().items()} == checkpoint[1]
    assert done.total_bytes == lease.manifest.weight_bytes


def test_a_map_gives_them_without_reading(lease: Lease, checkpoint: tuple[Path, dict[str, bytes]]) -> None:
    weights = map_weights(lease)
    assert weights.populate().paths == {PART: ReadPath.MAPPED}
    assert {name: bytes(view.data) for name, view in weights.tensors().items()} == checkpoint[1]


def test_what_is_written_to_a_map_stays_private(lease: Lease) -> None:
    first, second = map_weights(lease), map_weights(lease)
    view = first.file(0)
    view[5000] ^= 0xFF
    assert second.file(0)[5000] != view[5000]
    verify_snapshot(lease)


def test_maps_share_the_pages_of_the_cache(lease: Lease) -> None:
    weights = map_weights(lease)
    weights.populate()
    smaps = Path("/proc/self/smaps").read_text()
    (block,) = [part for part in smaps.split("VmFlags") if PART in part]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in block.splitlines() if line.endswith(" kB")}
    assert sizes["Rss"] * 1024 >= lease.manifest.weight_bytes
    assert sizes["Anonymous"] == 0


def test_the_path_follows_from_the_facts() -> None:
    aligned = DirectAlignment(memory=4, offset=512)
    assert choose(Facts(cached=0.0, alignment=aligned)) is ReadPath.DIRECT
    assert choose(Facts(cached=1.0, alignment=aligned)) is ReadPath.BUFFERED
    assert choose(Facts(cached=0.0, alignment=None)) is ReadPath.BUFFERED
    assert choose(Facts(cached=0.0, alignment=DirectAlignment(memory=4, offset=65536))) is ReadPath.BUFFERED


def test_the_facts_follow_the_page_cache(lease: Lease) -> None:
    descriptor = os.open(lease.folder / PART, os.O_RDONLY)
    os.fsync(descriptor)
    os.pread(descriptor, 30_000_000, 0)
    assert facts(descriptor).cached == 1.0
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    found = facts(descriptor)
    os.close(descriptor)
    assert found.cached < 0.5


def test_a_few_stretches_tell_whether_a_large_file_is_cached(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(8 * 2**20))
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    cold = cached_fraction(descriptor, samples=8)
    os.pread(descriptor, 8 * 2**20, 0)
    warm = cached_fraction(descriptor, samples=8)
    os.close(descriptor)
    assert cold < 0.2
    assert warm > 0.9


@pytest.mark.parametrize("offset", [100, 4096, 4 * 2**20 + 7, -1])
@pytest.mark.parametrize("path", [*PATHS, ReadPath.MAPPED])
def test_a_flipped_bit_is_named_by_file_and_chunk(lease: Lease, path: ReadPath, offset: int) -> None:
    size = lease.manifest.weight_files[0].size
    at = offset % size
    flip(lease.folder / PART, at)
    read = map_weights(lease).populate if path is ReadPath.MAPPED else partial(restore_weights, lease, HostMemory())
    with pytest.raises(DigestMismatch) as error:
        read(RestoreOptions(path=path))
    assert error.value.file == lease.folder / PART
    assert error.value.offset == at // (4 * 2**20) * (4 * 2**20)


def test_without_digests_the_disk_is_trusted(lease: Lease) -> None:
    flip(lease.folder / PART, 10_000)
    restore_weights(lease, HostMemory(), RestoreOptions(verify=False))


def test_verify_reads_the_tokenizer_too(lease: Lease) -> None:
    flip(lease.folder / "tokenizer.json", 3)
    restore_weights(lease, HostMemory())
    with pytest.raises(DigestMismatch, match=r"tokenizer\.json"):
        verify_snapshot(lease)
    with pytest.raises(DigestMismatch, match=r"tokenizer\.json"):
        read_extra(lease, "tokenizer.json")
    assert read_extra(lease, "generation_config.json") == b"{}"


def test_a_file_that_is_cut_or_gone_or_a_link_is_refused_when_it_is_leased(store: Store) -> None:
    folder = store.find("m").folder
    path = folder / PART
    path.chmod(0o644)
    os.truncate(path, 5000)
    with pytest.raises(WeightsCorrupt, match="has 5000 bytes") as error:
        store.lease("m")
    assert error.value.offset == 5000
    elsewhere = folder.parent.parent / "elsewhere"
    path.rename(elsewhere)
    with pytest.raises(WeightsMissing, match="is missing"):
        store.lease("m")
    path.symlink_to(elsewhere)
    with pytest.raises(WeightsCorrupt, match="cannot be opened"):
        store.lease("m")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(WeightsCorrupt, match="cannot be opened"):
        store.lease("m")


def test_a_file_too_many_is_refused(store: Store) -> None:
    (store.find("m").folder / "model-rank-0-part-9.safetensors").write_bytes(b"")
    with pytest.raises(WeightsCorrupt, match="part-9"):
        store.lease("m")


def test_a_file_that_changes_while_it_is_read_is_noticed(lease: Lease) -> None:
    (lease.folder / PART).chmod(0o644)

    def write(progress: Progress) -> None:
        os.utime(lease.folder / PART, ns=(1, 1))

    with pytest.raises(FileChanged):
        restore_weights(lease, HostMemory(), RestoreOptions(report=write))


def test_a_file_that_is_cut_while_it_is_read_is_noticed(lease: Lease) -> None:
    (lease.folder / PART).chmod(0o644)

    def cut(progress: Progress) -> None:
        os.truncate(lease.folder / PART, 4096)

    with pytest.raises((FileChanged, DigestMismatch)):
        restore_weights(lease, HostMemory(), RestoreOptions(report=cut, threads=1))


def test_progress_comes_for_every_chunk_and_never_goes_back(lease: Lease) -> None:
    seen: list[int] = []
    restore_weights(lease, HostMemory(), RestoreOptions(report=lambda progress: seen.append(progress.done_bytes)))
    assert seen == sorted(seen)
    assert len(seen) == -(-lease.manifest.weight_bytes // (4 * 2**20))
    assert seen[-1] == lease.manifest.weight_bytes


@pytest.mark.parametrize("after", [0, 1, 3])
def test_it_can_be_cancelled_at_any_chunk(lease: Lease, after: int) -> None:
    cancel, seen = threading.Event(), []
    if after == 0:
        cancel.set()

    def report(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == after:
            cancel.set()

    with pytest.raises(Cancelled):
        restore_weights(lease, HostMemory(), RestoreOptions(report=report, cancel=cancel, threads=1))
    assert len(seen) == after
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("restore-")]


def test_the_bandwidth_limit_can_be_lifted_while_it_runs(lease: Lease) -> None:
    throttle = Throttle(1.0)  # would take half a year
    first = threading.Event()
    options = RestoreOptions(throttle=throttle, report=lambda progress: first.set())
    thread = threading.Thread(target=restore_weights, args=(lease, HostMemory(), options))
    thread.start()
    throttle.limit(None)
    thread.join(60)
    assert not thread.is_alive()
    assert first.is_set()


class _Failing(HostMemory):
    """A destination whose device went away."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self._count = threading.Lock()

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        with self._count:
            self.open += 1
        return super().buffer(file, offset, length)

    def filled(self, file: int, offset: int, length: int) -> None:
        with self._count:
            self.open -= 1
        raise RuntimeError("the device went away")

    def release(self, file: int, offset: int, length: int) -> None:
        with self._count:
            self.open -= 1


def test_an_error_of_the_destination_ends_all_threads_and_is_raised(lease: Lease) -> None:
    memory = _Failing()
    with pytest.raises(RuntimeError, match="went away"):
        restore_weights(lease, memory)
    assert memory.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("restore-")]


def test_every_buffer_of_a_damaged_snapshot_is_released(lease: Lease) -> None:
    class Counting(_Failing):
        def filled(self, file: int, offset: int, length: int) -> None:
            self.release(file, offset, length)

    memory = Counting()
    flip(lease.folder / PART, 9_000_000)
    with pytest.raises(DigestMismatch):
        restore_weights(lease, memory)
    assert memory.open == 0


class _Unaligned(HostMemory):
    """Memory that O_DIRECT refuses."""

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        self.scratch = bytearray(length + 1)
        return memoryview(self.scratch)[1:]


def test_memory_that_is_not_aligned_is_filled_through_the_cache(lease: Lease) -> None:
    options = RestoreOptions(path=ReadPath.DIRECT, threads=1)
    restore_weights(lease, _Unaligned(), options)
    restore_weights(lease, _Unaligned(), replace(options, threads=2))
