"""What the objects of a cluster say about one place: how far its pod is, or why none will come. Pure.

Objects are as the API server sends them, decoded JSON. The pod itself is asked first: what its conditions and its
containers say holds now. Revision, Deployment and events speak where there is no pod; they may be left over from an
earlier wake, so only what changed since this one counts. ``Ready`` of a Revision or Service is never asked: it stays
True at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.places import Seen
from rewarm.knative.names import CONTAINER
from rewarm.states import FailureReason

Object = Mapping[str, Any]

SKEW = timedelta(seconds=5)
"""Between the API server's clock and ours, and for its timestamps, which are whole seconds."""

MANY_RESTARTS = 2
"""A worker's container that was restarted so often will be again, also while it happens to run."""

_IMAGE = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"))
_CONFIG = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))
_ADDING_A_NODE = frozenset(("TriggeredScaleUp", "Nominated"))  # events of the cluster autoscaler; of Karpenter
_NO_NODE_TO_ADD = "NotTriggerScaleUp"  # of the cluster autoscaler
_TOLD = 400  # characters of a cluster's message


@dataclass(frozen=True, slots=True)
class Objects:
    """Of one place. ``target`` is its Knative Service or Deployment, None where there is none."""

    target: Object | None
    revisions: Sequence[Object] = ()
    autoscalers: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()


def read(place: str, found: Objects, wanted_at: datetime, *, kind: str, others: Sequence[str] = ()) -> Seen:
    """``kind`` names what a place is to the reader; ``others`` are places whose pods sit on a node: room may come."""
    leaving = frozenset(str(_status(pod, "podIP")) for pod in found.pods if _terminating(pod))
    pods = sorted((p for p in found.pods if not _terminating(p) and not _over(p)), key=_created)
    events = [event for event in found.events if _at(event) >= wanted_at - SKEW]
    if pods:
        seen = _pod(pods[-1], [e for e in events if _about(e) == _name(pods[-1])], others)
    elif found.target is None:
        message = f"the cluster has no {kind} of that name: apply what `rewarm knative render` writes"
        seen = Seen(message, FailureReason.PLACE_MISSING)
    else:
        seen = _no_pod(found, events, wanted_at, leaving)
    return replace(seen, message=seen.message[:_TOLD], leaving=leaving)


# --- without a pod ---------------------------------------------------------------------------------------------------


def _no_pod(found: Objects, events: Iterable[Object], wanted_at: datetime, leaving: frozenset[str]) -> Seen:
    owners = [condition for target in (found.target,) if target for condition in _conditions(target)]
    refused = [c for c in owners if c.get("type") == "ReplicaFailure" and c.get("status") == "True"]
    for condition in refused:
        return Seen(*_refused(condition))
    for revision in found.revisions:
        for condition in _conditions(revision):
            if condition.get("status") == "False" and _time(condition.get("lastTransitionTime")) >= wanted_at - SKEW:
                seen = _revision(condition)
                if seen is not None:
                    return seen
    for event in events:
        if event.get("reason") == "FailedCreate":
            return Seen(*_refused(event))
    if leaving:
        return Seen("the pod before it is still leaving")
    if any(_status(scaler, "desiredScale") for scaler in found.autoscalers):
        return Seen("Knative scales from zero")
    return Seen("asked for")


def _revision(condition: Object) -> Seen | None:
    """``Active`` False only says that it is at zero, and ``Ready`` repeats the others."""
    kind, reason, message = condition.get("type"), str(condition.get("reason", "")), _message(condition)
    if kind == "ContainerHealthy" and reason.startswith("ExitCode"):
        return Seen(f"its container ended: {message}", FailureReason.CRASH_LOOP)
    if kind in ("ContainerHealthy", "ResourcesAvailable"):
        if reason in _IMAGE or reason == "ContainerMissing":
            return Seen(message, FailureReason.IMAGE_PULL)
        if reason == "Unschedulable":
            return Seen(f"no node takes its pod: {message}", FailureReason.UNSCHEDULABLE)
        if reason == "FailedCreate":
            return Seen(*_refused(condition))
        if reason in _CONFIG:
            return Seen(message, FailureReason.START_REFUSED)
    return None


def _refused(said: Object) -> tuple[str, FailureReason]:
    """The API server accepts no pod: a quota in nearly all cases, else a policy of the cluster."""
    message = _message(said)
    if "quota" in message.lower():
        return f"the namespace's quota allows no further pod: {message}", FailureReason.QUOTA
    return f"the cluster refuses its pod: {message}", FailureReason.START_REFUSED


# --- with a pod ------------------------------------------------------------------------------------------------------


