"""Every rule about a field that Knative checks and its schema does not: one wrong manifest each, and what is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewarm.knative import flags
from rewarm.knative.annotations import KNOWN, SECOND_SPELLINGS
from rewarm.knative.check import check
from rewarm.knative.manifest import Manifest
from rewarm.knative.operator import Operator
from rewarm.knative.render import render
from tests.knative.manifests import (
    ASKED_NOTHING,
    EXAMPLE,
    NOTES,
    PLAIN,
    STOCK,
    TEMPLATE,
    changed,
    findings,
    service,
)

CONTAINER = f"{TEMPLATE}.containers.0"
GPU = "nvidia.com/gpu"
CRDS = Path(__file__).resolve().parents[2] / "rewarm" / "knative" / "crds"


def scaling(name: str) -> str:
    return f"{NOTES}:autoscaling.knative.dev/{name}"


@pytest.mark.parametrize("backend", ["knative", "deployment"])
def test_what_is_rendered_passes(backend: Any) -> None:
    rendered = render(EXAMPLE.read_text(encoding="utf-8"), backend)
    found = check([Manifest(name, document) for name, document in rendered.items()], ASKED_NOTHING)
    assert [f for f in found if f.level != "note"] == []


def test_without_a_volume_of_the_node_nothing_is_asked_of_the_operator() -> None:
    assert findings(service(), STOCK, PLAIN) == []


WRONG: list[tuple[str, str, object, str, str]] = [
    # row of the table · where · what · the rule · a part of the sentence that says what to change
    ("min-scale", scaling("min-scale"), "-1", "annotation-value", "a whole number from 0 on"),
    ("max-scale", scaling("max-scale"), "many", "annotation-value", "a whole number from 0 on"),
    ("min above max", scaling("min-scale"), "2", "scale-order", "Lower it"),
    ("initial-scale", scaling("initial-scale"), "0", "initial-scale", "knative.initial_scale_zero: false"),
    ("window too short", scaling("window"), "5s", "annotation-value", "from 6s to 3600s"),
    ("window too long", scaling("window"), "61m", "annotation-value", "from 6s to 3600s"),
    ("window no duration", scaling("window"), "60", "annotation-value", "for example 60s"),
    ("retention", scaling("scale-to-zero-pod-retention-period"), "2h", "annotation-value", "from 0s to 3600s"),
    ("scale-down-delay", scaling("scale-down-delay"), "-1s", "annotation-value", "from 0s to 3600s"),
    ("target-burst-capacity", scaling("target-burst-capacity"), "-2", "annotation-value", "0 on, or -1"),
    ("containerConcurrency", f"{TEMPLATE}.containerConcurrency", 1001, "container-concurrency", "Write 0"),
    ("target", scaling("target"), "0", "annotation-value", "a number from 0.01 on"),
    ("metric", scaling("metric"), "tokens", "metric", "Write one of these"),
    ("timeoutSeconds", f"{TEMPLATE}.timeoutSeconds", 601, "timeout-limit", "Write at most 600 (`knative.timeout`)"),
    (
        "responseStartTimeoutSeconds not set",
        f"{TEMPLATE}.responseStartTimeoutSeconds",
        None,
        "response-start-default",
        "Add responseStartTimeoutSeconds: 600",
    ),
    (
        "responseStartTimeoutSeconds",
        f"{TEMPLATE}.responseStartTimeoutSeconds",
        900,
        "timeout-order",
        "Write at most 600",
    ),
    (
        "progress-deadline",
        f"{NOTES}:serving.knative.dev/progress-deadline",
        "10",
        "annotation-value",
        "for example 60s",
    ),
    (
        "terminationGracePeriodSeconds",
        f"{TEMPLATE}.terminationGracePeriodSeconds",
        300,
        "field-not-in-schema",
        "set timeoutSeconds (`knative.timeout`)",
    ),
    ("lifecycle", f"{CONTAINER}.lifecycle", {"preStop": {}}, "field-not-in-schema", "--backend deployment"),
    ("startupProbe", f"{CONTAINER}.startupProbe", {"httpGet": {"path": "/"}}, "probe-port", "Add the port"),
    ("nodeSelector", f"{TEMPLATE}.nodeSelector", {"a": "b"}, "feature-flag", "kubernetes.podspec-nodeselector"),
    ("tolerations", f"{TEMPLATE}.tolerations", [{"key": "a"}], "feature-flag", "kubernetes.podspec-tolerations"),
    ("runtimeClass", f"{TEMPLATE}.runtimeClassName", "nvidia", "feature-flag", "kubernetes.podspec-runtimeclassname"),
    (
        "PVC",
        f"{TEMPLATE}.volumes.0",
        {"name": "snapshots", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}},
        "feature-flag",
        "kubernetes.podspec-persistent-volume-claim",
    ),
    (
        "PVC that is written to",
        f"{TEMPLATE}.volumes.0",
        {"name": "snapshots", "persistentVolumeClaim": {"claimName": "a"}},
        "feature-flag",
        "kubernetes.podspec-persistent-volume-write",
    ),
    (
        "hostPath",
        f"{TEMPLATE}.volumes.0",
        {"name": "snapshots", "hostPath": {"path": "/nvme"}},
        "feature-flag",
        "kubernetes.podspec-volumes-hostpath",
    ),
    (
        "init containers",
        f"{TEMPLATE}.initContainers",
        [{"name": "a", "image": "b"}],
        "feature-flag",
        "kubernetes.podspec-init-containers",
    ),
    (
        "pod securityContext",
        f"{TEMPLATE}.securityContext",
        {"fsGroup": 1},
        "feature-flag",
        "kubernetes.podspec-securitycontext",
    ),
    (
        "fieldRef",
        f"{CONTAINER}.env.0",
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        "feature-flag",
        "kubernetes.podspec-fieldref",
    ),
    ("hostIPC", f"{TEMPLATE}.hostIPC", True, "feature-flag", "kubernetes.podspec-hostipc"),
    (
        "emptyDir medium",
        f"{TEMPLATE}.volumes.0",
        {"name": "snapshots", "emptyDir": {"medium": "HugePages"}},
        "empty-dir",
        "write Memory",
    ),
    (
        "emptyDir sizeLimit",
        f"{TEMPLATE}.volumes.0",
        {"name": "snapshots", "emptyDir": {"sizeLimit": "-1Gi"}},
        "empty-dir",
        "20Gi",
    ),
    ("GPU without limit", f"{CONTAINER}.resources", {"requests": {GPU: 1}}, "device-limit", "under limits"),
    (
        "GPU request below limit",
        f"{CONTAINER}.resources",
        {"requests": {GPU: 1}, "limits": {GPU: 2}},
        "device-limit",
        "Write 2 for both",
    ),
    ("half a GPU", f"{CONTAINER}.resources", {"limits": {GPU: "500m"}}, "device-limit", "Write a whole number"),
    ("env PORT", f"{CONTAINER}.env.0", {"name": "PORT", "value": "80"}, "reserved-env", "ports[0].containerPort"),
    ("misspelt annotation", scaling("minscale"), "0", "annotation-unknown", "autoscaling.knative.dev/min-scale"),
    # beside the table
    (
        "annotation of the Service",
        "metadata.annotations:autoscaling.knative.dev/window",
        "60s",
        "annotation-place",
        "spec.template",
    ),
    ("annotation that is a number", scaling("min-scale"), 0, "annotation-type", 'Put it in quotes: "0"'),
    ("misspelt label", "metadata.labels:networking.knative.dev/visbility", "a", "label-unknown", "visibility"),
    ("public", "metadata.labels:networking.knative.dev/visibility", "private", "label-value", "Write cluster-local"),
    ("misspelt field", f"{TEMPLATE}.containerConcurency", 1, "unknown-field", "Write containerConcurrency"),
    ("wrong type", f"{TEMPLATE}.timeoutSeconds", "600", "schema", "Correct its type"),
    ("no containers", f"{TEMPLATE}.containers", None, "schema", "Add containers"),
    ("two ports", f"{CONTAINER}.ports", [{"containerPort": 1}, {"containerPort": 2}], "ports", "Keep the first"),
    ("queue-proxy's port", f"{CONTAINER}.ports", [{"containerPort": 8012}], "ports", "Take another"),
    ("not mounted", f"{TEMPLATE}.volumes.4", {"name": "a", "emptyDir": {}}, "volume-unmounted", "Mount or remove"),
    ("no such volume", f"{CONTAINER}.volumeMounts.0.name", "a", "volume-missing", "Add it under volumes"),
    ("mounted at /dev", f"{CONTAINER}.volumeMounts.0.mountPath", "/dev", "volume-mount", "elsewhere"),
    ("probe", f"{CONTAINER}.readinessProbe.failureThreshold", 3, "probe-period", "Remove failureThreshold"),
]


@pytest.mark.parametrize(("where", "value", "rule", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_field_is_caught_with_what_to_change(where: str, value: object, rule: str, said: str) -> None:
    right = service()
    assert findings(right) == []
    caught = [f for f in findings(changed(right, where, value)) if f.rule == rule and said in f.change + f.why]
    assert caught, findings(changed(right, where, value))
    assert caught[0].level == "error"
    assert caught[0].file == "workers.yaml"
    assert caught[0].object == "Service/model-chat-0"
    assert caught[0].path.startswith(("spec.template.", "metadata."))


def test_limits_are_the_operators_where_they_are_known() -> None:
    long = changed(service(), f"{TEMPLATE}.timeoutSeconds", 1800)
    long = changed(long, f"{TEMPLATE}.responseStartTimeoutSeconds", 1800)
    assert [f.rule for f in findings(long)] == ["timeout-limit"]
    assert findings(long, replace(STOCK, max_timeout_s=3600)) == []
    many = changed(changed(service(), scaling("max-scale"), "5"), scaling("min-scale"), "0")
    assert {f.rule for f in findings(many, replace(STOCK, max_scale_limit=3))} == {"scale-limit", "place-max-scale"}


def test_a_flag_that_is_on_is_no_finding_and_one_nobody_asked_for_is_a_note() -> None:
    used = changed(service(), f"{TEMPLATE}.nodeSelector", {"a": "b"})
    flag = "kubernetes.podspec-nodeselector"
    assert [f.level for f in findings(used)] == ["error"]
    assert [f.level for f in findings(used, ASKED_NOTHING)] == ["note"]
    for value in ("enabled", "allowed"):
        assert findings(used, replace(STOCK, features={flag: value})) == []
    off = replace(STOCK, features={"kubernetes.podspec-volumes-emptydir": "disabled"})
    assert {f.rule for f in findings(service(), off)} == {"feature-flag"}


def test_where_only_enabled_counts_allowed_is_not_enough() -> None:
    used = changed(service(), f"{TEMPLATE}.initContainers", [{"name": "a", "image": "b"}])
    allowed = replace(STOCK, features={"kubernetes.podspec-init-containers": "allowed"})
    assert [f.rule for f in findings(used, allowed)] == ["feature-flag"]


def test_every_flag_that_the_definitions_name_is_known() -> None:
    text = (CRDS / "revision.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"behind a feature flag - ([\w.-]+)", text))
    assert named - {flag.name for flag in flags.ALL} == set()


@pytest.mark.parametrize("name", sorted({**KNOWN, **SECOND_SPELLINGS}))
def test_every_known_annotation_is_taken_by_either_name(name: str) -> None:
    made = service()
    short = name.rpartition("/")[2]
    kept = changed(made, f"{NOTES}:{name}", "60s" if "window" in short or "de" in short else "1")
    assert [f for f in findings(kept) if f.rule == "annotation-unknown"] == []


def test_a_misspelt_second_spelling_is_caught_too() -> None:
    found = findings(changed(service(), scaling("minScal"), "1"))
    assert [f.rule for f in found] == ["annotation-unknown"]


def test_a_revision_is_looked_at_where_its_fields_are() -> None:
    template = service()["spec"]["template"]
    revision = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", **template}
    revision["metadata"] = {**template["metadata"], "name": "model-chat-0-00001"}
    assert findings(revision, STOCK, PLAIN) == []
    caught = findings(changed(revision, "spec.containerConcurrency", 2000))
    (found,) = [f for f in caught if f.rule == "container-concurrency"]
    assert (found.rule, found.path) == ("container-concurrency", "spec.containerConcurrency")


def test_operators_maps_are_read_as_kubectl_prints_them() -> None:
    from rewarm.knative.operator import operator_of
    from rewarm.knative.text import documents, manifests

    printed = """
    apiVersion: v1
    kind: ConfigMapList
    items:
    - {kind: ConfigMap, metadata: {name: config-features}, data: {kubernetes.podspec-tolerations: Enabled}}
    - {kind: ConfigMap, metadata: {name: config-defaults}, data: {max-revision-timeout-seconds: "3600", _example: x}}
    - {kind: ConfigMap, metadata: {name: config-autoscaler}, data: {allow-zero-initial-scale: "true"}}
    """
    operator = operator_of(manifests(documents(printed, "flags.yaml"), "flags.yaml"))
    assert operator.features == {"kubernetes.podspec-tolerations": "enabled"}
    assert (operator.max_timeout_s, operator.allow_zero_initial_scale) == (3600, True)
    assert operator == replace(STOCK, features=operator.features, max_timeout_s=3600, allow_zero_initial_scale=True)


def test_nothing_of_what_yaml_can_hold_breaks_the_check() -> None:
    """A list where a mapping belongs, a number where text belongs: findings, not a traceback."""
    made = service()
    for path in ("spec", "spec.template", TEMPLATE, NOTES, "metadata", f"{TEMPLATE}.volumes", CONTAINER):
        for value in ([], {}, 7, "text", [1, None, "a"], {"a": [None]}):
            findings(changed(made, path, value), Operator(), PLAIN)


def test_a_wrong_manifest_of_each_kind_is_yaml_that_can_be_read_back() -> None:
    for _, where, value, _, _ in WRONG:
        document = changed(service(), where, value)
        assert yaml.safe_load(yaml.safe_dump(document)) == document
