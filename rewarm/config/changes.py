"""What a configuration that was read again changes: which fields apply at once, and which wait for a restart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rewarm.config.processes import is_loopback
from rewarm.config.schema import Config
from rewarm.errors import ConfigInvalid

AT_START = (
    "fleet",
    "state_dir",
    "secret_env",
    "redis",
    "worker",
    "snapshots",
    "pool",
    "tracing",
    "knative",
    "gateway.listen",
    "gateway.controller",
    "gateway.watch",
    "gateway.shutdown_deadline",
    "jobs.webhooks",
    "files",
)
"""Fields that a process takes at its start, each with all that is below it: sockets, connections, budgets, folders,
clients. Everything else applies to a gateway that runs; a new section belongs here unless somebody applies it."""


@dataclass(frozen=True, slots=True)
class Changes:
    """``config`` is what holds now: the new file, with the fields in ``restart`` as they were."""

    config: Config
    applied: tuple[str, ...]
    restart: tuple[str, ...]

    def __str__(self) -> str:
        parts = [", ".join(self.applied) or "nothing changed"]
        if self.restart:
            parts.append(f"only after a restart: {', '.join(self.restart)}")
        return "; ".join(parts)


def changes(old: Config, new: Config) -> Changes:
    """From ``old``, which holds, to ``new``. Raise ConfigInvalid where the two do not go together."""
    differ = list(_differences(old, new))
    restart = tuple(field for field in differ if _taken_at_start(field))
    config = new
    for field in AT_START:
        config = _with(config, field.split("."), old)
    if not config.keys and not is_loopback(config.gateway.host):
        raise ConfigInvalid(
            f"keys: the gateway listens on {config.gateway.listen} until it is restarted, and needs a key there"
        )
    return Changes(config, tuple(field for field in differ if field not in restart), restart)


def _taken_at_start(field: str) -> bool:
    return any(field == start or field.startswith(f"{start}.") for start in AT_START)


def _differences(old: BaseModel, new: BaseModel, at: str = "") -> Iterator[str]:
    """``models`` by name, other sections by field: as deep as an operator would say it."""
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        field = f"{at}{name}"
        if name == "models" and not at:
            yield from (f"{field}.{model}" for model in sorted({**before, **after}) if _differs(before, after, model))
        elif isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _differences(before, after, f"{field}.")
        else:
            yield field


def _differs(before: dict[str, Any], after: dict[str, Any], model: str) -> bool:
    return bool(before.get(model) != after.get(model))


def _with(config: Any, path: list[str], old: Any) -> Any:
    """``config`` with the field at ``path`` as ``old`` has it."""
    name, *rest = path
    value = getattr(old, name)
    if rest:
        value = _with(getattr(config, name), rest, value)
    return config.model_copy(update={name: value})
