"""What an import gives: a document of ours with comments, and remarks on what is different now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

_TEXT_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Remark:
    """``lost``: the original did something that the result does not. Else it is only done in another way."""

    line: int
    field: str
    text: str
    lost: bool = True


@dataclass(slots=True)
class Commented:
    """A mapping with a comment above it, and one behind any of its fields."""

    values: dict[str, Any] = field(default_factory=dict)
    head: Sequence[str] = ()
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Imported:
    text: str
    remarks: tuple[Remark, ...]

    @property
    def partial(self) -> bool:
        return any(remark.lost for remark in self.remarks)


def render(document: Commented) -> str:
    """As YAML that a person would have written: sections apart, long commands as blocks."""
    lines = [f"# {line}".rstrip() for line in document.head]
    for key, value in document.values.items():
        lines += ["", *_field(key, value, document.notes.get(key, ""), 0)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _field(key: str, value: Any, note: str, depth: int) -> list[str]:
    pad = "  " * depth
    name = f"{pad}{_scalar(key)}:"
    behind = f"  # {note}" if note else ""
    if isinstance(value, Commented):
        out = [f"{pad}# {line}".rstrip() for line in value.head]
        out.append(f"{name}{behind}" if value.values else f"{name} {{}}{behind}")
        for inner, content in value.values.items():
            out += _field(inner, content, value.notes.get(inner, ""), depth + 1)
        return out
    if isinstance(value, Mapping):
        out = [f"{name}{behind}"]
        for inner, content in value.items():
            out += _field(str(inner), content, "", depth + 1)
        return out
    if isinstance(value, str) and "\n" in value:
        return [f"{name} |-{behind}", *(f"{pad}  {line}" for line in value.splitlines())]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        out = [f"{name}{behind}"]
        for item in value:
            first, *rest = [line for k, v in item.items() for line in _field(str(k), v, "", depth + 2)]
            out += [f"{pad}  - {first.strip()}", *rest]
        return out
    return [f"{name} {_scalar(value)}{behind}"]


def _scalar(value: Any) -> str:
    """On one line, quoted where YAML needs it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip()
