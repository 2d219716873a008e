"""An adapter's folder is judged by its headers, against its base, in milliseconds and with the file's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewarm.states import FailureReason
from snapshots import CheckpointError, inspect, inspect_adapter
from tests.snapshots.adapters import write_adapter, write_base


def test_an_adapter_tells_its_rank_and_size(tmp_path: Path) -> None:
    base = inspect(write_base(tmp_path / "base"))
    adapter = inspect_adapter(write_adapter(tmp_path / "a"), base)
    assert (adapter.rank, adapter.elements) == (4, 2 * 4 * 64)


def test_some_modules_may_have_a_rank_of_their_own(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", a=(16, 64), b=(64, 16), rank_pattern={"q_proj": 16})
    assert inspect_adapter(folder).rank == 16


def test_quantised_weights_are_not_compared_only_named(tmp_path: Path) -> None:
    from tests.snapshots.checkpoints import write_weights

    base = write_base(tmp_path / "base")
    write_weights(base / "model.safetensors", {"model.layers.0.self_attn.q_proj.qweight": ("I32", [8, 64])})
    assert inspect_adapter(write_adapter(tmp_path / "a"), inspect(base)).rank == 4


def refused(folder: Path, base: Path | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        inspect_adapter(folder, None if base is None else inspect(base))
    return caught.value


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = refused(tmp_path / "nothing")
    assert error.reason is FailureReason.WEIGHTS_MISSING and "does not exist" in str(error)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / name).unlink()
    error = refused(folder)
    assert error.reason is FailureReason.WEIGHTS_MISSING and error.file == folder / name


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "pickled" in str(refused(folder))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000, "\udcff"], ids=range(6))
def test_a_configuration_that_is_none(tmp_path: Path, text: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    error = refused(folder)
    assert error.reason is FailureReason.WEIGHTS_CORRUPT and error.file == folder / "adapter_config.json"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"r": 0}, "`r` is '0', not a positive whole number"),
        ({"r": None}, "`r` is 'None'"),
        ({"r": True}, "`r` is 'True'"),
        ({"peft_type": "IA3"}, "only LORA is served"),
        ({"lora_alpha": None}, "`lora_alpha` is missing or has the wrong type"),
        ({"target_modules": None}, "`target_modules` is missing or has the wrong type"),
        ({"rank_pattern": []}, None),
        ({"rank_pattern": [4]}, "`rank_pattern` is no object"),
        ({"rank_pattern": {"q_proj": "4"}}, "`rank_pattern.q_proj` is '4'"),
        ({"r": 8}, "has rank 4, adapter_config.json says 8"),
        ({"b": (64, 2)}, "lora_A has rank 4, lora_B has 2"),
        ({"b": ()}, "has no lora_B"),
        ({"a": (4, 8, 8)}, "lora_A is no matrix"),
        ({"a": (), "b": ()}, "holds no LoRA weights"),
        ({"a": (4, 32)}, "changes a matrix of [64, 32], in its base {base} it is [64, 64]"),
        ({"module": "model.layers.7.self_attn.q_proj"}, "is no module of its base"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, fields: dict[str, Any], says: str | None) -> None:
    base = write_base(tmp_path / "base")
    folder = write_adapter(tmp_path / "a", **fields)
    if says is None:
        assert inspect_adapter(folder, inspect(base)).rank == 4
        return
    error = refused(folder, base)
    assert error.reason is FailureReason.WEIGHTS_CORRUPT
    assert says.format(base=base) in str(error)
