"""Models of a hub: found in the cache that others use too, downloaded into it, whole or not there."""

from __future__ import annotations

import asyncio
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rewarm.hub import HubReference, parse_reference
from snapshots import (
    DigestMismatch,
    DiskFull,
    HubCache,
    HubSettings,
    Progress,
    PullOptions,
    SourceRefused,
    pull,
)
from snapshots.errors import SourceUnavailable
from tests.snapshots.hub_server import COMMIT, Hub, serving

WEIGHTS = os.urandom(40 * 2**20)  # more than two chunks
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"extra",
    "pytorch_model.bin": b"no part of it",
}
TINY = HubReference("org/tiny")
ONCE = PullOptions(attempts=1)
QUICK = PullOptions(retry_s=0.01)


def settings(tmp_path: Path, hub: Hub | None = None, **changes: object) -> HubSettings:
    url = hub.url if hub is not None else "http://127.0.0.1:1"
    return replace(HubSettings(tmp_path / "hub", endpoint=url), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf:org/name", HubReference("org/name", "main")),
        ("hf:org/name@v1.0", HubReference("org/name", "v1.0")),
        ("hf:org/name@refs/pr/3", HubReference("org/name", "refs/pr/3")),
        ("hf:org/name/q/a-Q4.gguf@dev", HubReference("org/name", "dev", "q/a-Q4.gguf")),
    ],
)
def test_how_a_reference_is_written(text: str, reference: HubReference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text", ["hf:name", "hf:org/name@", "hf:../x", "hf:org/name/file.bin", "hf:org/..", "org/name"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="write hf:org/name"):
        parse_reference(text)


def test_where_hub_and_cache_are() -> None:
    assert HubSettings.read({"HOME": "/h"}) == HubSettings(Path("/h/.cache/huggingface/hub"))
    assert HubSettings.read({"HOME": "/h", "HF_HOME": "/d"}).cache == Path("/d/hub")
    env = {"HF_HUB_CACHE": "/c", "HF_ENDPOINT": "https://mirror/", "HF_TOKEN": "t", "HF_HUB_OFFLINE": "1", "HOME": "/h"}
    assert HubSettings.read(env) == HubSettings(Path("/c"), "https://mirror", "t", offline=True)
    assert "secret" not in repr(HubSettings(Path("/c"), token="secret"))


@pytest.mark.asyncio
async def test_what_belongs_to_a_checkpoint_is_brought_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    async with serving(Hub(FILES)) as hub:
        place = settings(tmp_path, hub)
        found = await pull(TINY, place, replace(QUICK, report=seen.append))
        assert found == place.cache / "models--org--tiny" / "snapshots" / COMMIT
        assert sorted(path.name for path in found.iterdir()) == [
            "README.md",
            "config.json",
            "model.safetensors",
            "tokenizer.json",
        ]
        assert (found / "model.safetensors").read_bytes() == WEIGHTS
        assert (found / "model.safetensors").readlink().parts[:3] == ("..", "..", "blobs")
        downloading = [p for p in seen if p.phase == "downloading"]
        assert (
            downloading[-1].done_bytes
            == downloading[-1].total_bytes
            == sum(len(FILES[name]) for name in FILES if name != "pytorch_model.bin")
        )
        assert not (place.cache / "models--org--tiny" / ".rewarm" / COMMIT).exists()
        asked = len(hub.asked)
        assert await pull(TINY, place) == found
        assert await pull(replace(TINY, revision=COMMIT), place) == found
        assert len(hub.asked) == asked, "the cache is asked first"
        assert await pull(TINY, place, QUICK, refresh=True) == found
        assert hub.sent_bytes == len(WEIGHTS), "nothing is downloaded twice"
    assert [(str(r), path) for r, path in HubCache(place.cache).models()] == [("hf:org/tiny", found)]


@pytest.mark.asyncio
async def test_the_hub_s_own_library_finds_it_there(tmp_path: Path) -> None:
    library = pytest.importorskip("huggingface_hub")
    async with serving(Hub(FILES)) as hub:
        found = await pull(TINY, settings(tmp_path, hub), QUICK)
    for name in ("config.json", "model.safetensors"):
        path = library.try_to_load_from_cache("org/tiny", name, cache_dir=tmp_path / "hub")
        assert Path(path) == found / name


@pytest.mark.asyncio
async def test_a_broken_download_goes_on_where_it_was(tmp_path: Path) -> None:
    async with serving(Hub(FILES, break_after=20 * 2**20)) as hub:
        place = settings(tmp_path, hub)
        with pytest.raises(SourceUnavailable, match="is not whole in"):
            await pull(TINY, place, replace(ONCE, at_once=1))
        assert HubCache(place.cache).find(TINY) is None, "half of it is not there"
        hub.break_after = None
        before = hub.sent_bytes
        found = await pull(TINY, place, QUICK)
        assert (found / "model.safetensors").read_bytes() == WEIGHTS
        assert hub.sent_bytes - before <= len(WEIGHTS) - 16 * 2**20, "a chunk that was whole is not asked for again"


@pytest.mark.asyncio
async def test_a_cancelled_download_leaves_no_half_model(tmp_path: Path) -> None:
    async with serving(Hub(FILES)) as hub:
        place, began = settings(tmp_path, hub), asyncio.Event()
        pulling = asyncio.create_task(pull(TINY, place, replace(QUICK, moved=began.set)))
        await began.wait()
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        assert HubCache(place.cache).find(TINY) is None
        assert (await pull(TINY, place, QUICK) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.asyncio
async def test_other_bytes_than_the_hub_promises_are_refused(tmp_path: Path) -> None:
    async with serving(Hub(FILES, corrupt=True)) as hub:
        place = settings(tmp_path, hub)
        with pytest.raises(DigestMismatch, match="the hub says"):
            await pull(TINY, place, ONCE)
        assert HubCache(place.cache).find(TINY) is None
        hub.corrupt = False
        assert (await pull(TINY, place, QUICK) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reference", "token", "gated", "says"),
    [
        ("hf:org/other", None, False, "has no model org/other, or does not show it"),
        ("hf:org/tiny@v9", None, False, "org/tiny has no revision 'v9'"),
        ("hf:org/tiny", None, True, "org/tiny is gated, and there is no token here: accept its terms at http"),
        ("hf:org/tiny", "bad", True, "the token that this machine has was not given access"),
        ("hf:org/tiny/q4.gguf", None, False, "org/tiny has no file q4.gguf at main"),
    ],
)
async def test_what_a_hub_does_not_give_is_said_in_plain_words(
    tmp_path: Path, reference: str, token: str | None, gated: bool, says: str
) -> None:
    async with serving(Hub(FILES, gated=gated)) as hub:
        with pytest.raises(SourceRefused) as error:
            await pull(parse_reference(reference), settings(tmp_path, hub, token=token), QUICK)
        assert says in str(error.value)


@pytest.mark.asyncio
async def test_a_token_opens_a_gated_model(tmp_path: Path) -> None:
    async with serving(Hub(FILES, gated=True)) as hub:
        assert (await pull(TINY, settings(tmp_path, hub, token="good"), QUICK)).is_dir()


@pytest.mark.asyncio
async def test_without_a_network_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"is not whole in .*, and http://127.0.0.1:1 cannot be used"):
        await pull(TINY, settings(tmp_path), ONCE)
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE forbids"):
        await pull(TINY, settings(tmp_path, offline=True), ONCE)


@pytest.mark.asyncio
async def test_room_is_looked_for_before_anything_is_downloaded(tmp_path: Path) -> None:
    async with serving(Hub(FILES)) as hub:
        with pytest.raises(DiskFull, match=r"40.0 MiB are needed on the disk of .* are to stay free"):
            await pull(TINY, settings(tmp_path, hub), replace(QUICK, floor_bytes=2**60))
        assert hub.sent_bytes == 0


@pytest.mark.asyncio
async def test_one_gguf_file_of_many(tmp_path: Path) -> None:
    files = {"a-Q4.gguf": b"4" * 2000, "a-Q8.gguf": b"8" * 2000}
    async with serving(Hub(files)) as hub:
        place = settings(tmp_path, hub)
        with pytest.raises(SourceRefused, match=r"name one of them, as in hf:org/tiny/FILE\.gguf"):
            await pull(TINY, place, QUICK)
        found = await pull(replace(TINY, file="a-Q8.gguf"), place, QUICK)
        assert found.read_bytes() == b"8" * 2000
        assert hub.sent_bytes == 2000


@pytest.mark.asyncio
async def test_two_processes_do_not_download_the_same(tmp_path: Path) -> None:
    async with serving(Hub(FILES)) as hub:
        place, waits = settings(tmp_path, hub), asyncio.Event()
        staging = place.cache / "models--org--tiny" / ".rewarm" / COMMIT
        staging.mkdir(parents=True)
        other = os.open(staging / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(other, fcntl.LOCK_EX)
        pulling = asyncio.create_task(pull(TINY, place, replace(QUICK, waiting=waits.set)))
        await waits.wait()
        assert hub.sent_bytes == 0
        os.close(other)
        assert (await pulling).is_dir()


def test_a_checkpoint_that_lacks_a_shard_is_not_there(tmp_path: Path) -> None:
    cache = HubCache(tmp_path)
    folder = cache.snapshot("org/tiny", COMMIT)
    folder.mkdir(parents=True)
    cache.name(TINY, COMMIT)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    (folder / "one.safetensors").touch()
    assert cache.find(TINY) is None
    (folder / "two.safetensors").touch()
    assert cache.find(TINY) == folder
    assert cache.find(replace(TINY, revision="v2")) is None
