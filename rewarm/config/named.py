"""What every model has, whatever serves it."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from rewarm.config.base import Duration, Section

Capability = Literal["chat", "completions", "responses", "embeddings", "tools", "images", "response_format"]
"""What a request may need of the model that answers it: its endpoint, and what its body uses."""


class NamedModel(Section):
    """Fields of every model, also of one that runs elsewhere."""

    aliases: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()  # models that answer instead, in this order; see rewarm.fallback
    # A fallback answers when the model needs more than this. None: when it needs more than the request may wait.
    fallback_after: Duration | None = Field(default=None, ge=timedelta(0))
    capabilities: tuple[Capability, ...] | None = None  # None: found out from engine and source
    max_waiting: int = Field(default=1000, ge=1)
    unlisted: bool = False  # not in /v1/models, served all the same
    answer_stall: Duration = timedelta(seconds=120)  # longest silence of a running answer
