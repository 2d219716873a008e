"""A prepared folder appears whole or not at all."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from snapshots import PrepareFailed, is_complete
from snapshots.publish import MANIFEST_FILE, publish

SOURCE = {"gguf": "x.gguf", "gguf_bytes": 7}


def _build(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"12345")


def _nothing_aside(folder: Path) -> bool:
    return sorted(path.name for path in folder.iterdir()) == ["m"]


def test_published_and_complete(tmp_path: Path) -> None:
    target = tmp_path / "m"
    assert publish(target, SOURCE, _build)
    assert is_complete(target, SOURCE, digests=True)
    assert json.loads((target / MANIFEST_FILE).read_text())["files"]["model.safetensors"]["bytes"] == 5
    assert _nothing_aside(tmp_path)


def test_a_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    publish(tmp_path / "m", SOURCE, _build)
    assert not publish(tmp_path / "m", SOURCE, lambda folder: pytest.fail("built again"))


def test_another_source_replaces_it(tmp_path: Path) -> None:
    publish(tmp_path / "m", SOURCE, _build)
    assert publish(tmp_path / "m", {"gguf": "y.gguf"}, _build)
    assert is_complete(tmp_path / "m", {"gguf": "y.gguf"}) and not is_complete(tmp_path / "m", SOURCE)
    assert _nothing_aside(tmp_path)


def test_a_failed_build_leaves_what_was_there(tmp_path: Path) -> None:
    publish(tmp_path / "m", SOURCE, _build)

    def fails(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        publish(tmp_path / "m", {"gguf": "y.gguf"}, fails)
    assert is_complete(tmp_path / "m", SOURCE, digests=True)
    assert _nothing_aside(tmp_path)


@pytest.mark.parametrize("damage", ["shorter", "gone", "no manifest", "other manifest"])
def test_a_damaged_folder_is_not_complete(tmp_path: Path, damage: str) -> None:
    target = tmp_path / "m"
    publish(target, SOURCE, _build)
    if damage == "shorter":
        (target / "model.safetensors").write_bytes(b"1234")
    elif damage == "gone":
        (target / "config.json").unlink()
    elif damage == "no manifest":
        (target / MANIFEST_FILE).unlink()
    else:
        (target / MANIFEST_FILE).write_text('{"version": 1, "files": {"config.json": 3}}')
    assert not is_complete(target, SOURCE)


def test_digests_find_flipped_bits(tmp_path: Path) -> None:
    publish(tmp_path / "m", SOURCE, _build)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"12349")
    assert is_complete(tmp_path / "m", SOURCE) and not is_complete(tmp_path / "m", SOURCE, digests=True)


def test_what_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(PrepareFailed, match="not made by rewarm"):
        publish(tmp_path / "m", SOURCE, _build)
    assert (tmp_path / "m" / "thesis.tex").read_text() == "years of work"


def test_what_a_killed_attempt_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-m").mkdir()
    (tmp_path / ".tmp-m" / "half").write_text("x")
    publish(tmp_path / "m", SOURCE, _build)
    assert _nothing_aside(tmp_path)


def test_two_at_once_build_once(tmp_path: Path) -> None:
    built: list[Path] = []
    results: list[bool] = []
    inside = threading.Barrier(2, timeout=10)

    def slow(folder: Path) -> None:
        built.append(folder)
        _build(folder)

    def one() -> None:
        inside.wait()
        results.append(publish(tmp_path / "m", SOURCE, slow))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(built) == 1 and sorted(results) == [False, True]
