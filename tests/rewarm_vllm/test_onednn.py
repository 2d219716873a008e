"""Packed weights as bytes: written once, mapped ever after, with the same results to the last bit."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", exc_type=ImportError)  # the CPU build's torch is the one that packs

from rewarm_vllm import onednn  # noqa: E402 -- needs torch


@pytest.mark.parametrize("dtype", [dtype for dtype in onednn.PACKABLE if onednn.packs(dtype)])
@pytest.mark.parametrize("shape", [(64, 32), (576, 576), (1000, 72)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_over_mapped_bytes_computes_the_same(
    dtype: Any, shape: tuple[int, int], with_bias: bool, tmp_path: Path
) -> None:
    rows, columns = shape
    weight = torch.randn(rows, columns).to(dtype)
    packed = onednn.pack(weight)
    packing = onednn.packing_of(rows, columns, dtype)
    assert packing == onednn.packing(packed)  # known from the shape alone
    file = tmp_path / "packed"
    file.write_bytes(onednn.bytes_of(packed))
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    again = onednn.over(memory.data_ptr(), rows, columns, dtype, packing.descriptor)
    bias = torch.randn(rows).to(dtype) if with_bias else None
    for batch in (1, 7):
        x = torch.randn(batch, columns).to(dtype)
        assert torch.equal(onednn.linear(x, again, bias), onednn.linear(x, packed, bias))
        expected = torch.nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
        assert torch.allclose(onednn.linear(x, again, bias).float(), expected, rtol=2e-2, atol=0.3)
    assert torch.ops.mkldnn.data_ptr(again) == memory.data_ptr()  # nothing was copied


def test_a_cpu_without_the_instructions_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AVX2 alone does with bfloat16: vLLM computes from plain weights then, and a snapshot holds them plain."""

    def refuse(weight: Any) -> Any:
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx512bw")

    monkeypatch.setattr(onednn, "pack", refuse)
    onednn.packs.cache_clear()
    assert not onednn.packs(torch.bfloat16)
    onednn.packs.cache_clear()


def test_the_version_is_read_from_torch() -> None:
    assert onednn.version() != "unknown"
