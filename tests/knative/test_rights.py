"""The roles in deploy/knative give a gateway what its backend asks of the API server, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.backends.cluster import AUTOSCALER, DEPLOYMENT, EVENT, POD, REVISION, SERVICE, Kind

ROOT = Path(__file__).resolve().parents[2] / "deploy" / "knative"
Rights = set[tuple[str, str, str]]  # group, resource, verb


def rights(rules: list[dict[str, Any]]) -> Rights:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def watched(*kinds: Kind) -> Rights:
    out = set()
    for kind in kinds:
        info = kind.resource._api_info
        out |= {(info.resource.group, info.plural, verb) for verb in ("list", "watch")}
    return out


def knative() -> Rights:
    documents = yaml.safe_load_all((ROOT / "base" / "accounts.yaml").read_text())
    return rights(next(d["rules"] for d in documents if d["kind"] == "Role"))


def deployments() -> Rights:
    overlay = yaml.safe_load((ROOT / "overlays" / "deployments" / "kustomization.yaml").read_text())
    patch = next(p["patch"] for p in overlay["patches"] if p["target"]["kind"] == "Role")
    return rights(yaml.safe_load(patch)[0]["value"])


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (knative(), watched(SERVICE, POD, REVISION, AUTOSCALER, EVENT)),
        (deployments(), watched(DEPLOYMENT, POD, EVENT) | {("apps", "deployments/scale", "patch")}),
    ],
    ids=["knative", "deployments"],
)
def test_a_role_gives_what_is_asked_for_and_reading_beside_it(given: Rights, asked: Rights) -> None:
    assert asked <= given
    more = given - asked
    assert {verb for _, _, verb in more} <= {"get"}, more
    assert {resource for _, resource, _ in more} <= {resource for _, resource, _ in asked}
