"""Which adapters a replica can serve, what they cost, and what vLLM is told; decided from headers."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from rewarm.messages import AdapterSpec, ReplicaSpec
from snapshots import CheckpointError, inspect
from tests.snapshots.adapters import write_adapter, write_base
from worker.engines.estimate import estimate
from worker.engines.hostfile import HostFile
from worker.engines.need import vllm_need
from worker.engines.vllm.adapters import check, find
from worker.pool.kind import key


def spec(base: Path, *adapters: Path, slots: int = 4) -> ReplicaSpec:
    found = tuple(AdapterSpec(name=folder.name, source=str(folder)) for folder in adapters)
    return ReplicaSpec(
        model="m", engine="vllm", served_names=("m",), slots=slots, source=str(base), context_length=256, adapters=found
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def test_room_is_for_the_largest_rank_as_vllm_counts_them(tmp_path: Path, base: Path) -> None:
    wide = write_adapter(tmp_path / "wide", r=12, a=(12, 64), b=(64, 12))
    found = find(spec(base, write_adapter(tmp_path / "a"), wide), inspect(base))
    options = argparse.Namespace(enable_lora=False)
    found.complete(options, cpu=False)
    assert vars(options) == {"enable_lora": True, "max_lora_rank": 16, "max_loras": 2, "max_cpu_loras": 2}
    assert not found.broken


def test_no_more_are_in_use_at_once_than_there_are_slots(tmp_path: Path, base: Path) -> None:
    folders = [write_adapter(tmp_path / f"a{number}") for number in range(5)]
    found = find(spec(base, *folders, slots=2), inspect(base))
    options = argparse.Namespace()
    found.complete(options, cpu=False)
    assert (options.max_loras, options.max_cpu_loras) == (2, 5)


def test_on_the_cpu_one_more_stays_empty_for_the_base(tmp_path: Path, base: Path) -> None:
    """Also where fewer requests run at once than there are adapters: what moves out would leave its weights there."""
    folders = [write_adapter(tmp_path / f"a{number}") for number in range(5)]
    options = argparse.Namespace()
    find(spec(base, *folders, slots=2), inspect(base)).complete(options, cpu=True)
    assert (options.max_loras, options.max_cpu_loras) == (6, 6)


def test_a_broken_one_is_left_out_and_the_others_are_served(tmp_path: Path, base: Path) -> None:
    other = write_adapter(tmp_path / "other", a=(4, 32))
    found = find(spec(base, tmp_path / "gone", other, write_adapter(tmp_path / "whole")), inspect(base))
    assert [one.name for one, _ in found.usable] == ["whole"]
    assert "does not exist" in found.broken["gone"] and "changes a matrix" in found.broken["other"]


def test_without_a_usable_one_the_base_starts_as_if_there_were_none(tmp_path: Path, base: Path) -> None:
    options = argparse.Namespace()
    find(spec(base, tmp_path / "gone"), inspect(base)).complete(options, cpu=True)
    assert vars(options) == {}
    assert vllm_need(inspect(base), spec(base, tmp_path / "gone")) == vllm_need(inspect(base), spec(base))


def test_a_rank_that_vllm_has_no_room_for(tmp_path: Path, base: Path) -> None:
    with pytest.raises(CheckpointError, match="rank 600 is too large: vLLM serves adapters of at most 512"):
        check(write_adapter(tmp_path / "a", r=600, a=(600, 64), b=(64, 600)), inspect(base))


def test_their_memory_is_their_base_s(tmp_path: Path, base: Path) -> None:
    plain = vllm_need(inspect(base), spec(base))
    adapters = [write_adapter(tmp_path / name) for name in ("a", "b")]
    need = vllm_need(inspect(base), spec(base, *adapters))
    room, themselves = 3 * 8 * (64 + 64) * 2, 2 * (2 * 4 * 64) * 2  # two slots of rank 8 and the empty one; bfloat16
    assert need.adapters_bytes == need.weights_bytes - plain.weights_bytes == room + themselves
    assert "of it adapters" in estimate(spec(base, *adapters)).arithmetic


def test_a_changed_adapter_is_another_preparation(tmp_path: Path, base: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    host = HostFile(replica="", agent_pid=0, spec=spec(base, adapter), socket="", report="", token="")
    before = key(host)
    write_adapter(tmp_path / "a", r=16, a=(16, 64), b=(64, 16))
    assert key(host) != before
    gone = msgspec.structs.replace(host, spec=spec(base, tmp_path / "gone"))
    assert key(gone) != before, "one that is not there keeps nothing from being prepared"
