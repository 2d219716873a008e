"""What a cluster's objects mean for a place: a table of what it shows, and what the client and the retry policy get."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.backends.conditions import Objects, read
from controller.places import Seen
from rewarm.states import FailureReason as Why
from tests.controller.backends.objects import (
    NOW,
    condition,
    container,
    deployment,
    event,
    pod,
    revision,
    service,
    unschedulable,
)

PLACE = "model-m-0"


def seen(**found: object) -> Seen:
    others = found.pop("others", ())
    objects = Objects(**{"target": service(), **found})  # type: ignore[arg-type]
    return read(PLACE, objects, NOW, kind="Knative Service", others=others)  # type: ignore[arg-type]


CREATING = container(waiting={"reason": "ContainerCreating"})
RUNNING = container(running={})
QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 1, limited: 1'

ON_ITS_WAY = {
    "nothing yet": ({}, "asked for"),
    "Knative scales": (
        {"autoscalers": [{"status": {"desiredScale": 1, "actualScale": 0}}]},
        "Knative scales from zero",
    ),
    "no node yet": ({"pods": [pod(node="")]}, "its pod waits for a node"),
    "a node is added": (
        {"pods": [unschedulable()], "events": [event("TriggeredScaleUp", "pod triggered scale-up")]},
        "a node is being added",
    ),
    "a node is added by Karpenter": (
        {"pods": [unschedulable()], "events": [event("Nominated", "Pod should schedule on: nodeclaim/gpu-x")]},
        "a node is being added",
    ),
    "a node is added after all": (
        {"pods": [unschedulable()], "events": [event("TriggeredScaleUp", at_s=9), event("NotTriggerScaleUp", at_s=2)]},
        "a node is being added",
    ),
    "the container is made": ({"pods": [pod(CREATING)]}, "its container is being made"),
    "the image comes": (
        {"pods": [pod(CREATING)], "events": [event("Pulling", 'Pulling image "worker:1"')]},
        'its image comes: Pulling image "worker:1"',
    ),
    "the image is there": (
        {"pods": [pod(CREATING)], "events": [event("Pulling", at_s=1), event("Pulled", at_s=4)]},
        "its container is being made",
    ),
    "a volume does not come yet": (
        {"pods": [pod(CREATING)], "events": [event("FailedMount", "MountVolume.SetUp failed", type="Warning")]},
        "cannot be made yet: MountVolume.SetUp failed",
    ),
    "the worker starts": ({"pods": [pod(RUNNING, container("queue-proxy", running={}))]}, "its worker starts"),
    "it ended once": ({"pods": [pod(container(terminated={"exitCode": 1}))]}, "exit code 1 and is started again"),
    "it was restarted once": (
        {"pods": [pod(container(running={}, restarts=1, last={"exitCode": 1}))]},
        "its worker starts",
    ),
    "the last pod still leaves": ({"pods": [pod(RUNNING, leaving=True)]}, "still leaving"),
    "a pod that failed is replaced": ({"pods": [pod(phase="Failed")]}, "asked for"),
}

NO_POD_COMES = {
    "no Service": ({"target": None}, Why.PLACE_MISSING, "no Knative Service of that name"),
    "no node": ({"pods": [unschedulable()]}, Why.UNSCHEDULABLE, "3 Insufficient nvidia.com/gpu"),
    "no node can be added": (
        {"pods": [unschedulable()], "events": [event("TriggeredScaleUp", at_s=1), event("NotTriggerScaleUp", at_s=2)]},
        Why.UNSCHEDULABLE,
        "no node takes its pod",
    ),
    "the image is not there": (
        {"pods": [pod(container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"}))]},
        Why.IMAGE_PULL,
        "registry.example/worker:1 cannot be pulled: Back-off pulling image",
    ),
    "the first pull fails": (
        {"pods": [pod(container(waiting={"reason": "ErrImagePull", "message": "not found"}))]},
        Why.IMAGE_PULL,
        "not found",
    ),
    "a secret is missing": (
        {"pods": [pod(container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}))]},
        Why.START_REFUSED,
        'secret "x" not found',
    ),
    "it crashes": (
        {"pods": [pod(container(waiting={"reason": "CrashLoopBackOff"}, restarts=1, last={"exitCode": 3}))]},
        Why.CRASH_LOOP,
        "again and again, with exit code 3",
    ),
    "it crashes and just runs": (
        {"pods": [pod(container(running={}, restarts=2, last={"exitCode": 3}))]},
        Why.CRASH_LOOP,
        "exit code 3",
    ),
    "it is killed for memory": (
        {
            "pods": [
                pod(container(waiting={"reason": "CrashLoopBackOff"}, last={"exitCode": 137, "reason": "OOMKilled"}))
            ]
        },
        Why.OUT_OF_MEMORY,
        "killed for memory",
    ),
    "queue-proxy crashes": (
        {"pods": [pod(RUNNING, container("queue-proxy", waiting={"reason": "CrashLoopBackOff"}))]},
        Why.CRASH_LOOP,
        "queue-proxy",
    ),
    "Knative saw it crash": (
        {"revisions": [revision(condition("ContainerHealthy", "False", "ExitCode1", "exit code 1"))]},
        Why.CRASH_LOOP,
        "exit code 1",
    ),
    "Knative saw no node": (
        {"revisions": [revision(condition("ResourcesAvailable", "False", "Unschedulable", "0/1 nodes"))]},
        Why.UNSCHEDULABLE,
        "0/1 nodes",
    ),
    "Knative finds no image": (
        {"revisions": [revision(condition("ContainerHealthy", "False", "ContainerMissing", "Unable to fetch image"))]},
        Why.IMAGE_PULL,
        "Unable to fetch image",
    ),
    "a quota": (
        {"events": [event("FailedCreate", QUOTA, about="model-m-0-00001-deployment")]},
        Why.QUOTA,
        "limited: 1",
    ),
    "a quota of a Deployment": (
        {"target": deployment(condition("ReplicaFailure", "True", "FailedCreate", QUOTA))},
        Why.QUOTA,
        "quota allows no further pod",
    ),
    "a policy": (
        {"target": deployment(condition("ReplicaFailure", "True", "FailedCreate", "violates PodSecurity"))},
        Why.START_REFUSED,
        "violates PodSecurity",
    ),
}


@pytest.mark.parametrize(("found", "message"), ON_ITS_WAY.values(), ids=ON_ITS_WAY.keys())
def test_a_pod_on_its_way(found: dict[str, object], message: str) -> None:
    got = seen(**found)
    assert message in got.message
    assert (got.reason, got.waits_for_room) == (None, False)


@pytest.mark.parametrize(("found", "reason", "message"), NO_POD_COMES.values(), ids=NO_POD_COMES.keys())
def test_no_pod_comes(found: dict[str, object], reason: Why, message: str) -> None:
    got = seen(**found)
    assert got.reason is reason
    assert message in got.message


def test_room_that_other_places_hold_may_come() -> None:
    got = seen(pods=[unschedulable()], others=["model-b-0"])
    assert (got.reason, got.waits_for_room) == (None, True)
    assert "model-b-0 may free" in got.message


def test_only_the_autoscalers_word_makes_an_end_certain() -> None:
    said = event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached")
    refused = seen(pods=[unschedulable()], events=[said])
    assert (refused.reason, refused.certain) == (Why.UNSCHEDULABLE, True)
    assert "max node group size reached" in refused.message
    assert not seen(pods=[unschedulable()]).certain, "it may not have looked yet"
    waits = seen(pods=[unschedulable()], events=[said], others=["model-a-0"])
    assert (waits.waits_for_room, waits.reason) == (True, None), "no node is added, and one may come free"


def test_other_places_cannot_free_what_is_no_room() -> None:
    got = seen(pods=[unschedulable("0/3 nodes are available: 3 node(s) had untolerated taint")], others=["model-b-0"])
    assert got.reason is Why.UNSCHEDULABLE


@pytest.mark.parametrize("kind", ["revision", "event"])
def test_what_went_wrong_with_an_earlier_wake_says_nothing_of_this_one(kind: str) -> None:
    """Conditions of a Revision stay until its next pod; events for an hour."""
    long_ago = -timedelta(minutes=5).total_seconds()
    got = {
        "revision": seen(revisions=[revision(condition("ContainerHealthy", "False", "ExitCode1", changed_s=long_ago))]),
        "event": seen(events=[event("FailedCreate", QUOTA, about="model-m-0-00001-deployment", at_s=long_ago)]),
    }[kind]
    assert got.reason is None


def test_ready_at_zero_is_not_read_as_warm() -> None:
    """A Revision and a Service say Ready True at zero, and Active False says only that."""
    got = seen(revisions=[revision(condition("Ready", "True"), condition("Active", "False", "NoTraffic"))])
    assert got == Seen("asked for")


def test_the_newest_pod_speaks_and_those_that_leave_are_named() -> None:
    old = pod(RUNNING, name="old", leaving=True)
    broken = pod(container(waiting={"reason": "CrashLoopBackOff"}), name="broken", created_s=1)
    new = pod(RUNNING, name="new", created_s=9)
    got = seen(pods=[new, broken, old])
    assert (got.message, got.leaving) == ("its worker starts", frozenset(("10.0.0.3",)))


def test_a_clusters_long_message_is_cut() -> None:
    got = seen(pods=[unschedulable("0/900 nodes are available: " + "1 node had taint, " * 900)])
    assert len(got.message) == 400
