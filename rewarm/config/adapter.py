"""``adapter_of``: a LoRA adapter. It is a model by name only: the engine of its base serves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import field_validator

from rewarm.config.named import NamedModel
from rewarm.hub import is_hub


class AdapterModel(NamedModel):
    adapter_of: str  # the base: a model with `engine: vllm`
    source: Path  # folder with adapter_config.json and adapter_model.safetensors

    @field_validator("source")
    @classmethod
    def _folder(cls, value: Path) -> Path:
        if is_hub(value):
            raise ValueError("adapters are not fetched from a hub: download it, and name its folder")
        return value


_NO_ADAPTERS: Mapping[str, str] = {
    "torch": "the torch engine serves no adapters: set `engine: vllm` there, or merge the adapter into the weights",
    "command": "what a command serves is its own affair: give the adapter to the server in `cmd`, and its name to the "
    "model in `aliases`",
    "remote": "it runs elsewhere: configure the adapter's name there as an `engine: remote` of its own",
}


def adapter_problems(models: Mapping[str, NamedModel]) -> Iterator[tuple[str, str]]:
    """(adapter, what is wrong with its ``adapter_of``)."""
    aliases = {alias: name for name, model in models.items() for alias in model.aliases}
    for name, model in models.items():
        if not isinstance(model, AdapterModel):
            continue
        base = models.get(model.adapter_of)
        if base is None:
            known = aliases.get(model.adapter_of)
            hint = f": it is an alias, write {known!r}" if known else ""
            yield name, f"{model.adapter_of!r} is no model{hint}"
        elif isinstance(base, AdapterModel):
            yield name, f"{model.adapter_of!r} is an adapter itself: name its base, {base.adapter_of!r}"
        else:
            why = _NO_ADAPTERS.get(str(getattr(base, "engine", "")))
            if why:
                yield name, f"{model.adapter_of!r} cannot have adapters: {why}"
