"""``deploy/knative``: every overlay builds, is what Kubernetes and Knative take, and fits its configuration."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from rewarm.cli.knative_files import write
from rewarm.knative import flags, names
from rewarm.knative.check import check
from rewarm.knative.manifest import Manifest
from rewarm.knative.operator import Operator
from rewarm.knative.pod import USER_ID
from rewarm.knative.render import Backend, render
from tests.knative.kustomize import Builder, Document, build, builders

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "knative"
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())

VERSIONS = ("1.30", "1.36")
"""The oldest Kubernetes that has all fields (a preStop hook that sleeps), and the one that Knative was measured on."""

built = cache(lambda name: build(DEPLOY / "overlays" / name))


def manifests(objects: list[Document]) -> list[Manifest]:
    return [Manifest("overlay", one) for one in objects]


def of(objects: list[Document], kind: str, name: str) -> Document:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_passes_its_own_check(name: str) -> None:
    found = check(manifests(built(name)), Operator())
    assert [f for f in found if f.level != "note"] == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_workers_are_what_its_configuration_renders_to(name: str, tmp_path: Path) -> None:
    """Rendered again, byte for byte: `rewarm knative render config.yaml -o workers`."""
    folder = DEPLOY / "overlays" / name
    backend: Backend = "deployment" if name == "deployments" else "knative"
    write(tmp_path, render((folder / "config.yaml").read_text(encoding="utf-8"), backend))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        p.name: p.read_text() for p in (folder / "workers").iterdir()
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OVERLAYS)
def test_kubernetes_takes_every_object(name: str, version: str) -> None:
    for one in built(name):
        if "knative.dev" not in one["apiVersion"]:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_flags_it_needs_are_those_that_it_names(name: str) -> None:
    """In the comment above the kustomization: what an operator must turn on before it can be applied."""
    text = (DEPLOY / "overlays" / name / "kustomization.yaml").read_text(encoding="utf-8")
    needed = {
        use.flag.name
        for manifest in manifests(built(name))
        if manifest.is_knative
        for use in flags.uses(manifest)
        if not use.flag.on_by_default
    }
    assert needed == set(re.findall(r"kubernetes\.[a-z-]+", text))


@pytest.mark.parametrize("component", ["snapshots-pvc", "snapshots-hostpath", "monitoring"])
@pytest.mark.parametrize("name", ["single-gpu-node", "deployments"])
@pytest.mark.parametrize("builder", builders().values(), ids=builders())
def test_a_component_can_be_added(builder: Builder, name: str, component: str, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "knative")
    own = tmp_path / "knative" / "overlays" / "own"
    own.mkdir()
    document = {"resources": [f"../{name}"], "components": [f"../../components/{component}"]}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    objects = builder(own)
    assert [f for f in check(manifests(objects), Operator()) if f.level == "error"] == []
    if component.startswith("snapshots"):
        pods = [m.pod() for m in manifests(objects) if m.component == "worker"]
        kind = "persistentVolumeClaim" if component.endswith("pvc") else "hostPath"
        assert pods
        assert all(kind in pod["volumes"][0] and pod["volumes"][0]["name"] == "snapshots" for pod in pods)


@pytest.mark.parametrize("name", OVERLAYS)
def test_our_builder_and_kubectl_agree(name: str) -> None:
    """Where there is no kubectl, there is nothing to compare."""
    for builder in builders().values():
        objects = builder(DEPLOY / "overlays" / name)
        key = lambda one: (one["kind"], one["metadata"]["name"])  # noqa: E731 -- shorter than a function here
        assert sorted(objects, key=key) == sorted(built(name), key=key)


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_is_referred_to_is_there_or_is_said_to_be_made_by_hand(name: str) -> None:
    by_hand = {
        ("Secret", names.SECRET),
        ("Secret", names.SECRET_GATEWAY_ENVIRONMENT),
        ("Secret", names.SECRET_WORKER_ENVIRONMENT),
    }
    objects = built(name)
    there = {(one["kind"], one["metadata"]["name"]) for one in objects} | by_hand
    for manifest in manifests(objects):
        pod = manifest.pod()
        account = pod.get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in there
        for text in re.findall(r"'(secretKeyRef|secretRef|configMap)': {[^}]*'name': '([^']+)'", str(pod)):
            kind = "ConfigMap" if text[0] == "configMap" else "Secret"
            assert (kind, text[1]) in there


@pytest.mark.parametrize("name", OVERLAYS)
def test_everybody_runs_without_rights_on_a_read_only_root(name: str) -> None:
    for manifest in manifests(built(name)):
        pod = manifest.pod()
        for _, container in manifest.containers():
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            assert context["runAsNonRoot"] is True
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert manifest.component == "" or context["runAsUser"] == USER_ID


def test_a_gateway_may_read_and_in_the_overlay_with_deployments_also_scale() -> None:
    def rights(name: str) -> dict[str, set[str]]:
        rules = of(built(name), "Role", names.GATEWAY)["rules"]
        return {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}

    reads = {"get", "list", "watch"}
    assert set(map(frozenset, rights("single-gpu-node").values())) == {frozenset(reads)}
    scaling = rights("deployments")
    assert scaling.pop("deployments/scale") == {"get", "patch"}
    assert set(map(frozenset, scaling.values())) == {frozenset(reads)}


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_are_those_that_the_code_uses(name: str) -> None:
    objects = built(name)
    of(objects, "ConfigMap", names.CONFIG_MAP)
    of(objects, "ServiceAccount", names.WORKER_ACCOUNT)
    kind = "Service" if name.startswith("gateway-as") else "Deployment"
    gateway = Manifest("", of(objects, kind, names.GATEWAY))
    assert gateway.component == names.COMPONENT_GATEWAY
    ((_, container),) = gateway.containers()
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    backend = "deployment" if name == "deployments" else "knative"
    assert env[names.ENV_BACKEND] == backend
    assert env[names.ENV_LISTEN] == f"0.0.0.0:{names.GATEWAY_PORT}"
    assert {names.ENV_REDIS_URL, "REWARM_FLEET_SECRET"} <= set(env)
    assert container["args"][1] == names.CONFIG_PATH


def test_a_builder_that_does_not_understand_says_so(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: a-\n")
    with pytest.raises(ValueError, match="namePrefix"):
        build(tmp_path)
