"""What a cluster's operator has set, as far as it decides what may be applied.

Read from the ConfigMaps of ``knative-serving``, for example from
``kubectl get configmap -n knative-serving config-features config-defaults config-autoscaler -o yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rewarm.knative.manifest import Document, Manifest, items, mapping
from rewarm.knative.quantity import whole

MAX_TIMEOUT_S = 600
"""Knative's default of ``max-revision-timeout-seconds``."""

TIMEOUT_S = 300
"""Knative's default of ``revision-timeout-seconds`` and of ``revision-response-start-timeout-seconds``."""


@dataclass(frozen=True, slots=True)
class Operator:
    """``known_features`` and ``known_autoscaler``: whether those ConfigMaps were given; Knative's defaults else."""

    features: Mapping[str, str] = field(default_factory=dict)
    known_features: bool = False
    known_autoscaler: bool = False
    known_defaults: bool = False
    max_timeout_s: int = MAX_TIMEOUT_S
    default_timeout_s: int = TIMEOUT_S
    allow_zero_initial_scale: bool = False
    max_scale_limit: int = 0


def operator_of(manifests: Iterable[Manifest]) -> Operator:
    """From whatever of Knative's ConfigMaps is among them, single or in a List."""
    maps = {name: data for document in manifests for name, data in _maps(document.document)}
    features = maps.get("config-features")
    autoscaler = maps.get("config-autoscaler")
    defaults = maps.get("config-defaults")
    return Operator(
        features={} if features is None else {key: value.lower() for key, value in features.items()},
        known_features=features is not None,
        known_autoscaler=autoscaler is not None,
        known_defaults=defaults is not None,
        max_timeout_s=_number(defaults, "max-revision-timeout-seconds", MAX_TIMEOUT_S),
        default_timeout_s=_number(defaults, "revision-timeout-seconds", TIMEOUT_S),
        allow_zero_initial_scale=(autoscaler or {}).get("allow-zero-initial-scale", "").lower() == "true",
        max_scale_limit=_number(autoscaler, "max-scale-limit", 0),
    )


def _maps(document: Document) -> Iterable[tuple[str, dict[str, str]]]:
    if str(document.get("kind") or "").endswith("List"):
        for entry in items(document, "items"):
            yield from _maps(entry)
    elif document.get("kind") == "ConfigMap":
        data = {str(k): str(v) for k, v in mapping(document, "data").items() if k != "_example"}
        yield str(mapping(document, "metadata").get("name") or ""), data


def _number(data: Mapping[str, str] | None, key: str, default: int) -> int:
    found = whole((data or {}).get(key))
    return default if found is None else found
