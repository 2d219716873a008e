"""Where the hub and its cache are: the variables of ``huggingface_hub``, read in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_ENDPOINT = "https://huggingface.co"
_YES = frozenset(("1", "true", "yes", "on"))


@dataclass(frozen=True, slots=True)
class HubSettings:
    cache: Path
    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = field(default=None, repr=False)
    offline: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> HubSettings:
        """``HF_HUB_CACHE``, else ``HF_HOME``/hub; ``HF_ENDPOINT``; ``HF_TOKEN``, else the file that `hf auth login`
        writes; ``HF_HUB_OFFLINE``."""
        env = os.environ if environment is None else environment
        shared = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache")
        home = Path(env.get("HF_HOME") or shared / "huggingface").expanduser()
        return cls(
            cache=Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser(),
            endpoint=(env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
            token=env.get("HF_TOKEN") or _token(Path(env.get("HF_TOKEN_PATH") or home / "token")),
            offline=env.get("HF_HUB_OFFLINE", "").lower() in _YES,
        )


def _token(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
