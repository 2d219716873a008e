"""From somewhere else into the store: resumed, verified, limited, and never half."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.capture import capture_checkpoint, weights_digest
from snapshots.digests import chunk_digest
from snapshots.errors import (
    CaptureRunning,
    DigestMismatch,
    SourceChanged,
    SourceUnavailable,
    StoreFull,
    WeightsCorrupt,
)
from snapshots.gguf_snapshot import GgufMode
from snapshots.linux import IOPRIO_CLASS_IDLE, idle_io
from snapshots.partial import Partial
from snapshots.progress import Progress
from snapshots.restore import HostMemory, restore_weights, verify_snapshot
from snapshots.sources import DownloadOptions, FetchOptions, fetch, open_source, prefetch
from snapshots.sources.base import choose_files
from snapshots.sources.journal import Journal
from snapshots.store import Store
from tests.snapshots.file_server import serving
from tests.snapshots.making import make_checkpoint, make_store

QUICK = FetchOptions(download=DownloadOptions(retry_s=0.001, attempts=3))
ROWS = 150_001  # 19 MB: three chunks of the download


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "remote", rows=ROWS, shards=1)
    return tmp_path / "remote"


def leftovers(store: Store) -> list[Path]:
    return [path for name in ("staging", "trash", "fetch") for path in (store.root / name).iterdir()]


@pytest.mark.asyncio
@pytest.mark.parametrize("ranges", [True, False])
async def test_a_checkpoint_from_a_web_server(store: Store, folder: Path, ranges: bool) -> None:
    async with serving(folder, ranges=ranges) as server:
        fetched = await fetch(store, "m", server.url, QUICK)
    assert fetched.new
    assert fetched.manifest.source.location == server.url
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)
        assert (lease.folder / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
        verify_snapshot(lease)
    assert leftovers(store) == []


@pytest.mark.asyncio
async def test_what_is_here_already_is_not_downloaded_again(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        await fetch(store, "m", server.url, QUICK)
        server.served_bytes = 0
        again = await fetch(store, "m", server.url, QUICK)
        assert not again.new
        assert server.served_bytes < 10_000
        make_checkpoint(folder, seed=7, rows=ROWS, shards=1)
        assert (await fetch(store, "m", server.url, QUICK)).new
    assert len(store.list()) == 2


@pytest.mark.asyncio
async def test_a_snapshot_on_a_web_server_is_taken_as_it_is(store: Store, folder: Path, tmp_path: Path) -> None:
    """Its own manifest verifies every chunk, and it is the same version here as there."""
    other = make_store(tmp_path / "other")
    made = capture_checkpoint(other, "m", folder)
    async with serving(other.find("m").folder) as server:
        fetched = await fetch(store, "m", server.url, QUICK)
        assert fetched.manifest == made
        assert not (await fetch(store, "m", server.url, QUICK)).new
    with store.lease("m") as lease:
        restore_weights(lease, HostMemory())
        verify_snapshot(lease)
    assert leftovers(store) == []


@pytest.mark.asyncio
async def test_a_snapshot_whose_bytes_are_wrong_over_there_is_refused_by_file_and_offset(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    other = make_store(tmp_path / "other")
    capture_checkpoint(other, "m", folder)
    path = other.find("m").folder / "model-rank-0-part-0.safetensors"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"\xff\x00\xff")
    async with serving(path.parent) as server:
        with pytest.raises(DigestMismatch, match="other bytes") as error:
            await fetch(store, "m", server.url, QUICK)
    assert (error.value.file.name, error.value.offset) == (path.name, 4 * 2**20)
    assert store.list() == []


@pytest.mark.asyncio
async def test_an_interrupted_download_goes_on_where_it_was(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        waiting = asyncio.Event()

        def report(progress: Progress) -> None:
            if progress.done_bytes > 8 * 2**20:
                waiting.set()

        slow = DownloadOptions(at_once=1, report=report)
        slow.throttle.limit(40e6)
        task = asyncio.create_task(fetch(store, "m", server.url, FetchOptions(download=slow)))
        await asyncio.wait_for(waiting.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.list() == []
        server.served_bytes = 0
        total = sum(path.stat().st_size for path in folder.iterdir())
        assert (await fetch(store, "m", server.url, QUICK)).new
        assert server.served_bytes < total - 7 * 2**20
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)


@pytest.mark.asyncio
async def test_a_chunk_that_was_damaged_on_disk_meanwhile_is_fetched_again(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        server.fail = []
        broken = replace(QUICK, download=replace(QUICK.download, attempts=1, at_once=1))
        server.break_after = 17 * 2**20  # never: a chunk is smaller
        location = server.url

        def report(progress: Progress) -> None:
            if progress.done_bytes > 16 * 2**20:
                server.fail = [500] * 10

        with pytest.raises(SourceUnavailable):
            await fetch(store, "m", location, replace(broken, download=replace(broken.download, report=report)))
        (partial,) = (store.root / "fetch").iterdir()
        data = partial / "files" / "model-00001-of-00001.safetensors"
        with data.open("r+b") as file:
            file.seek(100_000)
            file.write(b"damage")
        server.fail = []
        await fetch(store, "m", location, QUICK)
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)


@pytest.mark.asyncio
async def test_a_broken_connection_and_a_busy_server_are_asked_again(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        server.break_after = 1_000_000
        server.fail = [503, 429]
        await fetch(store, "m", server.url, replace(QUICK, download=replace(QUICK.download, attempts=5)))
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)


@pytest.mark.asyncio
@pytest.mark.parametrize("ranges", [True, False])
async def test_a_file_that_is_replaced_meanwhile_is_noticed(store: Store, folder: Path, ranges: bool) -> None:
    async with serving(folder, ranges=ranges) as server:
        path = folder / "model-00001-of-00001.safetensors"
        source = open_source(server.url)
        try:
            listing = await source.listing()
            make_checkpoint(folder, seed=5, rows=ROWS, shards=1)
            file = listing.find(path.name)
            assert file is not None
            with pytest.raises(SourceChanged):
                async for _ in source.read(file, 0, 8 * 2**20 if ranges else file.size):
                    pass
        finally:
            await source.close()


@pytest.mark.asyncio
async def test_what_is_missing_or_refused_is_said(store: Store, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    async with serving(tmp_path / "nothing") as server:
        with pytest.raises(SourceUnavailable, match=r"config\.json"):
            await fetch(store, "m", server.url, QUICK)
    async with serving(folder) as server:
        server.fail = [403]
        with pytest.raises(SourceUnavailable, match="HTTP 403"):
            await fetch(store, "m", server.url, QUICK)
        url = server.url
    with pytest.raises(SourceUnavailable, match="3 attempts"):
        await fetch(store, "m", url, QUICK)
    with pytest.raises(SourceUnavailable, match="write http"):
        await fetch(store, "m", "ftp://example.org/x", QUICK)


@pytest.mark.asyncio
async def test_a_truncated_file_over_there_never_becomes_a_snapshot(store: Store, folder: Path) -> None:
    path = folder / "model-00001-of-00001.safetensors"
    os.truncate(path, path.stat().st_size - 10)
    async with serving(folder) as server:
        with pytest.raises(WeightsCorrupt, match="truncated"):
            await fetch(store, "m", server.url, QUICK)
    assert store.list() == []


@pytest.mark.asyncio
async def test_an_index_that_names_files_elsewhere_is_refused(store: Store, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret.safetensors"}}')
    async with serving(folder) as server:
        with pytest.raises(SourceUnavailable, match="secret"):
            await fetch(store, "m", server.url, QUICK)


@pytest.mark.asyncio
async def test_several_chunks_at_once_and_not_more(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        await fetch(store, "m", server.url, replace(QUICK, download=replace(QUICK.download, at_once=3)))
        assert 2 <= server.most_at_once <= 14  # the listing asks for the small files' first bytes together
        sizes = [wanted for name, wanted in server.requests if name.endswith(".safetensors")]
    assert f"bytes={8 * 2**20}-{16 * 2**20 - 1}" in sizes


@pytest.mark.asyncio
async def test_a_full_disk_is_said_before_the_download(tmp_path: Path, folder: Path) -> None:
    store = make_store(tmp_path / "small", capacity_bytes=5_000_000)
    async with serving(folder) as server:
        with pytest.raises(StoreFull):
            await fetch(store, "m", server.url, QUICK)
        assert server.served_bytes < 100_000


@pytest.mark.asyncio
async def test_two_downloads_of_one_model_one_is_told(store: Store, folder: Path) -> None:
    async with serving(folder) as server:
        with Partial(store, "m", server.url):
            with pytest.raises(CaptureRunning):
                await fetch(store, "m", server.url, QUICK)
        await fetch(store, "m", server.url, QUICK)


@pytest.mark.asyncio
async def test_a_mounted_folder_is_copied_with_the_same_care(store: Store, folder: Path) -> None:
    seen: list[Progress] = []
    options = replace(QUICK, download=replace(QUICK.download, report=seen.append))
    await fetch(store, "m", str(folder), options)
    assert not (await fetch(store, "m", str(folder), QUICK)).new
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)
    assert {progress.phase for progress in seen} == {"downloading", "writing"}


@pytest.mark.asyncio
async def test_a_gguf_file_passes_untouched_to_engines_that_read_it(store: Store, tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF" + os.urandom(100_000))
    await fetch(store, "m", str(gguf), replace(QUICK, gguf=GgufMode.AS_IS))
    with store.lease("m") as lease:
        assert (lease.folder / "tiny.gguf").read_bytes() == gguf.read_bytes()
    (tmp_path / "fake.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(WeightsCorrupt, match="does not start as a GGUF"):
        await fetch(store, "fake", str(tmp_path / "fake.gguf"), replace(QUICK, gguf=GgufMode.AS_IS))


@pytest.mark.asyncio
async def test_a_gguf_file_is_dequantised_for_engines_that_want_safetensors(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion itself is transformers' and takes long; all that is around it is real."""
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF" + bytes(1000))

    def convert(gguf: Path, folder: Path, report: object) -> None:
        make_checkpoint(folder)

    monkeypatch.setattr("snapshots.gguf._convert", convert)
    fetched = await fetch(store, "m", str(tmp_path / "tiny.gguf"), QUICK)
    assert fetched.manifest.source.location == str(tmp_path / "tiny.gguf")
    make_checkpoint(tmp_path / "expected")
    assert fetched.manifest.fingerprint.weights == weights_digest(tmp_path / "expected")
    assert leftovers(store) == []
    assert not (await fetch(store, "m", str(tmp_path / "tiny.gguf"), QUICK)).new


