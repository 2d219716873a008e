"""The files we write: valid safetensors for everybody, aligned for O_DIRECT."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.header import DTYPE_BITS, read_header
from snapshots.layout import ALIGNMENT, TensorSpec, alignment, arrange, plan_parts

_specs = st.lists(
    st.builds(
        TensorSpec,
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.sampled_from([dtype for dtype, bits in DTYPE_BITS.items() if bits % 8 == 0]),
        st.lists(st.integers(0, 40), max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda spec: spec.name,
)


@given(_specs, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_every_planned_file_passes_our_own_strict_reader(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[TensorSpec], metadata: dict[str, str]
) -> None:
    (part,) = plan_parts(tensors, metadata=metadata)
    path = tmp_path_factory.mktemp("layout") / part.name
    path.write_bytes(part.header + bytes(part.file_bytes - len(part.header)))
    header = read_header(path)
    assert header.header_bytes % ALIGNMENT == 0
    assert header.file_bytes == part.file_bytes
    assert {(n, t.dtype, t.shape) for n, t in header.tensors.items()} == {(t.name, t.dtype, t.shape) for t in tensors}
    assert header.metadata == metadata


@given(_specs)
def test_each_tensor_starts_as_well_aligned_as_its_own_size_is(tensors: list[TensorSpec]) -> None:
    at = 0
    for tensor in arrange(tensors):
        assert at % alignment(tensor.data_bytes) == 0
        at += tensor.data_bytes


def test_tensors_of_one_alignment_keep_the_order_of_layers() -> None:
    layers = [TensorSpec(f"layer.{n}.weight", "BF16", (64, 64)) for n in range(20)]
    assert arrange(layers) == layers


def test_the_safetensors_library_reads_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = [TensorSpec("odd", "F32", (3,)), TensorSpec("big", "I32", (1024,)), TensorSpec("none", "F32", (0, 2))]
    (part,) = plan_parts(tensors, metadata={"format": "pt"})
    bytes_of = {"big": bytes(range(256)) * 16, "odd": b"abcdefghijkl", "none": b""}
    path = tmp_path / part.name
    path.write_bytes(part.header + b"".join(bytes_of[tensor.name] for tensor in part.tensors))
    loaded = safetensors.load_file(path)
    assert {name: array.tobytes() for name, array in loaded.items()} == bytes_of
    assert loaded["none"].shape == (0, 2)


def test_a_part_ends_before_it_grows_too_large_and_no_tensor_is_split() -> None:
    tensors = [TensorSpec(f"t{n}", "U8", (1000,)) for n in range(7)]
    parts = plan_parts(tensors, rank=3, part_bytes=2500)
    assert [part.name for part in parts] == [f"model-rank-3-part-{n}.safetensors" for n in range(4)]
    assert [len(part.tensors) for part in parts] == [2, 2, 2, 1]


def test_a_name_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        plan_parts([TensorSpec("a", "U8", (1,)), TensorSpec("a", "U8", (2,))])
