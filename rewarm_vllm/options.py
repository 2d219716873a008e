"""``--model-loader-extra-config`` of the load format ``rewarm``: strict, so that a typing mistake is no default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from snapshots import default_root

LOAD_FORMAT = "rewarm"
COMPILE_FOLDER_ENV = "REWARM_COMPILE_FOLDER"  # where all processes of an engine compile into
STORE_ENV = "REWARM_SNAPSHOTS"  # as `rewarm snapshot --store`


Verify = Literal["auto", "first", "later"]


class LoadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``store``: the store's folder; by default ``REWARM_SNAPSHOTS``, then the user's. ``name``: the model's in it; by
    default that of its folder. ``snapshots`` off: always the checkpoint. ``caches`` off: weights only, nothing that was
    compiled. ``verify``: "auto" reads and compares before the load ends if the disk has to deliver the bytes, else
    meanwhile and before the first forward pass; "first" always waits; "later" reads nothing: the forks of this process
    compare (:mod:`rewarm_vllm.forked`)."""

    store: str | None = None
    name: str | None = None
    snapshots: bool = True
    caches: bool = True
    verify: Verify = "auto"

    @classmethod
    def parse(cls, extra: Mapping[str, Any] | None) -> LoadOptions:
        """Raise ValueError for what is none of these."""
        try:
            return msgspec.convert(dict(extra or {}), type=cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"model_loader_extra_config of load format {LOAD_FORMAT}: {error}") from error

    @property
    def store_root(self) -> Path:
        named = self.store or os.environ.get(STORE_ENV)
        return Path(named) if named else default_root()
