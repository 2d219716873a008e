"""What makes a Knative Service or Deployment a *place*: our own rules, which no cluster knows.

One pod at most, found by its labels, reached by nobody but gateways and the leader's wake-up request. Each is right as
rendered; these catch what a person or a patch has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rewarm.config import Config
from rewarm.knative import names
from rewarm.knative.annotations import AUTOSCALING, canonical
from rewarm.knative.finding import Problem
from rewarm.knative.manifest import Manifest, items, join, mapping
from rewarm.knative.quantity import whole

VISIBILITY = "networking.knative.dev/visibility"


def place_problems(manifest: Manifest) -> Iterator[Problem]:
    """Of a worker's Knative Service or Deployment."""
    if manifest.component != names.COMPONENT_WORKER:
        return
    yield from _named(manifest)
    if manifest.is_knative:
        yield from _scaled(manifest)
        if manifest.kind == "Service" and VISIBILITY not in manifest.labels:
            what, why = f"the label {VISIBILITY} is missing", "Knative makes the place reachable from outside"
            path = join("metadata.labels", VISIBILITY)
            yield Problem("place-visibility", path, what, why, "Write cluster-local")


def fleet_problems(manifests: Iterable[Manifest], config: Config) -> Iterator[tuple[Manifest | None, Problem]]:
    """Places of the configuration and those that manifests make, where there are any of these."""
    workers = [m for m in manifests if m.component == names.COMPONENT_WORKER and m.kind != "Revision"]
    made = {m.name: m for m in workers if m.is_knative or m.is_deployment}
    if not made:
        return
    known = names.by_name(names.places({name: model.max_replicas for name, model in config.local_models.items()}))
    for name in known.keys() - made.keys():
        what = f"{known[name].model} has no place {name}"
        why = "no object of that name is among these, and its requests fail with place_missing"
        yield None, Problem("place-missing", f"models.{known[name].model}", what, why, "Render again, and apply all")
    for name in made.keys() - known.keys():
        what, why = f"{name} is a place of no model", "the configuration has none that would be there"
        change = "Delete it from the cluster, and render again"
        yield made[name], Problem("place-unknown", "metadata.name", what, why, change, "warning")


def _named(manifest: Manifest) -> Iterator[Problem]:
    """The controller looks for pods by the label, and for the worker by the name that the variable gives it."""
    if manifest.kind == "Revision":
        return  # Knative names it
    name = manifest.name
    label = mapping(manifest.template(), "metadata", "labels").get(names.LABEL_PLACE)
    if label != name:
        path = manifest.path("metadata", "labels", names.LABEL_PLACE)
        what, why = f"its pods are labelled {label!r}", "the controller looks for pods of this place by that label"
        yield Problem("place-label", path, what, why, f"Write {names.LABEL_PLACE}: {name}")
    for path, container in manifest.containers():
        for index, variable in enumerate(items(container, "env")):
            given = variable.get("value")
            if variable.get("name") == names.ENV_PLACE and given != name:
                why = f"the worker registers under that name, and who waits for {name} waits for ever"
                where = join(path, "env", index, "value")
                yield Problem("place-name", where, f"{names.ENV_PLACE} is {given!r}", why, f"Write {name}")


def _scaled(manifest: Manifest) -> Iterator[Problem]:
    notes, path = canonical(manifest.annotations()), manifest.path("metadata", "annotations")
    most = notes.get(f"{AUTOSCALING}max-scale")
    if whole(most) != 1:
        what = "max-scale is missing" if most is None else f"max-scale is {most}"
        why = "two pods of a place have one name, and Knative would choose which one leaves"
        change = 'Write "1"; for more replicas raise max_replicas and render, which makes a place for each'
        yield Problem("place-max-scale", join(path, f"{AUTOSCALING}max-scale"), what, why, change)
    least = whole(notes.get(f"{AUTOSCALING}min-scale"))
    if least:
        where, why = join(path, f"{AUTOSCALING}min-scale"), "its pod stays, whether anybody wants its model or not"
        change = 'Write "0"; a model that is always there has min_replicas'
        yield Problem("place-min-scale", where, f"min-scale is {least}", why, change, "warning")
    if notes.get(f"{AUTOSCALING}class", "kpa.").startswith("hpa."):
        why, change = "that autoscaler never goes to zero", "Write kpa.autoscaling.knative.dev"
        yield Problem("place-class", join(path, f"{AUTOSCALING}class"), "class is hpa", why, change)
    burst = notes.get(f"{AUTOSCALING}target-burst-capacity")
    if burst != "-1":
        where = join(path, f"{AUTOSCALING}target-burst-capacity")
        what = "target-burst-capacity is missing" if burst is None else f"target-burst-capacity is {burst}"
        why = "the activator then leaves the wake-up request's path and comes back, which nobody has measured"
        yield Problem("place-activator", where, what, why, 'Write "-1"', "warning")
    concurrency = whole(manifest.pod().get("containerConcurrency"))
    if concurrency:
        why = "a wake-up request and the one after it are open together, and Knative would hold the second back"
        where = manifest.path("spec", "containerConcurrency")
        yield Problem("place-concurrency", where, f"containerConcurrency is {concurrency}", why, "Write 0")
