"""All rules over all objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rewarm.config import Config, parse
from rewarm.errors import ConfigInvalid
from rewarm.knative.annotations import annotation_problems
from rewarm.knative.crds import schema_problems
from rewarm.knative.fields import device_problems, field_problems
from rewarm.knative.finding import Finding, Problem, worst_first
from rewarm.knative.flags import flag_problems
from rewarm.knative.manifest import Manifest, mapping
from rewarm.knative.names import CONFIG_KEY, CONFIG_MAP, CONFIG_PATH
from rewarm.knative.operator import Operator
from rewarm.knative.placing import fleet_problems, place_problems
from rewarm.knative.timeouts import config_problems, timeout_problems


def check(manifests: Sequence[Manifest], operator: Operator, config: Config | None = None) -> list[Finding]:
    """``config`` is the fleet's; by default the one in the ConfigMap among the manifests, if there is one.

    Objects of other kinds are passed over. Raise KnativeCheckUnavailable where the schema library is missing.
    """
    found: list[Finding] = []
    if config is None:
        config, found = _carried(manifests)
    for manifest in manifests:
        problems = _problems(manifest, operator, config)
        found += [Finding.of(problem, file=manifest.file, name=manifest.title) for problem in problems]
    found += _twice(manifests)
    if config is not None:
        of = next((m for m in manifests if _is_config_map(m)), None)
        file, name = (of.file, of.title) if of else ("", "configuration")
        found += [Finding.of(problem, file=file, name=name) for problem in config_problems(config)]
        for about, problem in fleet_problems(manifests, config):
            where = (file, name) if about is None else (about.file, about.title)
            found.append(Finding.of(problem, file=where[0], name=where[1]))
    return worst_first(found)


def checked(manifests: Iterable[Manifest]) -> int:
    """How many of them the rules look at."""
    return sum(m.is_knative or (m.is_deployment and bool(m.component)) or _is_config_map(m) for m in manifests)


def _problems(manifest: Manifest, operator: Operator, config: Config | None) -> Iterator[Problem]:
    if manifest.is_knative:
        yield from schema_problems(manifest)
        yield from field_problems(manifest, operator)
        yield from flag_problems(manifest, operator)
        yield from annotation_problems(manifest, operator)
    elif manifest.is_deployment:
        for path, container in manifest.containers():
            yield from device_problems(container, path)
    yield from place_problems(manifest)
    yield from timeout_problems(manifest, operator, config)


def _carried(manifests: Iterable[Manifest]) -> tuple[Config | None, list[Finding]]:
    """The configuration in the fleet's ConfigMap, or what is wrong with it."""
    for manifest in filter(_is_config_map, manifests):
        text = mapping(manifest.document, "data").get(CONFIG_KEY)
        if not isinstance(text, str):
            what = f"the ConfigMap {CONFIG_MAP} has no {CONFIG_KEY}"
            problem = Problem("config", "data", what, "gateways and workers read that key", f"Add {CONFIG_KEY}")
            return None, [Finding.of(problem, file=manifest.file, name=manifest.title)]
        try:
            return parse(text, Path(CONFIG_PATH)), []
        except ConfigInvalid as error:
            why = " · ".join(line.removeprefix(f"{CONFIG_PATH}:") for line in error.message.splitlines())
            change = "Correct the file (`rewarm check FILE`) and render again"
            problem = Problem("config", f"data[{CONFIG_KEY}]", "the configuration is not valid", why, change)
            return None, [Finding.of(problem, file=manifest.file, name=manifest.title)]
    return None, []


def _is_config_map(manifest: Manifest) -> bool:
    return manifest.kind == "ConfigMap" and manifest.name == CONFIG_MAP


def _twice(manifests: Iterable[Manifest]) -> Iterator[Finding]:
    """The second of two objects with one name takes the first one's place in silence."""
    seen: dict[tuple[str, str, str, str], Manifest] = {}
    for manifest in manifests:
        namespace = str(mapping(manifest.document, "metadata").get("namespace") or "")
        key = (manifest.group, manifest.kind, namespace, manifest.name)
        first = seen.setdefault(key, manifest)
        if first is not manifest and manifest.name:
            why = f"the one in {first.file} has the same name, and whichever is applied last stays"
            problem = Problem("twice", "metadata.name", f"{manifest.title} is there twice", why, "Rename or remove one")
            yield Finding.of(problem, file=manifest.file, name=manifest.title)
