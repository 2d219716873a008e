"""YAML with its lines: what a remark points to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rewarm.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Item:
    """A value and the line that it begins on."""

    node: yaml.Node | None
    line: int

    @property
    def value(self) -> Any:
        return None if self.node is None else yaml.SafeLoader("").construct_object(self.node, deep=True)

    @property
    def text(self) -> str:
        """A scalar as it is written, without regard to its type; empty for anything else."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""

    def items(self) -> Iterator[tuple[str, Item]]:
        """Of a mapping; nothing for anything else."""
        if isinstance(self.node, yaml.MappingNode):
            for key, value in self.node.value:
                yield str(key.value), Item(value, key.start_mark.line + 1)

    def entries(self) -> Iterator[Item]:
        """Of a list; nothing for anything else."""
        if isinstance(self.node, yaml.SequenceNode):
            for value in self.node.value:
                yield Item(value, value.start_mark.line + 1)

    def get(self, name: str) -> Item:
        return next((item for key, item in self.items() if key == name), Item(None, self.line))

    def __bool__(self) -> bool:
        return self.node is not None


def read(text: str, file: str) -> Item:
    """Raise ConfigInvalid for what is no YAML mapping."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigInvalid(f"{file}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigInvalid(f"{file}:1: not valid YAML: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigInvalid(f"{file}:1: the file must be a mapping with models")
    return Item(node, 1)
