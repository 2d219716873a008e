"""Files of `rewarm knative`: manifests read from wherever they are, and written so that none is ever half there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rewarm.errors import ManifestInvalid
from rewarm.knative.manifest import Manifest
from rewarm.knative.render import Backend, kustomization, render
from rewarm.knative.text import HEADER, documents, dump, is_object, manifests

_BUILD_FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")


def collected(source: str, backend: Backend) -> list[Manifest]:
    """The objects of a file, a folder (and those below it), standard input, or a configuration.

    In a folder whatever is no object is passed over; a file that was named has to be manifests or a configuration.
    Raise ManifestInvalid, ConfigInvalid or CannotRender.
    """
    if source == "-":
        return manifests(documents(sys.stdin.read(), "standard input"), "standard input")
    path = Path(source)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml") and p.name not in _BUILD_FILES)
        return [m for file in found for m in manifests(documents(text_of(file), str(file)), str(file))]
    text = text_of(path)
    read = documents(text, source)
    if any(is_object(document) for document in read):
        return manifests(read, source)
    rendered = render(text, backend, source)
    return [Manifest(f"{source} → {name}", document) for name, document in rendered.items()]


def write(folder: Path, rendered: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Write all, and remove what an earlier render has left; (written, removed) by name.

    Raise ManifestInvalid where the folder cannot be written to.
    """
    documents = {**rendered, "kustomization.yaml": kustomization(sorted(rendered))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            partial = folder / f".{name}.part"
            partial.write_text(HEADER + dump(document), encoding="utf-8")
            partial.replace(folder / name)
        gone = [
            path
            for path in sorted(folder.glob("*.yaml"))
            if path.name not in documents and path.read_text(encoding="utf-8").startswith(HEADER)
        ]
        for path in gone:
            path.unlink()
    except OSError as error:
        raise ManifestInvalid(f"{folder}: {error.strerror or error}") from error
    return list(documents), [path.name for path in gone]


def text_of(path: Path) -> str:
    """Raise ManifestInvalid with the file's name."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestInvalid(f"{path}: {getattr(error, 'strerror', None) or error}") from error
