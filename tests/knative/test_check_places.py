"""What makes an object a place: one wrong manifest for each rule of ours, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from rewarm.knative import names
from rewarm.knative.check import check
from rewarm.knative.manifest import Manifest
from rewarm.knative.render import read, render
from tests.knative.manifests import NOTES, PLAIN, STOCK, TEMPLATE, changed, deployment, findings, service

POD_LABEL = f"spec.template.metadata.labels:{names.LABEL_PLACE}"


def scaling(name: str) -> str:
    return f"{NOTES}:autoscaling.knative.dev/{name}"


WRONG: list[tuple[str, object, str, str, str]] = [
    # where · what · the rule · a part of the sentence that says what to change · how bad
    (scaling("max-scale"), "3", "place-max-scale", "raise max_replicas", "error"),
    (scaling("max-scale"), None, "place-max-scale", "raise max_replicas", "error"),
    (scaling("max-scale"), "0", "place-max-scale", 'Write "1"', "error"),
    (scaling("min-scale"), "1", "place-min-scale", "min_replicas", "warning"),
    (scaling("class"), "hpa.autoscaling.knative.dev", "place-class", "kpa.", "error"),
    (scaling("target-burst-capacity"), None, "place-activator", '"-1"', "warning"),
    (scaling("target-burst-capacity"), "0", "place-activator", '"-1"', "warning"),
    (f"{TEMPLATE}.containerConcurrency", 1, "place-concurrency", "Write 0", "error"),
    ("metadata.labels:networking.knative.dev/visibility", None, "place-visibility", "Write cluster-local", "error"),
    (POD_LABEL, "model-code-0", "place-label", "rewarm.dev/place: model-chat-0", "error"),
    (POD_LABEL, None, "place-label", "rewarm.dev/place: model-chat-0", "error"),
    ("metadata.name", "chat", "place-name", "Write chat", "error"),
]


@pytest.mark.parametrize(("where", "value", "rule", "said", "level"), WRONG)
def test_what_is_no_place_any_more_is_caught_with_what_to_change(
    where: str, value: object, rule: str, said: str, level: str
) -> None:
    right = service()
    assert findings(right) == []
    (caught,) = [f for f in findings(changed(right, where, value)) if f.rule == rule]
    assert said in caught.change
    assert caught.level == level


def test_a_deployment_is_held_to_its_names_too() -> None:
    assert findings(deployment(), STOCK, PLAIN) == []
    assert "place-label" in {f.rule for f in findings(changed(deployment(), POD_LABEL, "other"), STOCK, PLAIN)}


def two(text: str = PLAIN) -> list[Manifest]:
    """Places of a model with two replicas."""
    return [Manifest(file, made) for file, made in rendered(text.replace("/chat}", "/chat, max_replicas: 2}")).items()]


def rendered(text: str) -> dict[str, dict[str, Any]]:
    return render(text)


def test_a_place_that_was_not_rendered_and_one_that_is_left_over_are_told() -> None:
    assert check(two(), STOCK) == []
    (missing,) = check([m for m in two() if m.name != "model-chat-1"], STOCK)
    assert (missing.rule, missing.level) == ("place-missing", "error")
    assert "model-chat-1" in missing.what
    assert "place_missing" in missing.why
    (left,) = [f for f in check(two(), STOCK, read(PLAIN)) if f.rule.startswith("place-")]
    assert (left.rule, left.level, left.object) == ("place-unknown", "warning", "Service/model-chat-1")


def test_a_part_of_the_manifests_without_workers_lacks_none() -> None:
    only = [m for m in two() if m.kind == "ConfigMap"]
    assert check(only, STOCK) == []
