"""What every section of the configuration is made of."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from rewarm.hub import is_hub, parse_reference
from rewarm.units import parse_duration, parse_size

Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]


def seconds(value: float) -> timedelta:
    """For defaults and bounds."""
    return timedelta(seconds=value)


def _source(value: object) -> object:
    """A path, or ``hf:org/name@revision`` written as one. Raise ValueError for a hub's that is malformed."""
    if isinstance(value, str) and is_hub(value):
        return str(parse_reference(value))
    return value


Source = Annotated[Path, BeforeValidator(_source)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
