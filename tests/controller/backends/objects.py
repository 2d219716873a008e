"""Objects of a cluster as its API server sends them, cut down to what is read of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 30, 9, 0, 0, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds: float = 0.0) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def service(place: str = "model-m-0") -> Json:
    return {"metadata": {"name": place}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def deployment(*conditions: Json, place: str = "model-m-0") -> Json:
    return {"metadata": {"name": place}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str = "False", reason: str = "", message: str = "", changed_s: float = 1) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(changed_s)}


def revision(*conditions: Json, place: str = "model-m-0") -> Json:
    return {"metadata": {"name": f"{place}-00001"}, "status": {"conditions": list(conditions)}}


def pod(*containers: Json, name: str = "model-m-0-00001-deployment-abc", node: str = "n1", **more: Any) -> Json:
    scheduled = more.pop("scheduled", None)
    conditions = [scheduled or condition("PodScheduled", "True")]
    metadata = {"name": name, "creationTimestamp": at(more.pop("created_s", 0.5))}
    if more.pop("leaving", False):
        metadata["deletionTimestamp"] = at(2)
    status = {
        "podIP": f"10.0.0.{len(name)}",
        "phase": more.pop("phase", "Pending"),
        "conditions": conditions,
        "containerStatuses": list(containers),
    }
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


def unschedulable(message: str = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.") -> Json:
    return pod(node="", scheduled=condition("PodScheduled", "False", "Unschedulable", message))


def container(name: str = "worker", restarts: int = 0, last: Json | None = None, **state: Json) -> Json:
    """``waiting``, ``running`` or ``terminated`` as its state."""
    return {
        "name": name,
        "image": "registry.example/worker:1",
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }


def event(reason: str, message: str = "", *, about: str = "model-m-0-00001-deployment-abc", **more: Any) -> Json:
    return {
        "metadata": {"name": f"{about}.{reason}"},
        "involvedObject": {"name": about},
        "type": more.get("type", "Normal"),
        "reason": reason,
        "message": message,
        "lastTimestamp": at(more.get("at_s", 1)),
    }
