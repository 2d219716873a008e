"""What the weights came from: known in the engine core, asked for by the host. A small file in the start's temporary
folder carries it, as one does the cause of a failure."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from rewarm_vllm import Loaded

LOADED_ENV = "REWARM_LOADED_FILE"


def record(loaded: Loaded) -> None:
    """In the engine core. The last one counts: damaged weights are replaced after they were loaded."""
    path = os.environ.get(LOADED_ENV)
    if not path:
        return
    temporary = Path(f"{path}.new")
    temporary.write_text(json.dumps(asdict(loaded)))
    temporary.rename(path)


def read(path: Path) -> Loaded | None:
    try:
        fields = json.loads(path.read_bytes())
        return Loaded(**(fields | {"reasons": tuple(fields["reasons"])}))
    except (OSError, ValueError, KeyError, TypeError):
        return None
