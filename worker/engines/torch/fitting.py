"""A model without memory, and the tensors that become its parameters: nothing is copied where the dtype is theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_COMPUTED = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias|attention\.bias)$")
"""What older checkpoints store and a model computes itself."""


class DoesNotFit(Exception):
    """The tensors are not, one for one, those of the model that its configuration describes. The message names one."""


@contextmanager
def without_memory() -> Iterator[None]:
    """Parameters that modules register inside are on ``meta``. Buffers are real: they are computed, not loaded."""
    original = nn.Module.register_parameter

    def register_parameter(self: Any, name: str, parameter: Any) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        original(self, name, parameter)

    nn.Module.register_parameter = register_parameter
    try:
        yield
    finally:
        nn.Module.register_parameter = original


def fit(module: Any, tensors: Mapping[str, Any], dtype: Any) -> None:
    """Make ``tensors`` the module's parameters, floating-point ones in ``dtype``.

    Raise DoesNotFit, with the module as it was, where names or shapes are not one for one those of the module.
    """
    if getattr(module, "_keep_in_fp32_modules", None) or getattr(module, "_keep_in_fp32_modules_strict", None):
        raise DoesNotFit("parts of this model stay in float32 whatever the dtype")
    state = module.state_dict()
    chosen: dict[str, Any] = {}
    for name, tensor in tensors.items():
        target = _target(module, state, name)
        if target is None:
            continue
        if state[target].shape != tensor.shape:
            raise DoesNotFit(f"{name} is {list(tensor.shape)}, in the model {list(state[target].shape)}")
        chosen[target] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    missing = {name for name, value in state.items() if value.device.type == "meta"} - chosen.keys() - _tied(module)
    if missing:
        raise DoesNotFit(f"there is no {min(missing)}")
    module.load_state_dict(chosen, strict=False, assign=True)
    module.tie_weights()
    empty = [name for name, parameter in module.named_parameters() if parameter.device.type == "meta"]
    if empty:
        raise DoesNotFit(f"there is no {empty[0]}")
    module.requires_grad_(False)
    module.eval()


def _target(module: Any, state: Mapping[str, Any], name: str) -> str | None:
    """The name in the module; None for what it does not need. Raise DoesNotFit."""
    if name in state:
        return name
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    if name.removeprefix(prefix) in state:
        return name.removeprefix(prefix)
    if prefix + name in state:
        return prefix + name
    ignored = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    if _COMPUTED.search(name) or any(re.search(pattern, name) for pattern in ignored):
        return None
    raise DoesNotFit(f"the model has no {name}")


def _tied(module: Any) -> set[str]:
    """Names that are another parameter's under a second name."""
    tied = getattr(module, "all_tied_weights_keys", None) or {}
    return set(tied)
