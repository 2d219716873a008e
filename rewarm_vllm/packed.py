"""A model over a packed snapshot: built without memory, then given views into the mapped files.

Only what is small is copied (64 KiB and less: norms and biases, which would else keep a private page each once an
engine writes to one). Everything is private and writable memory as far as torch knows: a read-only map ends the process
at the first write.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from rewarm_vllm import onednn
from rewarm_vllm.packed_format import PACKED_NAME, PackedLinear, PackedTable, parse
from rewarm_vllm.parameters import DoesNotFit
from rewarm_vllm.views import as_torch
from snapshots import Lease, MappedWeights, TensorView, read_extra

_COPIED_BYTES = 64 * 1024


def read_table(lease: Lease) -> PackedTable:
    """Raise ManifestInvalid, DigestMismatch."""
    try:
        raw = read_extra(lease, PACKED_NAME)
    except KeyError as error:
        raise DoesNotFit(f"{lease.snapshot_id} has no {PACKED_NAME}") from error
    return parse(raw, lease.folder / PACKED_NAME)


def build(vllm_config: Any, model_config: Any, prefix: str, table: PackedTable, mapped: MappedWeights) -> nn.Module:
    """Raise DoesNotFit. ``mapped`` has to outlive the model."""
    with set_default_torch_dtype(model_config.dtype):
        with torch.device("meta"):
            model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        _install(model, model_config, table, mapped)
    return model.eval()


def _install(model: nn.Module, model_config: Any, table: PackedTable, mapped: MappedWeights) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    views = mapped.tensors()
    _plain(modules, table, views)
    for linear in table.linears:
        _packed(_module(modules, linear.module), linear, _view(views, linear.tensor))
    _finish(model, modules, model_config, table)
    _check_complete(modules)


def _plain(modules: dict[str, nn.Module], table: PackedTable, views: dict[str, TensorView]) -> None:
    made: dict[str, torch.Tensor] = {}
    for entry in table.plain:
        tensor = made.get(entry.tensor)
        if tensor is None:
            tensor = as_torch(_view(views, entry.tensor))
            if tensor.nbytes <= _COPIED_BYTES:
                tensor = tensor.clone()
            if entry.is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=False)
            made[entry.tensor] = tensor
        owner, _, leaf = entry.name.rpartition(".")
        module = _module(modules, owner)
        held = module._parameters if entry.is_parameter else module._buffers
        before = held.get(leaf)
        _check_shape(entry.name, before, tensor.shape, tensor.dtype)
        if isinstance(before, nn.Parameter) and isinstance(tensor, nn.Parameter):
            tensor = made[entry.tensor] = _like(before, tensor)
        held[leaf] = tensor


def _like(before: nn.Parameter, tensor: nn.Parameter) -> nn.Parameter:
    """A parameter as the model made it, over other memory: its class and what it carries say how vLLM loads it, and to
    the kernels of quantised layers, which of its dimensions are what."""
    if type(tensor) is not type(before):
        if type(tensor) is not nn.Parameter:
            return tensor  # shared, and one of the others has said it
        tensor = torch.Tensor._make_subclass(type(before), tensor.data, False)
    tensor.__dict__.update(before.__dict__)
    return tensor


def _packed(module: nn.Module, linear: PackedLinear, view: TensorView) -> None:
    dtype = getattr(torch, linear.dtype, None)
    if dtype not in onednn.PACKABLE:
        raise DoesNotFit(f"{linear.module} is packed as {linear.dtype[:40]}")
    _check_shape(linear.module, module._parameters.get("weight"), torch.Size((linear.rows, linear.columns)), dtype)
    if not linear.weight_stays:
        # As vLLM leaves it once it has packed a weight of its own.
        empty = torch.empty(0, dtype=dtype, device="cpu")
        module._parameters["weight"] = nn.Parameter(empty, requires_grad=False)
    address = torch.frombuffer(view.data, dtype=torch.uint8).data_ptr()
    packed = onednn.over(address, linear.rows, linear.columns, dtype, bytes.fromhex(linear.descriptor))
    size = onednn.packing(packed).size_bytes
    if size != len(view.data):  # a kernel would read past the end
        raise DoesNotFit(f"{linear.module} has {len(view.data)} bytes, oneDNN wants {size}")
    module.__dict__["cpu_linear"] = functools.partial(_apply, packed)


def _apply(packed: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """In the place of vLLM's ``cpu_linear(x, weight, bias)``, whose ``weight`` is the empty one."""
    return onednn.linear(x, packed, bias)


def _finish(model: nn.Module, modules: dict[str, nn.Module], model_config: Any, table: PackedTable) -> None:
    """What vLLM's own processing does after the linear layers, and what it does to layers that we do not pack."""
    for name in table.native:
        module = _module(modules, name)
        module.quant_method.process_weights_after_loading(module)
    done = {entry.module for entry in table.linears} | set(table.native)
    for name, module in modules.items():
        if name not in done and isinstance(getattr(module, "weight", None), torch.Tensor):
            # An embedding that is only looked up: vLLM packs it too, for nothing.
            if hasattr(module, "quant_method") and "cpu_linear" not in module.__dict__:
                module.__dict__["cpu_linear"] = nn.functional.linear
    for module in model.modules():
        if is_deferred_attention_layer(module):
            module.process_weights_after_loading(model_config.dtype)
    if hasattr(model, "process_weights_after_loading"):
        model.process_weights_after_loading()


def _check_complete(modules: dict[str, nn.Module]) -> None:
    """Nothing may be left without memory, not even what a model keeps beside its parameters and buffers."""
    for name, module in modules.items():
        for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.is_meta:
                raise DoesNotFit(f"the snapshot has no {name}.{leaf}")
        for attribute, value in module.__dict__.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                if value.numel():
                    raise DoesNotFit(f"{name}.{attribute} is computed while the model is built")
                module.__dict__[attribute] = torch.empty(value.shape, dtype=value.dtype, device="cpu")


def _check_shape(name: str, held: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype) -> None:
    if held is None or held.shape != shape or held.dtype != dtype:
        there = "nothing" if held is None else f"{held.dtype} {list(held.shape)}"
        raise DoesNotFit(f"{name} is {dtype} {list(shape)}, in the model {there}")


def _module(modules: dict[str, nn.Module], name: str) -> nn.Module:
    if name not in modules:
        raise DoesNotFit(f"the model has no {name[:200]}")
    return modules[name]


def _view(views: dict[str, TensorView], name: str) -> TensorView:
    if name not in views:
        raise DoesNotFit(f"the files hold no {Path(name[:200])}")
    return views[name]
