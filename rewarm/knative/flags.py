"""Fields that Knative refuses until its operator turns on a feature flag, and where a manifest uses them.

Flags as named in the definitions (``rewarm/knative/crds``) and in ``config-features``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rewarm.knative.finding import Problem
from rewarm.knative.manifest import Document, Manifest, items, join, mapping
from rewarm.knative.operator import Operator


@dataclass(frozen=True, slots=True)
class Flag:
    """``on_by_default``: as Knative ships it. ``allowed``: whether that value is enough, or only ``enabled``."""

    name: str
    on_by_default: bool = False
    allowed: bool = True


POD_FIELDS: dict[str, Flag] = {
    "affinity": Flag("kubernetes.podspec-affinity"),
    "dnsConfig": Flag("kubernetes.podspec-dnsconfig"),
    "dnsPolicy": Flag("kubernetes.podspec-dnspolicy"),
    "hostAliases": Flag("kubernetes.podspec-hostaliases"),
    "hostIPC": Flag("kubernetes.podspec-hostipc"),
    "hostNetwork": Flag("kubernetes.podspec-hostnetwork"),
    "hostPID": Flag("kubernetes.podspec-hostpid"),
    "initContainers": Flag("kubernetes.podspec-init-containers", allowed=False),
    "nodeSelector": Flag("kubernetes.podspec-nodeselector"),
    "priorityClassName": Flag("kubernetes.podspec-priorityclassname"),
    "runtimeClassName": Flag("kubernetes.podspec-runtimeclassname"),
    "schedulerName": Flag("kubernetes.podspec-schedulername"),
    "securityContext": Flag("kubernetes.podspec-securitycontext"),
    "shareProcessNamespace": Flag("kubernetes.podspec-shareprocessnamespace"),
    "tolerations": Flag("kubernetes.podspec-tolerations"),
    "topologySpreadConstraints": Flag("kubernetes.podspec-topologyspreadconstraints"),
}

VOLUMES: dict[str, Flag] = {
    "csi": Flag("kubernetes.podspec-volumes-csi", allowed=False),
    "emptyDir": Flag("kubernetes.podspec-volumes-emptydir", on_by_default=True, allowed=False),
    "ephemeral": Flag("kubernetes.podspec-volumes-ephemeral", allowed=False),
    "hostPath": Flag("kubernetes.podspec-volumes-hostpath", allowed=False),
    "image": Flag("kubernetes.podspec-volumes-image", allowed=False),
    "persistentVolumeClaim": Flag("kubernetes.podspec-persistent-volume-claim", allowed=False),
}

CLAIM_WRITE = Flag("kubernetes.podspec-persistent-volume-write", allowed=False)
FIELD_REF = Flag("kubernetes.podspec-fieldref")
MOUNT_PROPAGATION = Flag("kubernetes.podspec-volumes-mount-propagation")
ADD_CAPABILITIES = Flag("kubernetes.containerspec-addcapabilities")
SEVERAL_CONTAINERS = Flag("multi-container", on_by_default=True, allowed=False)

ALL: tuple[Flag, ...] = (
    *POD_FIELDS.values(),
    *VOLUMES.values(),
    CLAIM_WRITE,
    FIELD_REF,
    MOUNT_PROPAGATION,
    ADD_CAPABILITIES,
    SEVERAL_CONTAINERS,
)


@dataclass(frozen=True, slots=True)
class Use:
    """A field at ``path`` that needs ``flag``."""

    flag: Flag
    path: str
    field: str


def uses(manifest: Manifest) -> Iterator[Use]:
    """What of a Knative object needs a flag, in the order of its fields."""
    pod = manifest.pod()
    for field, flag in POD_FIELDS.items():
        if field in pod and pod[field] not in (None, False, {}, []):
            yield Use(flag, manifest.path("spec", field), field)
    for index, volume in enumerate(items(pod, "volumes")):
        yield from _volume(volume, manifest.path("spec", "volumes", index))
    if len(items(pod, "containers")) > 1:
        yield Use(SEVERAL_CONTAINERS, manifest.path("spec", "containers"), "a second container")
    for path, container in manifest.containers():
        yield from _container(container, path)


def flag_problems(manifest: Manifest, operator: Operator) -> Iterator[Problem]:
    """An error where the cluster's flags are known and lack one; else a note of what it must have."""
    for use in uses(manifest):
        value = operator.features.get(use.flag.name)
        if _on(use.flag, value):
            continue
        name = use.flag.name
        shown = f"{value}" if value else ("disabled" if operator.known_features else "disabled by default")
        turn_on = f"Have {name} set to enabled in config-features, or remove {use.field}"
        if operator.known_features:
            why = f"Knative refuses it: its feature flag {name} is {shown}"
            yield Problem("feature-flag", use.path, f"{use.field} is used", why, turn_on)
        else:
            why = f"it needs the feature flag {name}, which is {shown}"
            yield Problem("feature-flag", use.path, f"{use.field} is used", why, turn_on, "note")


def _on(flag: Flag, value: str | None) -> bool:
    if value is None:
        return flag.on_by_default
    return value == "enabled" or (flag.allowed and value == "allowed")


def _volume(volume: Document, path: str) -> Iterator[Use]:
    for kind, flag in VOLUMES.items():
        if kind in volume:
            yield Use(flag, join(path, kind), f"a volume of the kind {kind}")
    if "persistentVolumeClaim" in volume and not mapping(volume, "persistentVolumeClaim").get("readOnly"):
        where = join(path, "persistentVolumeClaim", "readOnly")
        yield Use(CLAIM_WRITE, where, "a claim that is not readOnly")


def _container(container: Document, path: str) -> Iterator[Use]:
    for index, variable in enumerate(items(container, "env")):
        for source in ("fieldRef", "resourceFieldRef"):
            if source in mapping(variable, "valueFrom"):
                yield Use(FIELD_REF, join(path, "env", index, "valueFrom", source), f"a {source}")
    for index, mount in enumerate(items(container, "volumeMounts")):
        if mount.get("mountPropagation") not in (None, "None"):
            yield Use(MOUNT_PROPAGATION, join(path, "volumeMounts", index, "mountPropagation"), "mountPropagation")
    if mapping(container, "securityContext", "capabilities").get("add"):
        yield Use(ADD_CAPABILITIES, join(path, "securityContext", "capabilities", "add"), "an added capability")
