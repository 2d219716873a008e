"""What a model can answer: as the configuration says, else as its engine and its checkpoint's own files tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewarm.config.remote import RemoteModel
from rewarm.config.schema import AnyModel, TorchModel, VllmModel
from rewarm.messages import Capabilities

_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_SEES = ("vision_config", "vision_tower", "image_token_id", "image_token_index")


def capabilities_of(model: AnyModel) -> Capabilities:
    """Nothing is known of what a server behind ``command`` or ``remote`` can do, nor of a checkpoint that is not on
    this machine: then it counts as able, and its engine judges."""
    context = None
    can: frozenset[str] | None = None
    if isinstance(model, VllmModel | TorchModel):
        config = _json(model.source / "config.json")
        context = model.context_length or _context(config)
        if config:
            can = _torch(config) if isinstance(model, TorchModel) else _vllm(config, model)
    elif isinstance(model, RemoteModel):
        context = model.context_length
    if model.capabilities is not None:
        can = frozenset(model.capabilities)
    return Capabilities(can=None if can is None else tuple(sorted(can)), context_length=context)


def _torch(config: Mapping[str, Any]) -> frozenset[str]:
    """What ``worker/engines/torch`` implements."""
    return frozenset(("chat", "completions")) if _generates(config) else frozenset(("embeddings",))


def _vllm(config: Mapping[str, Any], model: VllmModel) -> frozenset[str]:
    if not _generates(config):
        return frozenset(("embeddings",))
    can = {"chat", "completions", "responses", "response_format"}
    # Without this argument vLLM refuses tools, whatever the template knows.
    if "--enable-auto-tool-choice" in model.args and "tools" in _chat_template(model.source):
        can.add("tools")
    if any(name in config for name in _SEES):
        can.add("images")
    return frozenset(can)


def _generates(config: Mapping[str, Any]) -> bool:
    architectures = config.get("architectures") or []
    return any(isinstance(name, str) and name.endswith(_GENERATES) for name in architectures) or not architectures


def _context(config: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")
    for section in (config, inner if isinstance(inner, dict) else {}):
        length = section.get("max_position_embeddings")
        if isinstance(length, int) and length > 0:
            return length
    return None


def _chat_template(source: Path) -> str:
    template = _json(source / "tokenizer_config.json").get("chat_template")
    text = json.dumps(template) if template else ""
    try:
        return text + (source / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return text


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is nothing that can be read: whoever loads the model says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
