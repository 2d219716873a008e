"""Whether a snapshot fits, in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from snapshots.checkpoint import inspect
from snapshots.extras import find_extras
from snapshots.fingerprint import (
    checkpoint_fingerprint,
    checkpoint_source,
    compare,
    cpu_device,
    source_changes,
    specs,
    tensor_table,
)
from snapshots.manifest import Fingerprint, Flavour, Source
from tests.snapshots.making import make_checkpoint

MADE = Fingerprint(
    tensors="aa" * 32,
    weights="bb" * 32,
    config="cc" * 32,
    revision="r1",
    engine="vllm 0.32.0",
    torch="2.13.0",
    dtype="bfloat16",
    quantization="awq",
    kernels="onednn 3.7",
    ranks={"tp": 1},
    device="cpu x86_64 avx2",
)


@pytest.mark.parametrize("flavour", Flavour)
def test_the_same_fits(flavour: Flavour) -> None:
    assert compare(MADE, MADE, flavour) == ()


@pytest.mark.parametrize("field", ["tensors", "weights", "config", "revision", "quantization"])
@pytest.mark.parametrize("flavour", Flavour)
def test_another_model_never_fits(field: str, flavour: Flavour) -> None:
    assert len(compare(MADE, replace(MADE, **{field: "dd" * 32}), flavour)) == 1


@pytest.mark.parametrize(
    ("field", "value", "binds"),
    [
        ("engine", "vllm 0.33.0", {Flavour.SHARDED, Flavour.PACKED}),
        ("dtype", "float16", {Flavour.SHARDED, Flavour.PACKED}),
        ("ranks", {"tp": 2}, {Flavour.SHARDED, Flavour.PACKED}),
        ("torch", "2.14.0", {Flavour.PACKED}),
        ("kernels", "onednn 3.8", {Flavour.PACKED}),
        ("device", "cpu aarch64", {Flavour.PACKED}),
        ("device", None, {Flavour.PACKED}),
        ("engine", None, {Flavour.SHARDED, Flavour.PACKED}),
    ],
)
def test_what_a_flavour_is_bound_to(field: str, value: object, binds: set[Flavour]) -> None:
    have = replace(MADE, **{field: value})
    assert {flavour for flavour in Flavour if compare(MADE, have, flavour)} == binds


def test_a_quantised_checkpoint_captured_without_an_engine_fits_the_one_that_names_its_method() -> None:
    """config.json says how it is quantised. An engine's own weights, made without it, are other weights."""
    made = replace(MADE, quantization=None)
    assert compare(made, MADE, Flavour.PORTABLE) == ()
    assert compare(made, replace(MADE, config="00" * 32), Flavour.PORTABLE) != ()
    assert compare(made, MADE, Flavour.SHARDED) == ("the quantization: made for unknown, here is awq",)


def test_reasons_are_sentences() -> None:
    have = replace(MADE, engine="vllm 0.33.0", ranks={"tp": 2}, config="00" * 32)
    assert compare(MADE, have, Flavour.PACKED) == (
        "config.json differs from the source's",
        "the engine: made for vllm 0.32.0, here is vllm 0.33.0",
        "the ranks: made for tp=1, here is tp=2",
    )


def test_the_tensor_table_does_not_depend_on_order_or_files(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "a", shards=1)
    make_checkpoint(tmp_path / "b", shards=3)
    a, b = inspect(tmp_path / "a"), inspect(tmp_path / "b")
    assert checkpoint_fingerprint(a) == checkpoint_fingerprint(b)
    assert tensor_table(specs(a)[1:]) != tensor_table(specs(a))


def _source(folder: Path) -> Source:
    return checkpoint_source(inspect(folder), find_extras(folder))


def test_changes_of_the_source_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    before = _source(tmp_path)
    assert source_changes(before, _source(tmp_path)) == ()
    os.utime(tmp_path / "tokenizer.json", ns=(5, 5))  # same bytes: they are digested
    os.utime(tmp_path / "model-00001-of-00002.safetensors", ns=(5, 5))  # weights are not
    (tmp_path / "generation_config.json").write_text("{ }")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert source_changes(before, _source(tmp_path)) == (
        "chat_template.jinja was removed",
        "generation_config.json has other bytes",
        "model-00001-of-00002.safetensors was written to since",
        "special_tokens_map.json was added",
    )


def test_the_device_names_what_kernels_choose_by(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f amx_tile sse\n\nflags : x\n")
    assert cpu_device(cpuinfo).split()[2:] == ["avx2", "avx512f", "amx_tile"]
    assert cpu_device(tmp_path / "missing").split()[0] == "cpu"
