"""A checkpoint folder is whole, or the file that is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewarm.states import FailureReason
from snapshots import CheckpointError, WeightsCorrupt, WeightsMissing, inspect, read_shape
from tests.snapshots.checkpoints import CONFIG, write_checkpoint, write_sharded, write_weights

INDEX = "model.safetensors.index.json"


def test_a_whole_checkpoint(tmp_path: Path) -> None:
    found = inspect(write_checkpoint(tmp_path / "m"))
    weights = tmp_path / "m" / "model.safetensors"
    assert found.file_bytes == weights.stat().st_size  # what a load counts up to
    assert found.header_bytes == found.file_bytes - 80
    assert found.tensors == 2
    assert found.folder_bytes == found.file_bytes + (tmp_path / "m" / "config.json").stat().st_size


def test_weights_in_another_dtype(tmp_path: Path) -> None:
    found = inspect(write_sharded(tmp_path / "m"))
    assert found.weight_bytes() == 64 + 16  # the float32 tensor becomes bfloat16
    assert found.weight_bytes("float32") == 128 + 32


def test_quantised_weights_keep_their_size(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    write_weights(folder / "model.safetensors", {"q": ("I8", [64]), "scale": ("F32", [4])})
    assert inspect(folder).weight_bytes("bfloat16") == 64 + 8


def _broken(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        inspect(folder)
    return caught.value


def test_no_folder(tmp_path: Path) -> None:
    error = _broken(tmp_path / "none")
    assert error.reason is FailureReason.WEIGHTS_MISSING and "does not exist" in str(error)


def test_no_weights(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = _broken(folder)
    assert error.reason is FailureReason.WEIGHTS_MISSING and "*.safetensors" in str(error)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    error = _broken(folder)
    assert error.reason is FailureReason.WEIGHTS_CORRUPT and error.file == shard


def test_a_shard_that_the_index_names_is_missing(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = _broken(folder)
    assert isinstance(error, WeightsMissing) and "00002-of-00002" in str(error)


def test_a_shard_is_missing_and_there_is_no_index(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    (folder / INDEX).unlink()
    assert inspect(folder).tensors == 2
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "00001-of-00002" in str(_broken(folder))


def test_a_dangling_link_is_a_missing_shard(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    shard = folder / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(tmp_path / "blob")
    assert isinstance(_broken(folder), WeightsMissing)


def test_files_that_the_index_does_not_name_are_ignored(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    write_weights(folder / "consolidated.safetensors", {"a.weight": ("BF16", [4, 8])})
    assert inspect(folder).tensors == 2


@pytest.mark.parametrize(
    "index",
    ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {"a": 1}}'],
)
def test_a_broken_index(tmp_path: Path, index: str) -> None:
    folder = write_sharded(tmp_path / "m")
    (folder / INDEX).write_text(index)
    error = _broken(folder)
    assert isinstance(error, WeightsCorrupt) and error.file == folder / INDEX


def test_the_index_and_a_shard_disagree(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "m")
    write_weights(folder / "model-00001-of-00002.safetensors", {"other": ("BF16", [4, 8])})
    assert "does not hold tensor 'a.weight'" in str(_broken(folder))


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    write_weights(folder / "second.safetensors", {"b.weight": ("BF16", [8])})
    assert "and so does" in str(_broken(folder))


# --- shapes
# ----------------------------------------------------------------------------------------------------------

LLAMA = {
    "model.embed_tokens.weight": ("BF16", [100, 64]),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", [64, 64]),
    "model.layers.0.self_attn.k_proj.weight": ("BF16", [32, 64]),
    "model.layers.0.mlp.down_proj.weight": ("BF16", [64, 128]),
    "model.layers.1.mlp.up_proj.weight": ("BF16", [128, 64]),
}


def _llama(tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], **changes: Any) -> Path:
    folder = write_checkpoint(tmp_path / "m", {**CONFIG, "intermediate_size": 128, **changes})
    write_weights(folder / "model.safetensors", tensors)
    return folder


def test_shapes_that_the_configuration_promises(tmp_path: Path) -> None:
    assert inspect(_llama(tmp_path, LLAMA)).tensors == 5


@pytest.mark.parametrize("name", sorted(LLAMA))
def test_a_tensor_of_another_shape(tmp_path: Path, name: str) -> None:
    dtype, shape = LLAMA[name]
    error = _broken(_llama(tmp_path, {**LLAMA, name: (dtype, [shape[0], shape[1] + 1])}))
    assert isinstance(error, WeightsCorrupt) and name in str(error)


def test_a_layer_too_many(tmp_path: Path) -> None:
    assert "belongs to no layer" in str(_broken(_llama(tmp_path, LLAMA, num_hidden_layers=1)))


@pytest.mark.parametrize("changes", [{"architectures": ["OtherForCausalLM"]}, {"quantization_config": {"bits": 4}}])
def test_shapes_of_other_layouts_are_not_judged(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert inspect(_llama(tmp_path, LLAMA, intermediate_size=7, **changes)).tensors == 5


# --- config.json
# -----------------------------------------------------------------------------------------------------


def _shape_of(tmp_path: Path, **changes: Any) -> Any:
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_shape(tmp_path)


def test_a_token_costs_layers_times_kv_heads_times_head_size_twice(tmp_path: Path) -> None:
    shape = _shape_of(tmp_path)
    assert shape.kv_elements_per_token == 2 * 2 * 16 * 2  # layers, grouped heads, 64 / 4, keys and values
    assert shape.kv_bytes_per_token() == 256
    assert shape.kv_bytes_per_token("float32") == 512
    assert shape.max_context == 512


def test_smollm2_costs_23040_bytes_a_token(tmp_path: Path) -> None:
    shape = _shape_of(tmp_path, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, hidden_size=576)
    assert shape.kv_bytes_per_token() == 23040


@pytest.mark.parametrize(
    ("changes", "elements"),
    [
        ({"num_key_value_heads": None}, 2 * 4 * 16 * 2),  # no grouping
        ({"head_dim": 32}, 2 * 2 * 32 * 2),  # not hidden / heads
        ({"multi_query": True, "num_key_value_heads": None}, 2 * 1 * 16 * 2),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2 * (512 + 64)),  # latent attention
        ({"text_config": {**CONFIG, "num_hidden_layers": 3}}, 3 * 2 * 16 * 2),  # a model that also sees
        ({"num_hidden_layers": None, "n_layer": 5}, 5 * 2 * 16 * 2),
    ],
)
def test_other_families(tmp_path: Path, changes: dict[str, Any], elements: int) -> None:
    assert _shape_of(tmp_path, **changes).kv_elements_per_token == elements


def test_auto_never_means_float32(tmp_path: Path) -> None:
    assert _shape_of(tmp_path, dtype="float32").dtype == "bfloat16"
    assert _shape_of(tmp_path, dtype=None, torch_dtype="float16").dtype == "float16"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": -1},
        {"num_attention_heads": "4"},
        {"hidden_size": True},
        {"architectures": None},
        {"architectures": []},
        {"max_position_embeddings": 1.5},
    ],
)
def test_a_config_that_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(WeightsCorrupt, match=r"config\.json"):
        _shape_of(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff"])
def test_a_config_that_is_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsCorrupt):
        read_shape(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "config.json").unlink()
    assert isinstance(_broken(folder), WeightsMissing)
