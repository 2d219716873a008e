"""Building a model twice in one process, which vLLM does not expect: its layers register themselves by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_RUNTIME = frozenset(("kv_cache",))  # belongs to the running engine, not to the weights


@contextmanager
def registrations_undone(vllm_config: Any) -> Iterator[None]:
    """A model that fails while it is built leaves no layer registered: another attempt can follow."""
    compilation = vllm_config.compilation_config
    layers, moe = dict(compilation.static_forward_context), list(compilation.static_all_moe_layers)
    try:
        yield
    except BaseException:
        compilation.static_forward_context.clear()
        compilation.static_forward_context.update(layers)
        compilation.static_all_moe_layers[:] = moe
        raise


def beside(vllm_config: Any) -> Any:
    """The same configuration for a second model: what it registers does not meet the first one's."""
    config = copy.copy(vllm_config)
    config.compilation_config = copy.copy(vllm_config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    return config


def transplant(model: nn.Module, donor: nn.Module) -> None:
    """Give ``model`` the weights of ``donor``, which was built from the same configuration, and how to use them.

    The modules stay the same objects: the engine holds references to them and to their KV caches.
    """
    donors = dict(donor.named_modules(remove_duplicate=False))
    for name, module in model.named_modules(remove_duplicate=False):
        other = donors[name]
        module._parameters = other._parameters
        module._buffers = other._buffers
        for attribute, value in other.__dict__.items():
            if attribute == "cpu_linear" or (isinstance(value, torch.Tensor) and attribute not in _RUNTIME):
                module.__dict__[attribute] = value
