"""Annotations: a misspelt one is accepted in silence, so this is the list of those that there are, and of their values.

Names, bounds and second spellings after Knative Serving 1.1x (``pkg/apis/autoscaling``, ``pkg/apis/serving``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from rewarm.knative.finding import Level, Problem
from rewarm.knative.manifest import Document, Manifest, join, mapping
from rewarm.knative.operator import Operator
from rewarm.knative.quantity import go_duration_s, whole

AUTOSCALING = "autoscaling.knative.dev/"

HOUR_S = 3600

Check = Callable[[str], str | None]
"""What a value must be, in words, where it is not; None where it is."""


def _integer(least: int) -> Check:
    def check(value: str) -> str | None:
        number = whole(value)
        return None if number is not None and number >= least else f"a whole number from {least} on"

    return check


def _number(least: float, most: float | None = None, also: float | None = None) -> Check:
    words = f"a number from {least:g}" + (f" to {most:g}" if most is not None else " on")
    words += f", or {also:g}" if also is not None else ""

    def check(value: str) -> str | None:
        try:
            number = float(value)
        except ValueError:
            return words
        inside = number >= least and (most is None or number <= most)
        return None if inside or number == also else words

    return check


def _duration(least_s: float, most_s: float) -> Check:
    words = f"a duration from {least_s:g}s to {most_s:g}s in whole seconds, for example 60s"

    def check(value: str) -> str | None:
        seconds = go_duration_s(value)
        fits = seconds is not None and least_s <= seconds <= most_s and seconds == round(seconds)
        return None if fits else words

    return check


def _one_of(*values: str) -> Check:
    return lambda value: None if value in values else " or ".join(values)


def _anything(_value: str) -> None:
    return None


KNOWN: dict[str, Check] = {
    f"{AUTOSCALING}class": _one_of("kpa.autoscaling.knative.dev", "hpa.autoscaling.knative.dev"),
    f"{AUTOSCALING}metric": _anything,  # which ones there are depends on the class: below
    f"{AUTOSCALING}metric-aggregation-algorithm": _one_of("linear", "weightedExponential", "weighted-exponential"),
    f"{AUTOSCALING}min-scale": _integer(0),
    f"{AUTOSCALING}max-scale": _integer(0),
    f"{AUTOSCALING}initial-scale": _integer(0),
    f"{AUTOSCALING}activation-scale": _integer(1),
    f"{AUTOSCALING}target": _number(0.01),
    f"{AUTOSCALING}target-utilization-percentage": _number(1, 100),
    f"{AUTOSCALING}target-burst-capacity": _number(0, also=-1),
    f"{AUTOSCALING}window": _duration(6, HOUR_S),
    f"{AUTOSCALING}panic-window-percentage": _number(1, 100),
    f"{AUTOSCALING}panic-threshold-percentage": _number(110, 1000),
    f"{AUTOSCALING}scale-down-delay": _duration(0, HOUR_S),
    f"{AUTOSCALING}scale-to-zero-pod-retention-period": _duration(0, HOUR_S),
    "serving.knative.dev/progress-deadline": _duration(1, 24 * HOUR_S),
    "serving.knative.dev/rollout-duration": _duration(0, 24 * HOUR_S),
    "serving.knative.dev/creator": _anything,
    "serving.knative.dev/lastModifier": _anything,
    "serving.knative.dev/forceUpgrade": _anything,
    "serving.knative.dev/routes": _anything,
    "serving.knative.dev/routingState": _anything,
    "serving.knative.dev/routingStateModified": _anything,
    "queue.sidecar.serving.knative.dev/resource-percentage": _number(0.1, 100),
    "queue.sidecar.serving.knative.dev/cpu-resource-request": _anything,
    "queue.sidecar.serving.knative.dev/cpu-resource-limit": _anything,
    "queue.sidecar.serving.knative.dev/memory-resource-request": _anything,
    "queue.sidecar.serving.knative.dev/memory-resource-limit": _anything,
    "queue.sidecar.serving.knative.dev/ephemeral-storage-resource-request": _anything,
    "queue.sidecar.serving.knative.dev/ephemeral-storage-resource-limit": _anything,
    "features.knative.dev/podspec-dryrun": _one_of("enabled", "strict"),
    "features.knative.dev/queueproxy-podinfo": _one_of("enabled", "disabled"),
    "features.knative.dev/http-full-duplex": _one_of("enabled", "disabled"),
    "networking.knative.dev/ingress-class": _anything,
    "networking.knative.dev/certificate-class": _anything,
    "networking.knative.dev/http-protocol": _one_of("enabled", "redirected", "disabled"),
    "networking.knative.dev/disable-external-domain-tls": _one_of("true", "false"),
}

SECOND_SPELLINGS: dict[str, str] = {
    f"{AUTOSCALING}minScale": "min-scale",
    f"{AUTOSCALING}maxScale": "max-scale",
    f"{AUTOSCALING}initialScale": "initial-scale",
    f"{AUTOSCALING}scaleDownDelay": "scale-down-delay",
    f"{AUTOSCALING}scaleToZeroPodRetentionPeriod": "scale-to-zero-pod-retention-period",
    f"{AUTOSCALING}targetBurstCapacity": "target-burst-capacity",
    f"{AUTOSCALING}targetUtilizationPercentage": "target-utilization-percentage",
    f"{AUTOSCALING}panicWindowPercentage": "panic-window-percentage",
    f"{AUTOSCALING}panicThresholdPercentage": "panic-threshold-percentage",
    "serving.knative.dev/progressDeadline": "progress-deadline",
    "serving.knative.dev/rolloutDuration": "rollout-duration",
}
"""The older ones, which Knative reads too. Its value is the name that this project writes."""

KNOWN_LABELS: dict[str, Check] = {"networking.knative.dev/visibility": _one_of("cluster-local")}

_OURS = "knative.dev/"


def annotation_problems(manifest: Manifest, operator: Operator) -> Iterator[Problem]:
    """Of a Knative Service: of the object, of its template, and of the labels that Knative reads."""
    outer = mapping(manifest.document, "metadata", "annotations")
    if manifest.template_path:
        yield from _each(outer, "metadata.annotations", on_object=True)
    inner_path = manifest.path("metadata", "annotations") if manifest.template_path else "metadata.annotations"
    inner = {key: str(value) for key, value in manifest.annotations().items()}
    yield from _each(manifest.annotations(), inner_path, on_object=False)
    yield from _labels(manifest)
    yield from _scale(inner, inner_path, operator)
    yield from _metric(inner, inner_path)


def canonical(annotations: Document) -> dict[str, str]:
    """Every annotation by the name that this project writes."""
    return {_canonical(key): str(value) for key, value in annotations.items()}


def _canonical(key: str) -> str:
    short = SECOND_SPELLINGS.get(key)
    return f"{key.partition('/')[0]}/{short}" if short else key


def _each(annotations: Document, path: str, *, on_object: bool) -> Iterator[Problem]:
    for raw, value in annotations.items():
        key, where = _canonical(raw), join(path, raw)
        if not key.partition("/")[0].endswith(_OURS.rstrip("/")):
            continue
        if on_object and key.startswith(AUTOSCALING):
            why = "Knative reads it in the template only, and refuses it here"
            yield Problem("annotation-place", where, f"{raw} stands on the Service", why, "Move it to spec.template")
        if not isinstance(value, str):
            why = "annotations are text"
            yield Problem("annotation-type", where, f"{raw} is {value!r}", why, f'Put it in quotes: "{value}"')
        elif key not in KNOWN:
            yield _misspelt(raw, where, list(KNOWN), "annotation-unknown")
        elif wanted := KNOWN[key](value):
            yield Problem("annotation-value", where, f"{raw} is {value!r}", f"it must be {wanted}", f"Write {wanted}")


def _labels(manifest: Manifest) -> Iterator[Problem]:
    for key, value in manifest.labels.items():
        where = join("metadata.labels", key)
        if not key.startswith("networking.knative.dev/"):
            continue
        if key not in KNOWN_LABELS:
            yield _misspelt(key, where, list(KNOWN_LABELS), "label-unknown")
        elif wanted := KNOWN_LABELS[key](str(value)):
            why = f"it must be {wanted}, and with anything else the Service is public"
            yield Problem("label-value", where, f"{key} is {value!r}", why, f"Write {wanted}")


def _misspelt(key: str, where: str, known: list[str], rule: str) -> Problem:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    change = f"Did you mean {near[0]}? Write that" if near else "Correct or remove it"
    return Problem(rule, where, f"{key} is not known", "Knative accepts it in silence and does nothing", change)


def _scale(found: dict[str, str], path: str, operator: Operator) -> Iterator[Problem]:
    values = canonical(found)
    least, most = whole(values.get(f"{AUTOSCALING}min-scale")), whole(values.get(f"{AUTOSCALING}max-scale"))
    if least is not None and most is not None and 0 < most < least:
        what = f"min-scale {least} is above max-scale {most}"
        yield Problem("scale-order", join(path, f"{AUTOSCALING}min-scale"), what, "Knative refuses it", "Lower it")
    if operator.max_scale_limit and most is not None and not 0 < most <= operator.max_scale_limit:
        why = f"the operator's max-scale-limit is {operator.max_scale_limit}"
        where = join(path, f"{AUTOSCALING}max-scale")
        yield Problem("scale-limit", where, f"max-scale is {most}", why, "Lower it, or have the limit raised")
    if values.get(f"{AUTOSCALING}initial-scale") == "0" and not operator.allow_zero_initial_scale:
        why = "Knative refuses it unless its operator sets allow-zero-initial-scale in config-autoscaler"
        change = 'Write "1" (`knative.initial_scale_zero: false`), or have that set and say so with --flags'
        where = join(path, f"{AUTOSCALING}initial-scale")
        yield Problem("initial-scale", where, "initial-scale is 0", why, change, _level(operator))


def _level(operator: Operator) -> Level:
    return "error" if operator.known_autoscaler else "note"


def _metric(found: dict[str, str], path: str) -> Iterator[Problem]:
    values = canonical(found)
    metric = values.get(f"{AUTOSCALING}metric")
    kpa = values.get(f"{AUTOSCALING}class", "kpa.autoscaling.knative.dev").startswith("kpa.")
    if metric is not None and kpa and metric not in ("concurrency", "rps"):
        why = "the autoscaler kpa knows concurrency and rps"
        change = "Write one of these, or set the class hpa.autoscaling.knative.dev (which never goes to zero)"
        yield Problem("metric", join(path, f"{AUTOSCALING}metric"), f"metric is {metric!r}", why, change)
