"""``kubectl kustomize``, as much of it as ``deploy/knative`` uses: the overlays are tested where there is no kubectl.

resources, components, ``$patch: delete``, and JSON patches with a target. Whatever else a kustomization says is
refused, so that nothing is passed over in silence. Where kubectl is installed, a test compares the two.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "resources", "components", "patches"}
_FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")


def build(folder: Path) -> list[Document]:
    """All objects of a kustomization, patched. Raise ValueError for what is not understood or not there."""
    return _apply(folder, [])


def kubectl_build(folder: Path) -> list[Document]:
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


Builder = Callable[[Path], list[Document]]


def builders() -> dict[str, Builder]:
    """Those that there are here, ours first."""
    own: dict[str, Builder] = {"own": build}
    return own | {"kubectl": kubectl_build} if shutil.which("kubectl") else own


def _apply(folder: Path, below: list[Document]) -> list[Document]:
    kustomization = _read(folder)
    if unknown := set(kustomization) - _KNOWN:
        raise ValueError(f"{folder}: this builder does not know {sorted(unknown)}")
    objects = list(below)
    for name in kustomization.get("resources", []):
        path = folder / name
        if not path.exists():
            raise ValueError(f"{folder}: {name} does not exist")
        objects += build(path) if path.is_dir() else list(_documents(path))
    for name in kustomization.get("components", []):
        objects = _apply(folder / name, objects)
    for patch in kustomization.get("patches", []):
        objects = _patched(folder, patch, objects)
    keys = [_key(one) for one in objects]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"{folder}: twice: {sorted(twice)}")
    return objects


def _read(folder: Path) -> Document:
    for name in _FILES:
        if (folder / name).exists():
            read: Document = yaml.safe_load((folder / name).read_text(encoding="utf-8"))
            return read
    raise ValueError(f"{folder}: no kustomization.yaml")


def _documents(path: Path) -> Iterator[Document]:
    yield from (one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one)


def _key(one: Document) -> tuple[str, str, str]:
    return (str(one["apiVersion"]), str(one["kind"]), str(one["metadata"]["name"]))


def _patched(folder: Path, patch: Document, objects: list[Document]) -> list[Document]:
    text = patch.get("patch") or (folder / patch["path"]).read_text(encoding="utf-8")
    body = yaml.safe_load(text)
    if isinstance(body, dict):
        if body.get("$patch") != "delete":
            raise ValueError(f"{folder}: this builder merges nothing: {body}")
        left = [one for one in objects if _key(one) != _key(body)]
        if len(left) == len(objects):
            raise ValueError(f"{folder}: nothing to delete: {_key(body)}")
        return left
    return [_operated(one, body) if _targeted(one, patch["target"]) else one for one in objects]


def _targeted(one: Document, target: Document) -> bool:
    group = str(one["apiVersion"]).rpartition("/")[0]
    labels = one["metadata"].get("labels", {})
    wanted = dict(part.split("=") for part in target.get("labelSelector", "").split(",") if part)
    return (
        target.get("group", group) == group
        and target.get("kind", one["kind"]) == one["kind"]
        and target.get("name", one["metadata"]["name"]) == one["metadata"]["name"]
        and all(labels.get(key) == value for key, value in wanted.items())
    )


def _operated(one: Document, operations: list[Document]) -> Document:
    out = copy.deepcopy(one)
    for operation in operations:
        at: Any = out
        *folders, last = [part.replace("~1", "/") for part in operation["path"].strip("/").split("/")]
        for part in folders:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = int(last) if isinstance(at, list) else last
        if operation["op"] == "test" and at[key] != operation["value"]:
            raise ValueError(f"{_key(one)}: {operation['path']} is {at[key]!r}, not {operation['value']!r}")
        if operation["op"] == "replace" and (key not in at if isinstance(at, dict) else key >= len(at)):
            raise ValueError(f"{_key(one)}: nothing to replace at {operation['path']}")
        if operation["op"] in ("replace", "add"):
            at[key] = operation["value"]
    return out
