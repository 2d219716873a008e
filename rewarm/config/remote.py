"""``engine: remote``: somebody else's OpenAI-compatible API as a model of ours."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rewarm.config.base import Duration
from rewarm.config.named import NamedModel

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class RemoteModel(NamedModel):
    """Nothing of it runs here: no replica, no memory, never asleep. The key itself is never written down."""

    engine: Literal["remote"]
    url: str  # the base that OpenAI's clients are given, https://host/v1
    key_env: str | None = None  # the environment variable that holds the upstream's key, where gateway and workers run
    upstream_model: str | None = None  # the name the upstream knows the model by; by default the same
    concurrency: int = Field(default=16, ge=1, le=10_000)  # requests under way, per gateway; jobs, per worker
    context_length: int | None = Field(default=None, ge=16)
    connect_timeout: Duration = Field(default=timedelta(seconds=5), gt=timedelta(0))
    ca_file: Path | None = None  # certificates to trust instead of the system's, PEM

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write https://host/v1")
        if parts.username or parts.password:
            raise ValueError("the key does not belong into the URL: name its environment variable in `key_env`")
        if parts.query or parts.fragment:
            raise ValueError("no query and no fragment: write https://host/v1")
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{parts.netloc!r} has no usable port") from error
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.match(value):
            # It may be the key itself: the message must not repeat it.
            raise ValueError("must be the name of an environment variable, not the key: letters, digits and _")
        return value
