"""A job as OpenAI's Response object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.jobs import failure_of
from rewarm.jobs import TERMINAL, Job, JobState

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "temperature": None,
    "text": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""What a client finds again of its request, with what stands there where it said nothing."""

_STATUS = {
    JobState.QUEUED: "queued",
    JobState.LOADING: "queued",
    JobState.IN_PROGRESS: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "failed",  # OpenAI has no word for it; the error says it
}


def response_object(
    job: Job,
    *,
    request: Mapping[str, Any] | None = None,
    result: bytes | None = None,
    described: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``request`` is the client's body where it is still there, ``result`` the engine's answer, ``described`` the job
    as ``/v1/jobs`` shows it, for what is to be said of its progress."""
    asked = request or {}
    out: dict[str, Any] = {
        "id": job.spec.id,
        "object": "response",
        "created_at": job.created_ms // 1000,
        "status": _STATUS[job.state],
        "background": True,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": job.spec.asked_model,
        "output": [],
        "usage": None,
        **{name: asked.get(name, default) for name, default in _ECHOED.items()},
    }
    if not out["metadata"]:
        out["metadata"] = job.spec.metadata
    if job.state is JobState.COMPLETED:
        out |= _answer(result)
        out["completed_at"] = (job.ended_ms or job.created_ms) // 1000
    elif (failure := failure_of(job)) is not None and job.state is not JobState.CANCELLED:
        out["error"] = {"code": failure.code, "message": failure.message}
    if described is not None and job.state not in TERMINAL:
        names = ("status", "queue_position", "progress", "tokens", "attempt", "loads", "cancel_requested")
        out["rewarm"] = {name: described[name] for name in names}
    return out


def _answer(result: bytes | None) -> dict[str, Any]:
    """The engine's Response, but for what is the job's own: id, times, model, ``background``. Its status stays: an
    answer that was cut off is ``incomplete``."""
    if not result:
        return {}
    try:
        said = msgspec.json.decode(result)
    except msgspec.DecodeError:
        return {}
    if not isinstance(said, dict):
        return {}
    ours = ("id", "object", "created_at", "completed_at", "background", "model", "request_id")
    return {name: value for name, value in said.items() if name not in ours and (value is not None or name == "text")}


def final_event(response: Mapping[str, Any]) -> str:
    """The type of the event that ends the stream. There is none for ``cancelled``: such a response is incomplete, and
    its status says why."""
    status = response["status"]
    if status in ("completed", "failed"):
        return f"response.{status}"
    return "response.incomplete"
