"""The typed rules of a Revision's fields: bounds and combinations that Knative's webhook checks, and no schema."""

from __future__ import annotations

from collections.abc import Iterator

from rewarm.knative.finding import Problem
from rewarm.knative.manifest import Document, Manifest, items, join, mapping
from rewarm.knative.operator import TIMEOUT_S, Operator
from rewarm.knative.quantity import quantity, whole

RESERVED_ENV = ("PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION")
RESERVED_PORTS = (8012, 8013, 8008, 8022, 9090, 9091)
"""queue-proxy's own."""
RESERVED_MOUNTS = ("/", "/dev", "/dev/log")

PROBES = ("readinessProbe", "livenessProbe", "startupProbe")
EXTENDED = "/"
"""Resources with a domain (``nvidia.com/gpu``) are whole devices, which cannot be overcommitted."""


def field_problems(manifest: Manifest, operator: Operator) -> Iterator[Problem]:
    """Of a Knative Service, Configuration or Revision."""
    yield from _concurrency(manifest)
    yield from _timeouts(manifest, operator)
    yield from _volumes(manifest)
    for path, container in manifest.containers():
        yield from _env(container, path)
        yield from _ports(container, path)
        yield from _probes(container, path)
        yield from device_problems(container, path)


def device_problems(container: Document, path: str) -> Iterator[Problem]:
    """GPUs and the like, in any pod: they are counted by their limit, and a request must be the same."""
    limits = mapping(container, "resources", "limits")
    for name, asked in mapping(container, "resources", "requests").items():
        if EXTENDED not in str(name):
            continue
        where = join(path, "resources", "requests", str(name))
        most = limits.get(name)
        if most is None:
            why = "devices are given by limits, and a request alone is refused"
            change = f"Put {name}: {asked} under limits (`gpus` of `knative.pod`)"
            yield Problem("device-limit", where, f"{name} is requested and has no limit", why, change)
        elif quantity(asked) != quantity(most):
            why = "a device cannot be overcommitted: request must equal limit"
            what = f"{name} requests {asked} and is limited to {most}"
            yield Problem("device-limit", where, what, why, f"Write {most} for both, or leave the request away")
    for name, most in limits.items():
        number = quantity(most)
        if EXTENDED in str(name) and (number is None or number != int(number) or number < 0):
            where = join(path, "resources", "limits", str(name))
            yield Problem("device-limit", where, f"{name} is {most!r}", "devices are whole", "Write a whole number")


def _concurrency(manifest: Manifest) -> Iterator[Problem]:
    raw = manifest.pod().get("containerConcurrency")
    number = whole(raw)
    if raw is not None and (number is None or not 0 <= number <= 1000):
        where = manifest.path("spec", "containerConcurrency")
        why = "Knative takes 0 (no limit) to 1000"
        yield Problem("container-concurrency", where, f"containerConcurrency is {raw}", why, "Write 0: gates count")


def _timeouts(manifest: Manifest, operator: Operator) -> Iterator[Problem]:
    pod = manifest.pod()
    total = whole(pod.get("timeoutSeconds", operator.default_timeout_s))
    if total is None:
        return  # the schema says so
    where = manifest.path("spec", "timeoutSeconds")
    most = operator.max_timeout_s
    if not 0 < total <= most:
        known = "" if operator.known_defaults else " (Knative's default: say another with --flags)"
        why = f"the operator's max-revision-timeout-seconds is {most}{known}, and Knative refuses more"
        change = f"Write at most {most} (`knative.timeout`), or have that raised in config-defaults"
        yield Problem("timeout-limit", where, f"timeoutSeconds is {total}", why, change)
    for field in ("responseStartTimeoutSeconds", "idleTimeoutSeconds"):
        part = whole(pod.get(field))
        if part is not None and not 0 <= part <= total:
            why = f"it must be from 0 to timeoutSeconds, {total}"
            change = f"Write at most {total}, or raise timeoutSeconds"
            yield Problem("timeout-order", manifest.path("spec", field), f"{field} is {part}", why, change)
    if total > TIMEOUT_S and "responseStartTimeoutSeconds" not in pod:
        why = f"then it is {TIMEOUT_S}, counted from the arrival at the activator, so that a cold start eats it"
        change = f"Add responseStartTimeoutSeconds: {total} (`knative.response_start`)"
        what = f"timeoutSeconds is {total} and responseStartTimeoutSeconds is not set"
        where = manifest.path("spec", "responseStartTimeoutSeconds")
        yield Problem("response-start-default", where, what, why, change)


