"""Kubernetes objects as they are read, and the few ways in which rules look at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rewarm.knative.names import COMPONENT_GATEWAY, COMPONENT_WORKER, LABEL_COMPONENT

SERVING = "serving.knative.dev"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """``file`` is where it was read from, for messages only."""

    file: str
    document: Document

    @property
    def kind(self) -> str:
        return str(self.document.get("kind") or "")

    @property
    def group(self) -> str:
        version = str(self.document.get("apiVersion") or "")
        return version.rpartition("/")[0]

    @property
    def name(self) -> str:
        return str(mapping(self.document, "metadata").get("name") or "")

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def labels(self) -> Document:
        return mapping(self.document, "metadata", "labels")

    @property
    def is_knative(self) -> bool:
        return self.group == SERVING and self.kind in ("Service", "Configuration", "Revision")

    @property
    def is_deployment(self) -> bool:
        return self.group == "apps" and self.kind == "Deployment"

    @property
    def component(self) -> str:
        """``gateway``, ``worker``, or nothing where it is neither of ours."""
        own = {**self.labels, **mapping(self.document, *self.template_path, "metadata", "labels")}
        found = str(own.get(LABEL_COMPONENT) or "")
        return found if found in (COMPONENT_GATEWAY, COMPONENT_WORKER) else ""

    @property
    def template_path(self) -> tuple[str, ...]:
        """Where the pod's metadata and specification begin; a Revision is its own template."""
        return () if self.kind == "Revision" else ("spec", "template")

    def template(self) -> Document:
        return mapping(self.document, *self.template_path)

    def pod(self) -> Document:
        return mapping(self.template(), "spec")

    def annotations(self) -> Document:
        """Of the template, where Knative reads them."""
        return mapping(self.template(), "metadata", "annotations")

    def path(self, *rest: object) -> str:
        """A path inside the template, from the document's root."""
        return join(*self.template_path, *rest)

    def containers(self) -> Iterator[tuple[str, Document]]:
        """Each container with its path, init containers too."""
        for field in ("initContainers", "containers"):
            for index, container in enumerate(items(self.pod(), field)):
                yield self.path("spec", field, index), container


def mapping(document: object, *path: str) -> Document:
    """The mapping at ``path``; an empty one where there is none, or something else."""
    for part in path:
        document = document.get(part) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def items(document: Document, field: str) -> list[Document]:
    """The mappings of a list; the others keep their places as empty ones, so that an index stays true."""
    found = document.get(field)
    if not isinstance(found, list):
        return []
    return [entry if isinstance(entry, Mapping) else {} for entry in found]


def join(*parts: object) -> str:
    """``spec.containers[0].env``, names with a slash in brackets. The first part may be such a path itself."""
    out = ""
    for part in parts:
        if not out:
            out = str(part)
        elif isinstance(part, int) or "/" in str(part):
            out += f"[{part}]"
        else:
            out += f".{part}"
    return out
