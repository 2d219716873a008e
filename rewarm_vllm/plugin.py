"""The entry point: vLLM calls :func:`register` in each of its processes, more than once."""

from __future__ import annotations

from rewarm_vllm.options import LOAD_FORMAT


def register() -> None:
    """Make ``--load-format rewarm`` known. Nothing of the loader is imported before: a vLLM that loads in another way
    pays for this line only."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

    if LOAD_FORMAT in _LOAD_FORMAT_TO_MODEL_LOADER:
        return  # vLLM would warn of an overwritten loader
    from rewarm_vllm.loader import RewarmLoader

    register_model_loader(LOAD_FORMAT)(RewarmLoader)
