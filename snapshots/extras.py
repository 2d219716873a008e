"""Which files of a checkpoint folder go into a snapshot beside the weights: all that an engine may ask for."""

from __future__ import annotations

import os
from pathlib import Path

from snapshots.checkpoint import INDEX_FILE
from snapshots.manifest import MANIFEST_NAME
from snapshots.names import check_file_name
from snapshots.publish import MANIFEST_FILE

MAX_EXTRA_BYTES = 256 * 2**20
"""The largest tokenizers have some 40 MB. What is larger is weights in some form, and is not ours to copy."""

_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".ot",
    ".tflite",
    ".npz",
)
ENGINE_CACHE_NAME = "rewarm-compile-cache"
"""In a snapshot: what an engine compiled. It belongs to that snapshot and store, and is never copied from a folder."""

_OURS = frozenset((INDEX_FILE, MANIFEST_FILE, MANIFEST_NAME, ENGINE_CACHE_NAME))
_MAX_FILES = 2000


def find_extras(folder: Path) -> list[Path]:
    """Tokenizer, chat template, configuration, generation defaults, code: every file that holds no weights, by name.

    Names that a manifest may not hold are left out, as are hidden files. Links to files are followed (a hub's cache
    is made of them), links to folders are not.
    """
    found: list[Path] = []
    for below, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(below) / name
            relative = path.relative_to(folder).as_posix()
            if is_extra_name(relative) and path.is_file() and path.stat().st_size <= MAX_EXTRA_BYTES:
                found.append(path)
        if len(found) > _MAX_FILES:
            raise OSError(7, f"holds more than {_MAX_FILES} files beside its weights", str(folder))
    return sorted(found)


def is_extra_name(name: str) -> bool:
    """Of a path relative to the checkpoint's folder."""
    if name in _OURS or check_file_name(name) is not None:
        return False
    return not name.lower().endswith(_WEIGHTS)
