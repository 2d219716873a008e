"""A packed snapshot from a model whose weights are loaded and not processed yet: which layer is packed, and the files.

Packed is what vLLM would hand to oneDNN itself. A layer for which it would choose another kernel (small ones on a CPU
with AMX, quantised ones) stays plain, and vLLM prepares it at each load: slower, and the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from vllm import _custom_ops as ops
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.utils import check_cpu_sgl_kernel
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.platforms import CpuArchEnum, current_platform

from rewarm_vllm import onednn
from rewarm_vllm.packed_format import PACKED_VERSION, PackedLinear, PackedTable, PlainTensor
from rewarm_vllm.views import NAMES, bytes_of
from snapshots import File, FileKind, Part, Staging, TensorSpec, plan_parts


@dataclass(frozen=True, slots=True)
class PackedPlan:
    table: PackedTable
    parts: list[Part]
    weights: dict[str, torch.Tensor]  # tensor's name → the weight to pack
    plain: dict[str, torch.Tensor]


def plan(model: nn.Module) -> PackedPlan:
    linears, native, weights = [], [], {}
    holders = _holders(model)
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not isinstance(method, QuantizeMethodBase) or _looked_up_only(model, module):
            continue
        if not _packable(module, method):
            native.append(name)
            continue
        weight = module.weight
        tensor = f"{name}.onednn"
        weights[tensor] = weight.data
        rows, columns = weight.shape
        descriptor = onednn.packing_of(rows, columns, weight.dtype).descriptor.hex()
        stays = holders[id(weight)] > 1
        dtype = str(weight.dtype).removeprefix("torch.")
        linears.append(PackedLinear(name, tensor, rows, columns, dtype, descriptor, weight_stays=stays))
    entries, plain = _plain(model, {f"{linear.module}.weight" for linear in linears if not linear.weight_stays})
    table = PackedTable(PACKED_VERSION, tuple(linears), tuple(entries), tuple(native))
    return PackedPlan(table, plan_parts(_specs(weights, plain), metadata={"format": "pt"}), weights, plain)


def write(plan: PackedPlan, staging: Staging) -> list[File]:
    """One packed weight in memory at a time."""
    files = []
    for part in plan.parts:
        out = staging.file(part.name, FileKind.WEIGHTS)
        out.write(part.header)
        for spec in part.tensors:
            if spec.name in plan.weights:
                packed = onednn.pack(plan.weights[spec.name])
                out.write(onednn.bytes_of(packed))
            else:
                tensor = plan.plain[spec.name].contiguous()
                out.write(bytes_of(tensor))
        files.append(out.finish())
    return files


def _packable(module: nn.Module, method: QuantizeMethodBase) -> bool:
    """What vLLM's ``dispatch_cpu_unquantized_gemm`` gives to oneDNN."""
    if type(method) not in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return False
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not onednn.packs(weight.dtype):
        return False
    if getattr(module, "_cpu_skip_gemm_dispatch", False) or not weight.is_contiguous():
        return False
    if current_platform.is_zen_cpu() and hasattr(torch.ops.zentorch, "zentorch_linear_unary"):
        return False
    rows, columns = weight.shape
    if check_cpu_sgl_kernel(rows, columns, weight.dtype):
        return False
    return bool(ops._supports_onednn) and current_platform.get_cpu_architecture() != CpuArchEnum.POWERPC


def _looked_up_only(model: nn.Module, module: nn.Module) -> bool:
    """An embedding that no head shares as a module: its linear form is never asked for."""
    if not isinstance(module, VocabParallelEmbedding) or isinstance(module, ParallelLMHead):
        return False
    return sum(1 for _, other in model.named_modules(remove_duplicate=False) if other is module) == 1


def _holders(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter."""
    count: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                count[id(parameter)] = count.get(id(parameter), 0) + 1
    return count


def _plain(model: nn.Module, gone: set[str]) -> tuple[list[PlainTensor], dict[str, torch.Tensor]]:
    """Everything but the weights that are packed away; one tensor for all names of the same memory."""
    entries: list[PlainTensor] = []
    tensors: dict[str, torch.Tensor] = {}
    first: dict[object, str] = {}
    for name, tensor, is_parameter in _tensors(model):
        if name in gone:
            continue
        key = _identity(tensor, is_parameter) or name
        known = first.setdefault(key, name)
        tensors.setdefault(known, tensor.detach())
        entries.append(PlainTensor(name, known, is_parameter))
    return entries, tensors


def _identity(tensor: torch.Tensor, is_parameter: bool) -> object | None:
    if not tensor.numel():
        return None
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, is_parameter


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter, True
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, buffer, False


def _specs(weights: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> list[TensorSpec]:
    specs = []
    for name, weight in weights.items():
        rows, columns = weight.shape
        specs.append(TensorSpec(name, "U8", (onednn.packing_of(rows, columns, weight.dtype).size_bytes,)))
    specs += [TensorSpec(name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in plain.items()]
    return specs
