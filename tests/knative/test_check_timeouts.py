"""Times that contradict each other: one wrong manifest or configuration for each pair, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet.leader import LEADER_TTL_MS
from rewarm.knative.finding import Finding
from rewarm.knative.names import COMPONENT_GATEWAY, LABEL_COMPONENT
from rewarm.knative.timeouts import LEADER_TTL_S
from tests.knative.manifests import NOTES, PLAIN, STOCK, TEMPLATE, changed, deployment, findings, service

TIMEOUT = f"{TEMPLATE}.timeoutSeconds"
START = f"{TEMPLATE}.responseStartTimeoutSeconds"
IDLE = f"{TEMPLATE}.idleTimeoutSeconds"
WINDOW = f"{NOTES}:autoscaling.knative.dev/window"
RETENTION = f"{NOTES}:autoscaling.knative.dev/scale-to-zero-pod-retention-period"
DEADLINE = f"{NOTES}:serving.knative.dev/progress-deadline"
GRACE = f"{TEMPLATE}.terminationGracePeriodSeconds"


def gateway_service() -> dict[str, Any]:
    """A gateway as a Knative Service, whose configuration fits its limits."""
    made = service()
    for path in ("metadata.labels", "spec.template.metadata.labels"):
        made = changed(made, f"{path}:{LABEL_COMPONENT}", COMPONENT_GATEWAY)
    return made


FITS = PLAIN.replace("/chat}", "/chat, initialising_stall: 120s}")
FITS = FITS.replace("kind: none}", "kind: none}, pod_stall: 480s")
FITS += "gateway: {holding: {max_patience: 480s, patience: 480s}}\n"


def gateway_deployment() -> dict[str, Any]:
    made = deployment()
    for path in ("metadata.labels", "spec.template.metadata.labels"):
        made = changed(made, f"{path}:{LABEL_COMPONENT}", COMPONENT_GATEWAY)
    return made


MANIFESTS = {
    "worker": (service, PLAIN),
    "worker deployment": (deployment, PLAIN),
    "gateway": (gateway_service, FITS),
    "gateway deployment": (gateway_deployment, PLAIN),
}

Pair = tuple[str, str, Mapping[str, object], str, str, str]

WRONG: list[Pair] = [
    # the pair · of what · changes of the manifest · added to the configuration · the rule · what to change
    ("timeout ↔ the operator's maximum", "worker", {TIMEOUT: 900, START: 900}, "", "timeout-limit", "at most 600"),
    ("response start ↔ timeout", "worker", {START: 700}, "", "timeout-order", "Write at most 600"),
    ("idle ↔ timeout", "worker", {IDLE: 700}, "", "timeout-order", "Write at most 600"),
    ("response start ↔ its default", "worker", {START: None}, "", "response-start-default", "Seconds: 600"),
    ("timeout ↔ the late SIGTERM", "worker", {TIMEOUT: 20, START: 20}, "", "timeout-sigterm", "at least 60"),
    (
        "timeout ↔ worker.shutdown_deadline",
        "worker",
        {TIMEOUT: 300, START: 300},
        "",
        "timeout-drain",
        "Raise timeoutSeconds to 340 (`knative.timeout`), or lower worker.shutdown_deadline to 260s",
    ),
    (
        "timeout ↔ the longest request (drain_deadline)",
        "worker",
        {},
        "models.chat.drain_deadline: 20m",
        "timeout-drain",
        "lower models.chat.drain_deadline to 560s",
    ),
    ("idle ↔ the silent wake-up", "worker", {IDLE: 60}, "", "idle-wake-up", "Remove it"),
    ("response start ↔ a pod's start", "worker", {START: 20}, "", "response-start-pod", "Write at least 60"),
    ("progress deadline ↔ response start", "worker", {DEADLINE: "300s"}, "", "progress-response-start", "600s"),
    ("window ↔ a change of leaders", "worker", {WINDOW: "10s"}, "", "window-leader", "at least 15s"),
    ("window ↔ patience", "worker", {WINDOW: "20m"}, "", "window-patience", "Shorten window"),
    ("retention ↔ patience", "worker", {RETENTION: "10m"}, "", "window-patience", "raise gateway.holding.patience"),
    (
        "load budget ↔ patience",
        "worker",
        {},
        "gateway.holding.patience: 300s",
        "patience-load",
        "Raise patience to 540 s",
    ),
    ("pod stall ↔ patience", "worker", {}, "knative.pod_stall: 20m", "patience-pod", "Lower pod_stall to 600 s"),
    ("grace ↔ worker.shutdown_deadline", "worker deployment", {GRACE: 60}, "", "grace-drain", "Raise it to 310"),
    ("grace by default ↔ shutdown_deadline", "worker deployment", {GRACE: None}, "", "grace-drain", "Raise it to 310"),
    (
        "grace ↔ drain_deadline",
        "worker deployment",
        {},
        "models.chat.drain_deadline: 20m",
        "grace-drain",
        "lower models.chat.drain_deadline to 300s",
    ),
    ("grace ↔ gateway.shutdown_deadline", "gateway deployment", {GRACE: 30}, "", "grace-drain", "Raise it to 310"),
    (
        "gateway's timeout ↔ the longest request",
        "gateway",
        {},
        "gateway.holding.max_patience: 3600s",
        "gateway-request",
        "Lower max_patience to 480s, raise timeoutSeconds to 3720",
    ),
    (
        "gateway's response start ↔ plain_status_after",
        "gateway",
        {START: 15},
        "",
        "gateway-response-start",
        "Write more than 15",
    ),
    ("gateway's idle ↔ padding", "gateway", {IDLE: 10}, "", "gateway-idle", "Remove it"),
    (
        "gateway's timeout ↔ shutdown_deadline",
        "gateway",
        {},
        "gateway.shutdown_deadline: 580s",
        "gateway-drain",
        "Raise timeoutSeconds to 620, or lower shutdown_deadline to 560s",
    ),
]


def merged(text: str, added: str) -> str:
    """The configuration with ``a.b.c: value`` in it."""
    import yaml

    data = yaml.safe_load(text)
    path, _, value = added.partition(": ")
    *folders, last = path.split(".")
    at = data
    for part in folders:
        at = at.setdefault(part, {})
    at[last] = value
    return yaml.safe_dump(data)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_what_fits_has_no_finding(kind: str) -> None:
    make, text = MANIFESTS[kind]
    assert findings(make(), STOCK, text) == []


@pytest.mark.parametrize(
    ("kind", "changes", "added", "rule", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_two_times_that_do_not_fit_are_caught_with_what_to_change(
    kind: str, changes: Mapping[str, object], added: str, rule: str, said: str
) -> None:
    make, text = MANIFESTS[kind]
    document = make()
    for path, value in changes.items():
        document = changed(document, path, value)
    found = findings(document, STOCK, merged(text, added) if added else text)
    caught: list[Finding] = [f for f in found if f.rule == rule]
    assert caught, found
    assert any(said in f.change for f in caught), caught


def test_each_finding_goes_away_when_its_change_is_made() -> None:
    long = PLAIN.replace("/chat}", "/chat, drain_deadline: 20m}")
    assert [f.rule for f in findings(service(), STOCK, long)] == ["timeout-drain"]
    raised = changed(changed(service(), TIMEOUT, 1240), START, 1240)
    assert findings(raised, replace(STOCK, max_timeout_s=1800), long) == []


def test_without_the_configuration_the_manifest_is_still_held_to_itself() -> None:
    short = changed(changed(service(), TIMEOUT, 20), START, 20)
    assert [f.rule for f in findings(short, STOCK, None)] == ["timeout-sigterm"]


def test_the_leaders_time_is_the_one_that_leaders_keep() -> None:
    assert LEADER_TTL_S * 1000 == LEADER_TTL_MS