@pytest.mark.asyncio
async def test_prefetch_keeps_to_its_limit_and_lets_it_be_lifted(store: Store, folder: Path) -> None:
    options = FetchOptions(download=DownloadOptions(retry_s=0.001))
    throttle = options.download.throttle
    async with serving(folder) as server:
        task = asyncio.create_task(prefetch(store, "m", server.url, bytes_per_s=1000.0, options=options))
        await asyncio.wait_for(server.asked.wait(), 30)
        assert throttle.bytes_per_s == 1000.0
        assert not task.done()
        throttle.limit(None)
        assert (await asyncio.wait_for(task, 60)).new


def test_idle_priority_is_that_of_the_thread() -> None:
    import threading

    psutil = pytest.importorskip("psutil")
    classes: list[int] = []

    def look() -> None:
        idle_io()
        classes.append(int(psutil.Process(threading.get_native_id()).ionice().ioclass))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert classes == [IOPRIO_CLASS_IDLE]
    assert psutil.Process().ionice().ioclass != IOPRIO_CLASS_IDLE


def test_which_files_are_taken() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "original/x.safetensors", "README.md", ".x"]
    assert choose_files(names) == ["README.md", "config.json", "model.safetensors"]
    assert choose_files(["a.gguf", "README.md"]) == ["a.gguf"]
    assert choose_files(["rewarm-snapshot.json", "model.safetensors"]) == ["rewarm-snapshot.json"]
    with pytest.raises(SourceUnavailable, match="2 GGUF"):
        choose_files(["a.gguf", "b.gguf"])
    with pytest.raises(SourceUnavailable, match="neither"):
        choose_files(["pytorch_model.bin"])


@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_journal_never_claims_a_chunk_that_is_not_there(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    data = folder / "data"
    content = bytes(range(256)) * 40  # 10,240 bytes: three chunks
    data.write_bytes(content)
    journal = Journal(folder / "j", data, len(content), "v1", 4096)
    assert journal.open() == set()
    for index in range(3):
        journal.add(index, chunk_digest(content[index * 4096 : (index + 1) * 4096]))
    journal.close()
    raw = (folder / "j").read_bytes()
    (folder / "j").write_bytes(raw[:cut] + noise + raw[cut:])
    found = Journal(folder / "j", data, len(content), "v1", 4096).open()
    assert found <= {0, 1, 2}
    data.write_bytes(bytes(len(content)))
    assert Journal(folder / "j", data, len(content), "v1", 4096).open() == set()


def test_a_journal_of_another_version_is_thrown_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * 100)
    journal = Journal(tmp_path / "j", data, 100, "v1", 4096)
    journal.open()
    journal.add(0, chunk_digest(b"x" * 100))
    journal.close()
    assert Journal(tmp_path / "j", data, 100, "v1", 4096).open() == {0}
    assert Journal(tmp_path / "j", data, 100, "v2", 4096).open() == set()