def _volumes(manifest: Manifest) -> Iterator[Problem]:
    pod = manifest.pod()
    mounts = [
        (join(path, "volumeMounts", index), mount)
        for path, container in manifest.containers()
        for index, mount in enumerate(items(container, "volumeMounts"))
    ]
    mounted = {str(mount.get("name")) for _, mount in mounts}
    for index, volume in enumerate(items(pod, "volumes")):
        where, name = manifest.path("spec", "volumes", index), str(volume.get("name"))
        if name not in mounted:
            why = "Knative refuses a volume that no container mounts"
            yield Problem("volume-unmounted", where, f"the volume {name} is not mounted", why, "Mount or remove it")
        medium = mapping(volume, "emptyDir").get("medium", "")
        if medium not in ("", "Memory"):
            why = "an emptyDir lies on the node's disk or in memory"
            path = join(where, "emptyDir", "medium")
            yield Problem("empty-dir", path, f"medium is {medium!r}", why, "Leave it away, or write Memory")
        limit = mapping(volume, "emptyDir").get("sizeLimit")
        if limit is not None and (quantity(limit) or 0) <= 0:
            path = join(where, "emptyDir", "sizeLimit")
            yield Problem("empty-dir", path, f"sizeLimit is {limit!r}", "it must be a size above 0", "Write e.g. 20Gi")
    names = {str(volume.get("name")) for volume in items(pod, "volumes")}
    for where, mount in mounts:
        if str(mount.get("name")) not in names:
            what = f"the volume {mount.get('name')} is mounted and not there"
            yield Problem("volume-missing", where, what, "the pod is refused", "Add it under volumes")
        if str(mount.get("mountPath")) in RESERVED_MOUNTS:
            what = f"something is mounted at {mount.get('mountPath')}"
            yield Problem("volume-mount", where, what, "Knative keeps that path for itself", "Mount it elsewhere")


def _env(container: Document, path: str) -> Iterator[Problem]:
    for index, variable in enumerate(items(container, "env")):
        name = str(variable.get("name"))
        if name in RESERVED_ENV:
            why = "Knative sets it itself, and refuses it here"
            change = "Remove it; the port is ports[0].containerPort" if name == "PORT" else "Remove it"
            yield Problem("reserved-env", join(path, "env", index), f"env has {name}", why, change)


def _ports(container: Document, path: str) -> Iterator[Problem]:
    ports = items(container, "ports")
    if len(ports) > 1:
        why = "Knative sends requests to one port, and refuses a second; gates need no port declared"
        yield Problem("ports", join(path, "ports"), f"{len(ports)} ports are declared", why, "Keep the first one")
    for index, port in enumerate(ports):
        number, where = whole(port.get("containerPort")), join(path, "ports", index)
        if number in RESERVED_PORTS:
            yield Problem("ports", where, f"containerPort is {number}", "that is queue-proxy's", "Take another")
        if port.get("name") not in (None, "", "h2c", "http1"):
            why = "Knative takes the name as the protocol: h2c or http1"
            yield Problem("ports", where, f"the port is named {port.get('name')!r}", why, "Leave the name away")


def _probes(container: Document, path: str) -> Iterator[Problem]:
    for name in PROBES:
        if name not in container:
            continue
        probe, where = mapping(container, name), join(path, name)
        for kind in ("httpGet", "tcpSocket", "grpc"):
            if name == "startupProbe" and kind in probe and not mapping(probe, kind).get("port"):
                why = "only readiness and liveness probes get Knative's port by themselves"
                change = "Add the port of ports[0].containerPort"
                yield Problem("probe-port", join(where, kind, "port"), f"{name} has no port", why, change)
        # Knative's own fast probe: 50 ms apart, and then nothing else may be said.
        if name == "readinessProbe" and whole(probe.get("periodSeconds")) == 0:
            for field in ("failureThreshold", "timeoutSeconds"):
                if probe.get(field):
                    why = "with periodSeconds 0 Knative polls every 50 ms and takes no other limits"
                    what = f"{name} has periodSeconds 0 and {field}"
                    yield Problem("probe-period", join(where, field), what, why, f"Remove {field}")
