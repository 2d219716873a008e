"""Manifests as YAML, and YAML as manifests."""

from __future__ import annotations

from typing import Any

import yaml

from rewarm.errors import ManifestInvalid
from rewarm.knative.manifest import Manifest

HEADER = "# Made by `rewarm knative render`: change the configuration and render again.\n"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; no anchors, which nobody expects in a manifest."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(document: dict[str, Any]) -> str:
    """In the order of the dictionary, so that equal documents are equal texts."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def documents(text: str, file: str) -> list[Any]:
    """All of a stream, empty ones left out. Raise ManifestInvalid with file and line."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [document for document in yaml.load_all(text, Loader=loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ManifestInvalid(f"{file}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ManifestInvalid(f"{file}: not valid YAML: {error}") from error


def is_object(document: object) -> bool:
    """Has it what every Kubernetes object has?"""
    return isinstance(document, dict) and "apiVersion" in document and "kind" in document


def manifests(found: list[Any], file: str) -> list[Manifest]:
    """The objects among documents, those of Lists one by one."""
    out: list[Manifest] = []
    for document in filter(is_object, found):
        if document["kind"] == "List":
            out += manifests(document.get("items") or [], file)
        else:
            out.append(Manifest(file, document))
    return out