def _pod(pod: Object, events: Sequence[Object], others: Sequence[str]) -> Seen:
    scheduled = next((c for c in _conditions(pod) if c.get("type") == "PodScheduled"), None)
    if scheduled is not None and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return _unschedulable(_message(scheduled), events, others)
    if not pod.get("spec", {}).get("nodeName"):
        return Seen("its pod waits for a node")
    for status in _containers(pod):
        trouble = _trouble(status)
        if trouble is not None:
            return trouble
    return Seen(_progress(pod, events))


def _unschedulable(message: str, events: Sequence[Object], others: Sequence[str]) -> Seen:
    """Whoever adds nodes on demand has the first word: it waits with it, or there is no more to wait for."""
    told = [e for e in events if e.get("reason") == _NO_NODE_TO_ADD or e.get("reason") in _ADDING_A_NODE]
    last = max(reversed(told), key=_at, default=None)  # the later one in the list, of two in one second
    if last is not None and last["reason"] in _ADDING_A_NODE:
        return Seen(f"a node is being added for its pod: {message}")
    if others and "insufficient" in message.lower():
        return Seen(f"waits for room on a node, which {', '.join(others)} may free: {message}", waits_for_room=True)
    if last is None:
        return Seen(f"no node takes its pod: {message}", FailureReason.UNSCHEDULABLE)
    refused = f"no node takes its pod, and none is added for it ({_message(last)}): {message}"
    return Seen(refused, FailureReason.UNSCHEDULABLE, certain=True)


def _trouble(status: Object) -> Seen | None:
    state, last = status.get("state", {}), status.get("lastState", {}).get("terminated")
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), _message(waiting)
    image = status.get("image", "")
    if reason in _IMAGE:
        return Seen(f"the image {image} cannot be pulled: {message or reason}", FailureReason.IMAGE_PULL)
    if reason in _CONFIG:
        return Seen(f"its container cannot be made: {message or reason}", FailureReason.START_REFUSED)
    if reason == "CrashLoopBackOff" or (last is not None and status.get("restartCount", 0) >= MANY_RESTARTS):
        return _crashed(status.get("name", ""), last)
    return None


def _crashed(container: str, last: Object | None) -> Seen:
    if last is None:
        return Seen(f"its container {container} ends again and again", FailureReason.CRASH_LOOP)
    if last.get("reason") == "OOMKilled":
        message = f"its container {container} ends again and again: it was killed for memory"
        return Seen(message, FailureReason.OUT_OF_MEMORY)
    said = _message(last)
    message = f"its container {container} ends again and again, with exit code {last.get('exitCode')}"
    return Seen(f"{message}: {said}" if said else message, FailureReason.CRASH_LOOP)


def _progress(pod: Object, events: Sequence[Object]) -> str:
    worker = next((s for s in _containers(pod) if s.get("name") == CONTAINER), {})
    state = worker.get("state", {})
    if "running" in state:
        return "its worker starts"
    if "terminated" in state:
        return f"its container ended with exit code {state['terminated'].get('exitCode')} and is started again"
    pulled, pulling = _last(events, "Pulled"), _last(events, "Pulling")
    if pulling is not None and (pulled is None or _at(pulled) < _at(pulling)):
        return f"its image comes: {_message(pulling)}"
    warning = next((e for e in reversed(events) if e.get("type") == "Warning"), None)
    if warning is not None and warning.get("reason") != "FailedScheduling":
        # A volume that cannot be mounted, for example. The kubelet tries on.
        return f"its container cannot be made yet: {_message(warning)}"
    return "its container is being made"


# --- reading objects -------------------------------------------------------------------------------------------------


def _name(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("name", ""))


def _created(thing: Object) -> str:
    return str(thing.get("metadata", {}).get("creationTimestamp", ""))


def _terminating(pod: Object) -> bool:
    return bool(pod.get("metadata", {}).get("deletionTimestamp"))


def _over(pod: Object) -> bool:
    """Evicted, or lost with its node: the cluster makes another one."""
    return _status(pod, "phase") in ("Failed", "Succeeded")


def _status(thing: Object, name: str) -> Any:
    return (thing.get("status") or {}).get(name)


def _conditions(thing: Object) -> Sequence[Object]:
    return _status(thing, "conditions") or ()


def _containers(pod: Object) -> Sequence[Object]:
    return (*(_status(pod, "initContainerStatuses") or ()), *(_status(pod, "containerStatuses") or ()))


def _message(thing: Object) -> str:
    return " ".join(str(thing.get("message") or "").split())


def _about(event: Object) -> str:
    return str(event.get("involvedObject", {}).get("name", ""))


def _last(events: Sequence[Object], reason: str) -> Object | None:
    return next((event for event in reversed(events) if event.get("reason") == reason), None)


def _at(event: Object) -> datetime:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"), _created(event))
    return _time(next((at for at in times if at), None))


def _time(text: Any) -> datetime:
    """RFC 3339, as in ``2026-11-30T09:00:00Z``; the beginning of time where there is none."""
    if not text:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(str(text))
