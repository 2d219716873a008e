"""Weights on this machine: the Hugging Face cache, GGUF files where programs put them, Ollama's store. Only looks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapshots import HubCache, HubSettings

GGUF_FOLDERS = (
    "~/.cache/llama.cpp",
    "~/models",
    "~/.lmstudio/models",
    "~/.cache/lm-studio/models",
    "/srv/models",
    "/var/lib/models",
)
"""Where llama.cpp, LM Studio and people put GGUF files."""

_DEPTH = 4  # LM Studio: publisher/repository/file
_SHARD = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_MODEL_LAYER = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Found:
    """``source`` as a configuration names it. ``kind``: a checkpoint's folder, or a GGUF file. ``generates`` is False
    for an encoder: embeddings only."""

    name: str
    source: str
    where: str
    kind: str  # checkpoint | gguf
    size_bytes: int
    generates: bool = True
    why_not: str = ""  # nothing here can serve it


def find_models(folders: Iterable[Path], environment: Mapping[str, str], home: Path) -> list[Found]:
    """In ``folders``, or without any in the usual places; the hub's cache always. Each file once, by its real path."""
    given = [folder.expanduser() for folder in folders]
    places = given or [Path(str(name).replace("~", str(home), 1)) for name in GGUF_FOLDERS]
    seen: set[Path] = set()
    out = []
    for found in (*_hub(environment, home), *_folders(places), *_ollama(environment, home)):
        real = Path(found.source).resolve() if not found.source.startswith("hf:") else Path(found.source)
        if real not in seen:
            seen.add(real)
            out.append(found)
    return out


def _hub(environment: Mapping[str, str], home: Path) -> Iterator[Found]:
    cache = HubCache(HubSettings.read({"HOME": str(home), **environment}).cache)
    for reference, path in cache.models():
        name = reference.repo.partition("/")[2].lower()
        if path.is_dir():
            yield _checkpoint(name, path, str(reference), str(cache.root))
        else:
            named = name if reference.file is None else path.stem.lower()
            yield Found(named, str(reference), str(cache.root), "gguf", path.stat().st_size)


def _folders(places: Iterable[Path]) -> Iterator[Found]:
    for place in places:
        for path in _below(place, _DEPTH):
            if path.name == "config.json" and any(path.parent.glob("*.safetensors")):
                yield _checkpoint(path.parent.name.lower(), path.parent, str(path.parent), str(place))
            elif path.suffix == ".gguf" and not path.name.startswith("mmproj"):
                shard = _SHARD.search(path.name)
                if shard is not None and int(shard[1]) > 1:
                    continue  # the first one stands for all
                parts = path.parent.glob(_SHARD.sub("-*.gguf", path.name)) if shard is not None else [path]
                size = sum(part.stat().st_size for part in parts)
                yield Found(
                    _SHARD.sub("", path.name).removesuffix(".gguf").lower(), str(path), str(place), "gguf", size
                )


def _ollama(environment: Mapping[str, str], home: Path) -> Iterator[Found]:
    stores = [Path(environment["OLLAMA_MODELS"])] if environment.get("OLLAMA_MODELS") else []
    stores += [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    for store in stores:
        for manifest in sorted(path for path in _below(store / "manifests", 5) if path.is_file()):
            layer = _model_layer(manifest)
            if layer is None:
                continue
            blob = store / "blobs" / str(layer["digest"]).replace(":", "-")
            if blob.is_file():
                model, tag = manifest.parent.name, manifest.name
                name = model if tag == "latest" else f"{model}:{tag}"
                yield Found(name.lower(), str(blob), f"Ollama's {store}", "gguf", blob.stat().st_size)


def _model_layer(manifest: Path) -> dict[str, Any] | None:
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        return next((layer for layer in layers if layer["mediaType"] == _MODEL_LAYER and layer["digest"]), None)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _checkpoint(name: str, folder: Path, source: str, where: str) -> Found:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())
    try:
        config = json.loads((folder / "config.json").read_bytes())
        architectures = [str(entry) for entry in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return Found(name, source, where, "checkpoint", size, why_not=f"its config.json cannot be read: {error}")
    if not architectures:
        return Found(name, source, where, "checkpoint", size, why_not="its config.json names no architecture")
    generates = any(
        entry.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) for entry in architectures
    )
    return Found(name, source, where, "checkpoint", size, generates=generates)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Files, without following links to folders: a loop of them must not keep us."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif depth > 0 and entry.is_dir() and not entry.is_symlink():
            yield from _below(entry, depth - 1)
