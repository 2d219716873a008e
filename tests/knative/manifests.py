"""A right manifest to make wrong ones from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewarm.config import Config
from rewarm.knative.check import check
from rewarm.knative.finding import Finding
from rewarm.knative.manifest import Manifest
from rewarm.knative.operator import Operator
from rewarm.knative.render import read, render

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "three-models.yaml"

STOCK = Operator(known_features=True, known_autoscaler=True, known_defaults=True)
"""A cluster as Knative ships it, asked."""

ASKED_NOTHING = Operator()

KEY = f"keys: [{{name: team, sha256: '{'0' * 63}3'}}]\n"
ONE_MODEL = KEY + "models: {chat: {engine: vllm, source: /srv/models/chat}}\n"
PLAIN = ONE_MODEL + "knative: {weights: {kind: none}}\n"
"""A configuration whose manifest needs nothing of the operator."""

TEMPLATE = "spec.template.spec"
NOTES = "spec.template.metadata.annotations"


def service(text: str = PLAIN) -> dict[str, Any]:
    """The Knative Service of its first model."""
    return render(text)["model-chat-0.yaml"]


def deployment(text: str = PLAIN) -> dict[str, Any]:
    return render(text, "deployment")["model-chat-0.yaml"]


def changed(document: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value at ``path``; an annotation's name follows its path after a colon."""
    out = copy.deepcopy(dict(document))
    path, _, key = path.partition(":")
    at: Any = out
    parts: list[Any] = [int(part) if part.isdigit() else part for part in path.split(".")]
    if key:
        parts.append(key)
    for part in parts[:-1]:
        at = at[part] if isinstance(at, list) else at.setdefault(part, {})
    if value is None:
        at.pop(parts[-1], None)
    elif isinstance(at, list) and parts[-1] == len(at):
        at.append(value)
    else:
        at[parts[-1]] = value
    return out


def findings(
    document: Mapping[str, Any], operator: Operator = STOCK, config: Config | str | None = None
) -> list[Finding]:
    config = read(config) if isinstance(config, str) else config
    return check([Manifest("workers.yaml", document)], operator, config)
